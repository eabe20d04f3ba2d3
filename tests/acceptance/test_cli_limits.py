"""`headgate limits`, `headgate resource`, `headgate system`: the four levels at which limits are stored."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit


@pytest.mark.parametrize(
    ("group", "place", "source", "words"),
    [
        ("limits", ["acme", "--resource", "llm"], "entity", "acme on llm"),
        ("limits", ["acme"], "entity_default", "acme on every resource"),
        ("resource", ["llm"], "resource", "everyone on llm"),
        ("system", [], "system", "everyone on every resource"),
    ],
)
def test_limits_are_set_shown_and_deleted_at_each_level(
    inside: Cli, group: str, place: list[str], source: str, words: str
) -> None:
    specs = ["rpm=100/minute", "tpm=10000/minute burst 15000"]
    inside(group, "set", *place, *specs)
    assert inside(group, "get", *place).stdout.startswith(f"{words}\n")
    stored = inside.json(group, "get", *place)
    assert (stored["source"], stored["version"]) == (source, 1)
    assert [f"{limit['name']}={limit['limit']}" for limit in stored["limits"]] == specs
    effective = inside.json("limits", "resolve", "acme", "llm")
    assert (effective["source"], effective["limits"]) == (source, stored["limits"])
    assert f"acme on llm; source: {source}\n" in inside("limits", "resolve", "acme", "llm").stdout
    assert words in inside(group, "delete", *place, "--yes").stdout
    assert inside.json(group, "delete", *place)["deleted"] is False
    assert "no limits are stored" in inside(group, "get", *place).stdout
    assert "no limits are stored" in inside("limits", "resolve", "acme", "llm").stdout


@pytest.mark.parametrize(("group", "place"), [("limits", ["acme"]), ("resource", ["llm"]), ("system", [])])
def test_who_expects_another_version_changes_nothing(inside: Cli, group: str, place: list[str]) -> None:
    inside(group, "set", *place, "rpm=1/day", "--expected-version", "0")
    for version in ("0", "7"):
        message = inside.error(group, "set", *place, "rpm=2/day", "--expected-version", version)
        assert "changed by someone else" in message
        assert "changed by someone else" in inside.error(group, "delete", *place, "--expected-version", version)
    inside(group, "set", *place, "rpm=3/day", "--expected-version", "1")
    assert inside.json(group, "get", *place)["limits"][0]["limit"] == "3/day"
    assert inside.json(group, "delete", *place, "--expected-version", "2", "--yes")["deleted"] is True


def test_system_limits_carry_the_policy_for_outages(inside: Cli) -> None:
    inside("system", "set", "rpm=20/minute", "--on-unavailable", "allow")
    assert inside.json("system", "get")["on_unavailable"] == "allow"
    assert "when the store is unavailable: allow" in inside("system", "get").stdout
    inside("system", "set", "rpm=20/minute")
    assert inside.json("system", "get")["on_unavailable"] is None
    assert "sometimes" in inside.error("system", "set", "rpm=20/minute", "--on-unavailable", "sometimes")


def test_lists_go_through_every_page(inside: Cli) -> None:
    for arguments in (["limits", "list"], ["limits", "list", "--resource", "llm"], ["resource", "list"]):
        assert inside(*arguments).stdout.startswith("no ")
        assert inside.json(*arguments) == []
    numbers = [f"{number:03}" for number in range(120)]
    with inside.limiter() as limiter:
        for number in numbers:
            limiter.set_limits(f"entity-{number}", [Limit.per_day("rpm", 2)], "llm")
            limiter.set_resource_defaults(f"resource-{number}", [Limit.per_day("rpm", 3)])
        limiter.set_limits("acme", [Limit.per_day("rpm", 4)])
    assert [level["entity_id"] for level in inside.json("limits", "list")] == ["acme"]
    on_llm = inside.json("limits", "list", "--resource", "llm")
    assert [level["entity_id"] for level in on_llm] == [f"entity-{number}" for number in numbers]
    assert "entity-119 on llm" in inside("limits", "list", "--resource", "llm").stdout
    assert [level["resource"] for level in inside.json("resource", "list")] == [f"resource-{one}" for one in numbers]


# What a change leaves in force


def effective(answer: dict[str, Any], when: str) -> dict[str, str]:
    shown = answer["effective"][when]
    return {limit["name"]: f"{limit['limit']} ({shown['sources'][limit['name']]})" for limit in shown["limits"]}


def test_an_entity_with_its_own_limit_keeps_everyones_others(inside: Cli) -> None:
    """The edit that used to stop every worker which consumes both."""
    inside("system", "set", "rpm=100/minute", "tpm=1000/minute")
    stored = inside("limits", "set", "user:ann", "rpm=2/minute").stdout
    assert stored == "stored for user:ann on every resource: rpm=2/minute; inherited: tpm=1000/minute (system)\n"
    assert inside("check", "user:ann", "llm", "--consume", "rpm=1", "--consume", "tpm=10").returncode == 0
    resolved = inside("limits", "resolve", "user:ann", "llm").stdout
    assert [line.split()[::4] for line in resolved.splitlines()[-2:]] == [["rpm", "entity_default"], ["tpm", "system"]]
    shown = inside.json("limits", "resolve", "user:ann", "llm")
    assert shown["sources"] == {"rpm": "entity_default", "tpm": "system"}
    answer = inside.json("limits", "set", "user:ann", "rpm=3/minute")
    assert effective(answer, "before") == {"rpm": "2/minute (entity_default)", "tpm": "1000/minute (system)"}
    assert effective(answer, "after") == {"rpm": "3/minute (entity_default)", "tpm": "1000/minute (system)"}
    assert answer["effective"]["dropped"] == {}


@pytest.mark.parametrize(
    ("group", "place", "words"),
    [
        ("limits", ["acme", "--resource", "llm"], "acme on llm"),
        ("limits", ["acme"], "acme on every resource"),
        ("resource", ["llm"], "everyone on llm"),
        ("system", [], "everyone on every resource"),
    ],
)
def test_a_name_that_would_disappear_is_named_and_confirmed(
    inside: Cli, group: str, place: list[str], words: str
) -> None:
    inside(group, "set", *place, "rpm=1/day", "tpm=9/day")
    for change in (["set", *place, "rpm=2/day"], ["delete", *place]):
        message = inside.error(group, *change)
        assert message.startswith(("tpm would no longer apply to", "rpm would no longer apply to"))
        assert f"tpm would no longer apply to {words}" in message
        assert "--yes" in message
        assert [limit["limit"] for limit in inside.json(group, "get", *place)["limits"]] == ["1/day", "9/day"]
    answer = inside.json(group, "set", *place, "rpm=2/day", "--yes")
    resource = None if words.endswith("every resource") else "llm"
    assert answer["effective"]["dropped"] == {"tpm": [resource]}
    deleted = inside.json(group, "delete", *place, "--yes")
    assert deleted["effective"]["dropped"] == {"rpm": [resource]}
    assert deleted["effective"]["after"] == {"limits": [], "source": None, "sources": {}}


def test_a_level_that_does_not_inherit_is_shown_as_such(inside: Cli) -> None:
    inside("system", "set", "rpm=100/minute", "tpm=1000/minute", "--no-inherit")
    assert inside.json("system", "get")["inherit"] is False
    message = inside.error("limits", "set", "acme", "rpm=2/minute", "--no-inherit")
    assert "tpm would no longer apply to acme on every resource" in message
    stored = inside("limits", "set", "acme", "rpm=2/minute", "--no-inherit", "--yes").stdout
    assert stored == "stored for acme on every resource: rpm=2/minute; nothing is inherited\n"
    assert "nothing is inherited" in inside("limits", "get", "acme").stdout
    assert inside.json("limits", "get", "acme")["inherit"] is False
    assert inside.json("limits", "list")[0]["inherit"] is False
    assert inside("limits", "list").stdout.split()[-1] == "no"
    assert "inherit: no" in inside("audit", "--entity", "acme").stdout
    doctor = inside("doctor", "--read-only").stdout
    assert "stored at 2 levels, of which 2 inherit nothing" in " ".join(doctor.split())
    inside("limits", "set", "acme", "rpm=2/minute")
    assert inside.json("limits", "get", "acme")["inherit"] is True
    assert "inherit: no -> yes" in inside("audit", "--entity", "acme").stdout


def test_limits_that_only_a_resource_has_are_named_too(inside: Cli) -> None:
    inside("system", "set", "rpm=100/minute")
    inside("resource", "set", "chat", "tpm=1000/minute")
    message = inside.error("limits", "set", "acme", "calls=2/minute", "--no-inherit")
    assert "rpm would no longer apply to acme on other resources, chat" in message
    assert "tpm would no longer apply to acme on chat:" in message


def test_on_a_terminal_it_is_asked_before(cli: Cli) -> None:
    cli("system", "set", "rpm=1/day", "tpm=9/day")
    with cli.terminal("system", "set", "rpm=2/day") as terminal:
        terminal.see("Go on? [y/N]")
        assert "tpm would no longer apply to everyone on every resource" in " ".join(terminal.seen.split())
        terminal.type("n\n")
        assert terminal.end() == 1
        assert "nothing was changed" in terminal.seen
    with cli.terminal("system", "set", "rpm=2/day") as terminal:
        terminal.see("Go on? [y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert [limit["limit"] for limit in cli.json("system", "get")["limits"]] == ["2/day"]


def test_what_was_agreed_to_is_what_is_done(cli: Cli) -> None:
    """Somebody else changes the level while the question is open: then it is another question."""
    cli("system", "set", "rpm=1/day", "tpm=9/day")
    with cli.terminal("system", "delete") as terminal:
        terminal.see("Go on? [y/N]")
        cli("system", "set", "rpm=1/day", "tpm=9/day", "calls=1/day")
        terminal.type("y\n")
        assert terminal.end() == 2
        assert "changed by someone else" in terminal.seen
    assert len(cli.json("system", "get")["limits"]) == 3

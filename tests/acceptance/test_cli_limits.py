"""`headgate limits`, `headgate resource`, `headgate system`: the four levels at which limits are stored."""

from __future__ import annotations

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
    assert words in inside(group, "delete", *place).stdout
    assert inside.json(group, "delete", *place)["deleted"] is False
    assert "no limits are stored" in inside(group, "get", *place).stdout
    assert "no limits hold" in inside("limits", "resolve", "acme", "llm").stdout


@pytest.mark.parametrize(("group", "place"), [("limits", ["acme"]), ("resource", ["llm"]), ("system", [])])
def test_who_expects_another_version_changes_nothing(inside: Cli, group: str, place: list[str]) -> None:
    inside(group, "set", *place, "rpm=1/day", "--expected-version", "0")
    for version in ("0", "7"):
        message = inside.error(group, "set", *place, "rpm=2/day", "--expected-version", version)
        assert "changed by someone else" in message
        assert "changed by someone else" in inside.error(group, "delete", *place, "--expected-version", version)
    inside(group, "set", *place, "rpm=3/day", "--expected-version", "1")
    assert inside.json(group, "get", *place)["limits"][0]["limit"] == "3/day"
    assert inside.json(group, "delete", *place, "--expected-version", "2")["deleted"] is True


def test_system_limits_carry_the_policy_for_outages(inside: Cli) -> None:
    inside("system", "set", "rpm=20/minute", "--on-unavailable", "allow")
    assert inside.json("system", "get")["on_unavailable"] == "allow"
    assert "when the store is away: allow" in inside("system", "get").stdout
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

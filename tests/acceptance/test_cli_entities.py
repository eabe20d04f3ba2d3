"""`headgate entity`."""

from __future__ import annotations

import pytest

pytest.importorskip("click")

from cli_helpers import Cli


def test_an_entity_is_created_shown_and_deleted(inside: Cli) -> None:
    inside("entity", "create", "acme", "--name", "Acme Ltd", "--metadata", "tier=gold", "--metadata", "note=a=b")
    assert "below acme" in inside("entity", "create", "key", "--parent", "acme", "--cascade").stdout
    inside("resource", "set", "llm", "rpm=60/minute")
    acme = inside.json("entity", "get", "acme")
    assert (acme["name"], acme["metadata"]) == ("Acme Ltd", {"tier": "gold", "note": "a=b"})
    key = inside.json("entity", "get", "key", "--resource", "llm")
    assert (key["cascade"], key["parents"], key["effective"]["source"]) == (True, ["acme"], "resource")
    assert "rpm=60/minute (resource)" in inside("entity", "get", "key", "--resource", "llm").stdout
    assert [child["entity_id"] for child in inside.json("entity", "children", "acme")] == ["key"]
    assert "key has no children" in inside("entity", "children", "key").stdout
    assert "has children (key)" in inside.error("entity", "delete", "acme", "--yes")
    assert "deleted: key" in inside("entity", "delete", "key", "--yes").stdout
    assert inside.json("entity", "delete", "acme", "--yes")["deleted"]
    assert "'headgate entity create acme'" in inside.error("entity", "get", "acme")
    assert "does not exist" in inside.error("entity", "children", "acme")


def test_all_limits_of_an_entity_are_shown(inside: Cli) -> None:
    inside("entity", "create", "acme")
    inside("limits", "set", "acme", "rpm=5/hour")
    inside("limits", "set", "acme", "rpm=7/hour", "--resource", "llm")
    shown = inside("entity", "get", "acme").stdout
    assert "own limits on every resource  rpm=5/hour" in shown
    assert "own limits on llm             rpm=7/hour" in shown
    found = inside.json("entity", "get", "acme")
    assert [limit["limit"] for limit in found["limits"]] == ["5/hour"]
    assert [limit["limit"] for limit in found["resources"]["llm"]] == ["7/hour"]


def test_what_is_given_is_changed_and_the_rest_is_kept(inside: Cli) -> None:
    inside("entity", "create", "acme")
    inside("entity", "create", "key", "--name", "Key", "--parent", "acme", "--cascade", "--metadata", "tier=gold")
    assert "now version 2" in inside("entity", "update", "key", "--name", "Other").stdout
    changed = inside.json("entity", "update", "key", "--no-cascade", "--expected-version", "2")
    assert (changed["name"], changed["parent_id"], changed["cascade"]) == ("Other", "acme", False)
    assert changed["metadata"] == {"tier": "gold"}
    changed = inside.json("entity", "update", "key", "--metadata", "plan=pro", "--no-parent", "--no-name")
    assert (changed["name"], changed["parent_id"], changed["metadata"]) == (None, None, {"plan": "pro"})
    assert inside.json("entity", "update", "key", "--no-metadata", "--cascade")["metadata"] == {}
    assert "changed by someone else" in inside.error(
        "entity", "update", "key", "--name", "Late", "--expected-version", "2"
    )
    assert "specify what to change" in inside.error("entity", "update", "key")
    assert "contradict" in inside.error("entity", "update", "key", "--parent", "acme", "--no-parent")
    assert "'nobody' does not exist" in inside.error("entity", "update", "key", "--parent", "nobody")


def test_the_list_of_entities_goes_through_every_page(inside: Cli) -> None:
    assert "no entities" in inside("entity", "list").stdout
    with inside.limiter() as limiter:
        for number in range(120):
            limiter.create_entity(f"entity-{number:03}")
        limiter.create_entity("other", name="Another")
    found = inside.json("entity", "list")
    assert [one["entity_id"] for one in found] == [*(f"entity-{number:03}" for number in range(120)), "other"]
    assert "Another" in inside("entity", "list", "--prefix", "oth").stdout
    assert [one["entity_id"] for one in inside.json("entity", "list", "--prefix", "entity-11")] == [
        f"entity-{number:03}" for number in range(110, 120)
    ]


def test_deleting_needs_a_yes(cli: Cli, inside: Cli) -> None:
    inside("entity", "create", "acme")
    assert "--yes" in cli.error("entity", "delete", "acme")
    for reply, code, end in (("n\n", 1, "nothing was deleted"), ("y\n", 0, "deleted: acme")):
        with cli.terminal("entity", "delete", "acme") as terminal:
            terminal.see("Delete acme with its limits and buckets?")
            terminal.type(reply)
            assert terminal.end() == code
            assert end in terminal.seen

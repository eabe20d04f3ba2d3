"""`headgate audit`: every change that the command makes is there, with who made it."""

from __future__ import annotations

from getpass import getuser

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

CHANGES = [
    ("entity.created", ("entity", "create", "acme", "--name", "Acme")),
    ("entity.updated", ("entity", "update", "acme", "--name", "Other")),
    ("limits.set", ("limits", "set", "acme", "rpm=100/minute", "--resource", "llm")),
    ("buckets.penalized", ("penalize", "acme", "llm", "--seconds", "20")),
    ("buckets.reset", ("reset", "acme", "llm")),
    ("limits.deleted", ("limits", "delete", "acme", "--resource", "llm", "--yes")),
    ("entity.deleted", ("entity", "delete", "acme", "--yes")),
    ("resource_defaults.set", ("resource", "set", "llm", "rpm=60/minute")),
    ("resource_defaults.deleted", ("resource", "delete", "llm", "--yes")),
    ("system_defaults.set", ("system", "set", "rpm=60/minute", "--on-unavailable", "allow")),
    ("system_defaults.deleted", ("system", "delete", "--yes")),
]
OF_ACME = [action for action, _ in CHANGES[:7]]
OF_NAMESPACES = [
    ("namespace.registered", ("namespace", "register", "blue")),
    ("namespace.deleted", ("namespace", "delete", "blue", "--yes")),
    ("namespace.recovered", ("namespace", "recover", "blue")),
    ("namespace.deleted", ("namespace", "delete", "blue", "--yes")),
    ("namespace.purged", ("namespace", "purge", "blue", "--confirm", "blue")),
]


def test_every_change_is_told_with_who_made_it_the_newest_first(inside: Cli) -> None:
    for number, (_, arguments) in enumerate([*CHANGES, *OF_NAMESPACES]):
        inside(*arguments, "--actor", f"person-{number}")
    events = inside.json("audit")["events"]
    assert [event["action"] for event in reversed(events)] == [action for action, _ in CHANGES]
    assert [event["actor"] for event in reversed(events)] == [f"person-{number}" for number in range(len(CHANGES))]
    assert [one["action"] for one in reversed(inside.json("audit", "--entity", "acme")["events"])] == OF_ACME
    told = [one for one in reversed(inside.json("audit", "--namespaces")["events"]) if one["namespace"] == "blue"]
    assert [one["action"] for one in told] == [action for action, _ in OF_NAMESPACES]
    assert [one["actor"] for one in told] == [f"person-{len(CHANGES) + number}" for number in range(len(OF_NAMESPACES))]

    shown = inside("audit").stdout
    assert shown.count("person-") == len(CHANGES)
    for change in ("name: Acme -> Other", "rpm: 100/minute", "seconds: 20", "on_unavailable: allow"):
        assert f"\n    {change}\n" in shown
    assert "person-7   resource_defaults.set      everyone on llm\n" in shown
    assert "namespace.purged" in inside("audit", "--namespaces").stdout


def test_page_by_page_every_event_comes_once(inside: Cli) -> None:
    for _, arguments in CHANGES:
        inside(*arguments)
    everything = inside.json("audit")["events"]
    found, cursor = [], None
    while True:
        page = inside.json("audit", "--limit", "3", *(["--cursor", cursor] if cursor else []))
        found += page["events"]
        cursor = page["cursor"]
        if cursor is None:
            break
        assert len(page["events"]) == 3
    assert found == everything
    assert "more events: --cursor " in inside("audit", "--limit", "3").stdout


def test_who_is_said_to_have_made_a_change(inside: Cli) -> None:
    inside("system", "set", "rpm=1/day")
    inside("system", "set", "rpm=2/day", HEADGATE_ACTOR="ci")
    inside("system", "set", "rpm=3/day", "--actor", "alice", HEADGATE_ACTOR="ci")
    inside("system", "set", "rpm=3/day", "--actor", "bob")  # which is no change
    assert [event["actor"] for event in inside.json("audit")["events"]] == ["alice", "ci", getuser()]


def test_audit_of_an_unchanged_store_says_so_and_is_an_empty_list(inside: Cli) -> None:
    assert inside("audit").stdout == "no events\n"
    assert inside.json("audit", "--entity", "nobody") == {"events": [], "cursor": None}

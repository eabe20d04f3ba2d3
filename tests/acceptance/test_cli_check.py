"""`headgate check`."""

from __future__ import annotations

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit


def test_check_takes_what_it_allows_and_says_when_to_come_back(cli: Cli, inside: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=3", "--limit", "rpm=5/hour")
    first = cli(*arguments)
    assert first.stdout.startswith("allowed: me on api\n")
    assert "5/hour" in first.stdout
    second = inside.json(*arguments, code=1)
    assert not second["allowed"]
    assert 0 < second["retry_after_seconds"] <= 720
    (limit,) = second["limits"]
    assert (limit["limit_name"], limit["available"], limit["capacity"], limit["requested"]) == ("rpm", 2, 5, 3)
    assert limit["exceeded"]
    assert "retry after" in inside(*arguments, code=1).stdout


def test_check_of_nothing_passes_unless_the_limit_is_in_debt(inside: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=0", "--limit", "rpm=5/hour")
    with inside.limiter() as limiter:
        limiter.adjust("me", "api", {"rpm": 5}, [Limit.per_hour("rpm", 5)])
        assert inside.json(*arguments)["limits"][0]["available"] == 0
        assert inside.json(*arguments, "--dry-run")["allowed"]
        limiter.adjust("me", "api", {"rpm": 5}, [Limit.per_hour("rpm", 5)])
    for more in ((), ("--dry-run",)):
        refused = inside.json(*arguments, *more, code=1)
        assert 3500 < refused["retry_after_seconds"] <= 3600


def test_check_of_more_than_the_capacity_never_passes(inside: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=6", "--limit", "rpm=5/hour")
    assert "never" in inside(*arguments, code=1).stdout
    assert inside.json(*arguments, code=1)["retry_after_seconds"] is None


def test_check_is_all_or_nothing_and_reads_decimals(inside: Cli) -> None:
    limits = ("--limit", "rpm=10/hour", "--limit", "usd=1/day")
    refused = inside.json("check", "me", "api", "--consume", "rpm=1", "--consume", "usd=1.5", *limits, code=1)
    assert [limit["exceeded"] for limit in refused["limits"]] == [False, True]
    allowed = inside.json("check", "me", "api", "--consume", "rpm=10", "--consume", "usd=0.25", *limits)
    assert [limit["available"] for limit in allowed["limits"]] == [0, 0]
    assert allowed["limits"][1]["requested"] == 0.25


def test_check_uses_the_stored_limits_and_those_of_ancestors(inside: Cli) -> None:
    with inside.limiter() as limiter:
        limiter.create_entity("acme")
        limiter.create_entity("key", parent_id="acme", cascade=True)
        limiter.set_system_defaults([Limit.per_hour("rpm", 5)])
    assert "acme" in inside("check", "key", "llm", "--consume", "rpm=2").stdout
    found = inside.json("check", "key", "llm", "--consume", "rpm=2")
    assert [(limit["entity_id"], limit["available"]) for limit in found["limits"]] == [("key", 1), ("acme", 1)]


def test_dry_run_takes_nothing(inside: Cli) -> None:
    arguments = ("check", "me", "api", "--limit", "rpm=5/hour", "--limit", "tpm=100/hour", "--dry-run")
    for _ in range(2):
        looked = inside.json(*arguments, "--consume", "rpm=4")
        assert looked["allowed"]
        assert looked["dry_run"]
        assert [(limit["limit_name"], limit["available"]) for limit in looked["limits"]] == [("rpm", 5)]
    inside("check", "me", "api", "--limit", "rpm=5/hour", "--consume", "rpm=4")
    assert "nothing was taken" in inside(*arguments, "--consume", "rpm=4", code=1).stdout
    everything = inside.json(*arguments)
    assert [(limit["limit_name"], limit["available"]) for limit in everything["limits"]] == [("rpm", 1), ("tpm", 100)]

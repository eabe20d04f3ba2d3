"""`headgate buckets`, `headgate reset`, `headgate penalize`."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

pytest.importorskip("click")

from cli_helpers import COMMAND, Cli

from headgate import Limit


def test_buckets_are_shown_until_they_are_full(inside: Cli) -> None:
    with inside.limiter() as limiter:
        limits = [Limit.per_hour("rpm", 100, burst=150)]
        limiter.try_acquire("acme", "llm", {"rpm": 50}, limits)
        limiter.try_acquire("acme", "search", {"rpm": 1}, limits)
        limiter.penalize("acme", "search", seconds=600, limits=limits)
    shown = inside("buckets", "acme").stdout
    assert "100/hour burst 150" in shown
    assert "100 of 150" in shown
    assert "━" in shown
    assert "blocked for" in shown
    (bucket,) = inside.json("buckets", "acme", "--resource", "llm")
    assert (bucket["available"], bucket["capacity"], bucket["limit"]) == (100, 150, "100/hour burst 150")
    assert 1700 < bucket["full_in_seconds"] <= 1800
    assert inside("buckets", "nobody").stdout == "all buckets are full\n"
    assert inside.json("buckets", "nobody") == []


def test_slots_are_set_checked_and_shown(inside: Cli) -> None:
    inside("limits", "set", "openai", "parallel=2 concurrent ttl 90s", "rpm=500/minute", "--resource", "gpt-4o")
    limits = inside.json("limits", "get", "openai", "--resource", "gpt-4o")["limits"]
    assert [limit["limit"] for limit in limits] == ["2 concurrent ttl 90s", "500/minute"]
    wish = ["openai", "gpt-4o", "--consume", "parallel=1", "--consume", "rpm=1"]
    assert inside("check", *wish).stdout.startswith("allowed: openai on gpt-4o\n")
    with inside.limiter() as limiter, limiter.slot("openai#gpt-4o", {"parallel": 2}):
        (slots,) = [one for one in inside.json("buckets", "openai") if one["limit_name"] == "parallel"]
        assert (slots["available"], slots["capacity"], slots["limit"]) == (0, 2, "2 concurrent ttl 90s")
        assert "refused" in inside("check", *wish, code=1).stdout
    assert inside.json("check", *wish)["allowed"], "it came back, from here and from the shell"


def test_watching_on_a_terminal_until_interrupted(cli: Cli) -> None:
    with cli.limiter() as limiter, cli.terminal("buckets", "acme", "--watch", "--every", "0.1") as terminal:
        terminal.see("all buckets are full")
        limiter.try_acquire("acme", "llm", {"rpm": 40}, [Limit.per_day("rpm", 50)])
        terminal.see("10 of 50")
        limiter.try_acquire("acme", "llm", {"rpm": 7}, [Limit.per_day("rpm", 50)])
        terminal.see("3 of 50")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.seen


@pytest.mark.parametrize("as_json", [True, False])
def test_watch_in_a_pipe_prints_one_report_after_the_other(cli: Cli, as_json: bool) -> None:
    with cli.limiter() as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 40}, [Limit.per_day("rpm", 50)])
    arguments = ["buckets", "acme", "--watch", "--every", "0.1", *(["--json"] if as_json else [])]
    environment = cli.environment | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(8)]  # a table is a head, a rule, a row and a blank
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    if as_json:
        assert [json.loads(line)[0]["available"] for line in lines] == [10] * 8
    else:
        assert "".join(lines).count("10 of 50") == 2


def test_reset_makes_buckets_full_again(inside: Cli) -> None:
    inside("system", "set", "rpm=5/hour")
    inside("check", "acme", "llm", "--consume", "rpm=5")
    inside("check", "acme", "llm", "--consume", "rpm=1", code=1)
    assert inside("reset", "acme", "llm").stdout == "filled: acme on llm\n"
    assert inside.json("check", "acme", "llm", "--consume", "rpm=1")["limits"][0]["available"] == 4
    assert inside.json("reset", "acme", "llm") == {"entity_id": "acme", "resource": "llm", "reset": True}


def test_commands_agree_about_limits_that_are_kept_in_code(inside: Cli) -> None:
    in_code = [Limit.per_day("tpm", 10)]
    with inside.limiter() as program:
        assert program.try_acquire("acme", "llm", {"tpm": 1}, in_code)
        assert "in use, from code: tpm" in inside("limits", "resolve", "acme", "llm").stdout
        assert [bucket["limit"] for bucket in inside.json("buckets", "acme")] == ["10/day"]
        inside("penalize", "acme", "llm", "--seconds", "60")
        assert not program.try_acquire("acme", "llm", {"tpm": 1}, in_code)
        inside("reset", "acme", "llm")
        assert program.try_acquire("acme", "llm", {"tpm": 1}, in_code)
        inside("system", "set", "tpm=20/day")
        assert inside.json("limits", "resolve", "acme", "llm")["in_code"] == []


def test_penalize_takes_tokens_or_blocks_and_refuses_bad_amounts(inside: Cli) -> None:
    inside("system", "set", "rpm=8/day")
    assert "25% of the tokens are left" in inside("penalize", "acme", "llm", "--factor", "0.25").stdout
    (bucket,) = inside.json("buckets", "acme")
    assert (bucket["available"], bucket["blocked_for_seconds"]) == (2, 0)
    assert inside.json("penalize", "acme", "llm", "--seconds", "60")["seconds"] == 60
    (bucket,) = inside.json("buckets", "acme")
    assert 50 < bucket["blocked_for_seconds"] <= 60
    assert "--seconds 30" in inside.error("penalize", "acme", "llm")
    assert "factor" in inside.error("penalize", "acme", "llm", "--factor", "2")

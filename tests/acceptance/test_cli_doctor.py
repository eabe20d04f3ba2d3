"""`headgate doctor`: what it finds, on stores that are well and on stores that are not."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("click")

from cli_helpers import Cli, Inside

from headgate import Limit
from headgate.cli.doctor import checks
from headgate.testing.servers.redis import RedisServer
from local_servers.dynamodb import Engine
from local_servers.postgres import PostgresServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a busy machine is not slow."""
    monkeypatch.setattr(checks, "_SLOW_MS", 60_000)


def _verdicts(found: dict[str, Any]) -> dict[str, str]:
    """The worst of each check."""
    order = ("ok", "warn", "fail")
    worst: dict[str, str] = {}
    for finding in found["findings"]:
        check, verdict = finding["check"], finding["verdict"]
        worst[check] = max(worst.get(check, "ok"), verdict, key=order.index)
        assert verdict == "ok" or finding["advice"]
    return worst


def _advice(found: dict[str, Any], check: str) -> str:
    return " ".join(finding["found"] + finding["advice"] for finding in found["findings"] if finding["check"] == check)


def test_doctor_of_a_healthy_store_finds_nothing_and_changes_nothing(inside: Cli) -> None:
    inside("system", "set", "rpm=5/hour")
    before = inside.json("namespace", "get", "default")
    found = inside.json("doctor")
    assert found["ok"]
    verdicts = _verdicts(found)
    expected = {
        "headgate",
        "store",
        "file",
        "journal",
        "disk",
        "clock",
        "permissions",
        "latency",
        "namespace",
        "limits",
    }
    assert expected <= set(verdicts)
    assert set(verdicts.values()) == {"ok"}
    assert inside("doctor").stdout.endswith("\nno problems found\n")
    assert inside.json("namespace", "get", "default") == before
    assert [one["name"] for one in inside.json("namespace", "list")] == ["default"]
    assert [one["namespace"] for one in inside.json("audit", "--namespaces")["events"]] == ["default"]
    assert inside.json("namespace", "orphans") == []


def test_a_slow_store_is_a_warning_with_advice(inside: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SLOW_MS", 0)
    found = inside.json("doctor")
    assert found["ok"], "a warning is no failure"
    assert _verdicts(found)["latency"] == "warn"
    assert "run closer to the store" in _advice(found, "latency")


def test_read_only_leaves_no_trace(inside: Cli) -> None:
    found = inside.json("doctor", "--read-only")
    assert found["ok"]
    assert "permissions" not in _verdicts(found)
    assert "not registered" in _advice(found, "namespace")
    assert inside.json("namespace", "list") == []


def test_limits_of_an_entity_on_a_resource_without_defaults_are_checked(inside: Cli) -> None:
    inside("limits", "set", "acme", "rpm=5/minute", "usd=0.5/day", "--resource", "llm")
    found = inside.json("doctor")
    assert [one["found"] for one in found["findings"] if one["check"] == "limits"] == [
        "stored at 1 level",
        "usd of acme on llm is 0.5/day: a request for 1 never passes",
    ]


def test_limits_that_cannot_work_are_a_warning_with_advice(inside: Cli) -> None:
    inside("namespace", "register", "default")
    assert "headgate system set" in _advice(inside.json("doctor"), "limits")
    inside("limits", "set", "acme", "usd=0.5/day", "--resource", "llm")
    inside("resource", "set", "llm", "rpm=5/hour")
    found = inside.json("doctor")
    assert found["ok"], "a warning is no failure"
    assert _verdicts(found)["limits"] == "warn"
    assert "usd of acme on llm is 0.5/day: a request for 1 never passes" in _advice(found, "limits")
    assert "1 warning\n" in inside("doctor").stdout


RULES = """\
rules:
  - {id: chat, path: /chat, cost: {rpm: 1, tpm: 5}}
  - {id: login, path: /login, limits: 5/minute}
  - {id: watch, path: /watch, shadow: true}
"""


def _written(inside: Cli, text: str) -> str:
    path = inside.folder / "rules.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("stored", [True, False])
def test_rules_that_cannot_be_obeyed(inside: Cli, stored: bool) -> None:
    file = _written(inside, RULES)
    given = [] if stored else ["--rules", file]
    if stored:
        inside("apply", "-f", file, "--yes")
    found = inside.json("doctor", *given, code=1)
    assert _verdicts(found)["rules"] == "fail"
    assert "no limits are stored for rule chat" in _advice(found, "rules")
    assert "headgate resource set chat rpm=100/minute" in _advice(found, "rules")
    assert "no limits are stored for rule watch" in _advice(found, "rules")
    assert "login" not in _advice(found, "rules")

    inside("resource", "set", "watch", "rpm=5/minute")
    inside("resource", "set", "chat", "rpm=5/minute")
    found = inside.json("doctor", *given, code=1)
    assert "rule chat costs tpm, but everyone has no such limit" in _advice(found, "rules")
    inside("resource", "set", "chat", "rpm=5/minute", "tpm=1000/minute")
    assert _verdicts(inside.json("doctor", *given))["rules"] == "ok"


def test_rule_whose_cost_names_a_limit_that_an_entity_lacks(inside: Cli) -> None:
    file = _written(inside, RULES)
    inside("resource", "set", "chat", "rpm=5/minute", "tpm=1000/minute")
    inside("resource", "set", "watch", "rpm=5/minute")
    inside("limits", "set", "user:ann", "rpm=2/minute", "--resource", "chat")
    # Where levels are merged by name, it has that of everyone.
    lacks = "tpm" not in {limit["name"] for limit in inside.json("limits", "resolve", "user:ann", "chat")["limits"]}
    found = inside.json("doctor", "--rules", file, code=int(lacks))
    assert ("rule chat costs tpm, of which user:ann has no limit" in _advice(found, "rules")) == lacks


def test_rules_of_a_namespace_that_nobody_has_used(inside: Cli) -> None:
    file = _written(inside, RULES)
    found = inside.json("doctor", "--read-only", "--rules", file, code=1)
    assert "no limits are stored for rule chat" in _advice(found, "rules")
    assert inside.json("namespace", "list") == []


def test_rules_file_with_a_mistake(inside: Cli) -> None:
    file = _written(inside, "rules: [{id: chat, limit: 5/minute}]")
    found = inside.json("doctor", "--rules", file, code=1)
    assert "did you mean 'limits'?" in _advice(found, "rules")


def test_a_namespace_that_was_deleted(inside: Cli) -> None:
    inside("namespace", "register", "blue")
    inside("namespace", "delete", "blue", "--yes")
    found = inside.json("doctor", "--namespace", "blue", code=1)
    assert not found["ok"]
    assert "headgate namespace recover blue" in _advice(found, "namespace")
    shown = inside("doctor", "--namespace", "blue", code=1).stdout
    assert "-> recover it: headgate namespace recover blue" in shown
    assert shown.endswith("1 failed\n")


def test_a_store_that_is_not_there(inside: Cli) -> None:
    found = inside.json("doctor", "--url", "redis://user:hunter2@127.0.0.1:1/0", code=1)
    assert _verdicts(found)["store"] == "fail"
    assert "clock" not in _verdicts(found)
    assert "hunter2" not in str(found)
    assert "start it" in _advice(found, "store")


def test_a_database_that_is_not_set_up(postgres_server: PostgresServer, tmp_path: Path) -> None:
    inside = Inside(tmp_path, f"{postgres_server.url}?schema=made_{uuid4().hex[:12]}")
    found = inside.json("doctor", code=1)
    assert "extra postgres" in _verdicts(found)
    assert "run `headgate setup`" in _advice(found, "store")
    assert "start it" not in _advice(found, "store")
    assert "run `headgate setup`" in inside.error("limits", "get", "acme")
    assert inside("setup").stdout.startswith("ready: postgresql://")
    assert inside.json("setup")["ready"]
    assert inside.json("limits", "get", "acme")["limits"] == []


def test_a_file_that_everybody_may_write(inside: Cli) -> None:
    inside("namespace", "register", "default")
    (inside.folder / "store.db").chmod(0o666)
    assert "chmod o-w" in _advice(inside.json("doctor"), "file")


def test_a_redis_that_forgets_and_a_user_who_may_not(own_redis_server: RedisServer, tmp_path: Path) -> None:
    redis = pytest.importorskip("redis")
    cli = Inside(tmp_path, own_redis_server.url)
    with redis.Redis.from_url(own_redis_server.url) as client:
        client.config_set("appendonly", "yes")
        verdicts = _verdicts(cli.json("doctor"))
        assert (verdicts["memory"], verdicts["persistence"], verdicts["clock"]) == ("ok", "ok", "ok")
        client.config_set("maxmemory", "1gb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        found = cli.json("doctor")
        assert found["ok"]
        assert "maxmemory-policy noeviction" in _advice(found, "memory")
        assert "appendonly yes" in _advice(found, "persistence")
        client.acl_setuser("guest", enabled=True, passwords=["+guest"], keys=["*"], categories=["+@all", "-@scripting"])
        client.acl_setuser(
            "blind", enabled=True, passwords=["+blind"], keys=["*"], categories=["+@all"], commands=["-info"]
        )
        assert client.dbsize() == 0, "it left nothing"
    place = own_redis_server.url.removeprefix("redis://")
    guest = cli.json("doctor", "--url", f"redis://guest:guest@{place}", code=1)
    assert "this user cannot decide" in _advice(guest, "permissions")
    assert "NOPERM" in _advice(guest, "permissions")
    blind = cli.json("doctor", "--url", f"redis://blind:blind@{place}")
    assert "INFO" in _advice(blind, "server")


def test_clocks_that_do_not_agree(stepped_redis_server: RedisServer, tmp_path: Path) -> None:
    cli = Inside(tmp_path, stepped_redis_server.url)
    assert _verdicts(cli.json("doctor"))["clock"] == "ok"
    stepped_redis_server.step_clock(-3600)
    found = cli.json("doctor")
    assert _verdicts(found)["clock"] == "warn"
    assert "3600." in _advice(found, "clock")


@pytest.mark.usefixtures("aws_credentials")
def test_doctor_of_a_dynamodb_table_says_how_to_make_it(ministack: Engine, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    cli = Inside(tmp_path, ministack.url("doctor"))
    assert "headgate aws deploy" in _advice(cli.json("doctor", code=1), "store")
    with cli.limiter(store_timeout=10) as limiter:
        limiter.setup()
    verdicts = _verdicts(cli.json("doctor"))
    assert {"table", "indexes", "expiry", "stream", "clock", "permissions", "latency"} <= set(verdicts)
    assert set(verdicts.values()) == {"ok"}
    assert cli.json("namespace", "list") == cli.json("namespace", "orphans") == []
    with closing(ministack.client()) as client:
        client.update_table(TableName="doctor", StreamSpecification={"StreamEnabled": False})
        client.update_time_to_live(
            TableName="doctor", TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"}
        )
    verdicts = _verdicts(cli.json("doctor", "--read-only"))
    assert (verdicts["table"], verdicts["expiry"], verdicts["stream"]) == ("ok", "warn", "warn")


@pytest.fixture
def with_corrupt_data(cli: Cli) -> Cli:
    """A bucket of bob's, and an entity."""
    with cli.limiter() as limiter:
        for entity_id in ("ann", "bob"):
            limiter.create_entity(entity_id)
            limiter.try_acquire(entity_id, "chat", {"rpm": 3}, [Limit.per_hour("rpm", 10)])
    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE buckets SET period_ms = 0 WHERE key = 'default/bob#chat'")
        connection.execute("UPDATE records SET value = '{' WHERE key = 'default/entity#ann'")
    return cli


def test_corrupt_data_fails_and_repair_removes_it(with_corrupt_data: Cli) -> None:
    cli = with_corrupt_data
    found = cli.json("doctor", code=1)
    assert _verdicts(found)["stored data"] == "fail"
    said = _advice(found, "stored data")
    assert "buckets of bob on chat" in said
    assert "record default/entity#ann" in said
    assert "headgate doctor --repair" in said
    assert "there is no terminal to ask for confirmation: use --yes" in cli.error("doctor", "--repair")
    done = cli("doctor", "--repair", "--yes")
    assert "removed: buckets of bob on chat, which start full" in done.stdout
    assert "removed: record default/entity#ann" in done.stdout
    assert _verdicts(cli.json("doctor"))["stored data"] == "ok"
    again = cli.json("doctor", "--repair", "--yes")
    assert again["repaired"] == []
    assert [one["action"] for one in cli.json("audit")["events"]].count("state.repaired") == 2
    assert [one["entity_id"] for one in cli.json("entity", "list")] == ["bob"]


def test_repair_asks_first_and_a_no_removes_nothing(with_corrupt_data: Cli) -> None:
    with with_corrupt_data.terminal("doctor", "--repair") as terminal:
        terminal.see("Remove them? Buckets will start full")
        terminal.type("n\n")
        assert terminal.end() == 1
    lines = [line.strip() for line in terminal.seen.splitlines()]
    assert any(line.startswith("record 'default/entity#ann' is corrupt") for line in lines), terminal.seen
    assert "nothing was removed" in lines
    assert "\\n" not in terminal.seen
    assert _verdicts(with_corrupt_data.json("doctor", code=1))["stored data"] == "fail"


def test_lists_warn_of_what_is_corrupt_and_show_the_rest(with_corrupt_data: Cli) -> None:
    done = with_corrupt_data("entity", "list", "--json")
    assert [one["entity_id"] for one in json.loads(done.stdout)] == ["bob"]
    assert "warning: record 'default/entity#ann' is corrupt" in done.stderr
    assert "warning: the state of 'bob' on 'chat' is corrupt" in with_corrupt_data("buckets", "bob").stderr


def test_repair_and_read_only_exclude_each_other(cli: Cli) -> None:
    assert "use one of them" in cli.error("doctor", "--repair", "--read-only")


def test_a_budget_is_no_bucket(inside: Cli) -> None:
    inside("limits", "set", "acme", "usd=25/day", "rpd=25/day", "cost=5/hour", "budget=500/month resets UTC")
    found = inside.json("doctor")
    assert found["ok"]
    assert "usd of acme on every resource is 25/day, a bucket: within one period up to 50 pass" in _advice(
        found, "limits"
    )
    assert sum(finding["check"] == "limits" and finding["verdict"] == "warn" for finding in found["findings"]) == 1


def test_limits_that_this_machine_cannot_read_are_told_and_kept(cli: Cli, tmp_path: Path) -> None:
    """A machine without a database of time zones, or without the package for cron expressions."""
    cli("limits", "set", "acme", "n=5/day resets Europe/Berlin")
    cli("limits", "set", "globex", "n=5/cron 0 6 * * * resets UTC")
    cli("limits", "set", "initech", "n=5/day resets UTC")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "cronsim.py").write_text("raise ModuleNotFoundError('cronsim')")
    (bare / "tzdata").mkdir()
    (bare / "tzdata" / "__init__.py").touch()
    machine = {"PYTHONPATH": str(bare), "PYTHONTZPATH": str(bare)}
    found = cli.json("doctor", code=1, **machine)
    assert _verdicts(found)["time zones"] == "warn"
    told = _advice(found, "limits")
    assert "limits of acme on every resource cannot be used here: unknown time zone 'Europe/Berlin'" in told
    assert "limits of globex on every resource cannot be used here: cron expressions need a package" in told
    assert cli.json("doctor", "--repair", "--yes", code=1, **machine)["repaired"] == []
    refused = cli("check", "acme", "x", "--consume", "n=1", code=2, **machine)
    assert "pip install tzdata" in refused.stderr
    assert cli.json("check", "initech", "x", "--consume", "n=1", **machine)["allowed"]
    assert cli.json("limits", "get", "acme")["limits"][0]["limit"] == "5/day resets Europe/Berlin"

"""The command as people run it: a process, its output, its exit code."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("click")

import click

from headgate import Limit, SyncRateLimiter, __version__
from headgate.cli.app import app, run
from headgate.cli.output import duration, printable
from headgate.cli.reference import reference

DOCS = Path(__file__).parents[2] / "docs"


class Cli:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self.environment = kept | {"HEADGATE_URL": self.url}

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli", *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        return json.loads(self(*arguments, "--json", code=code, **environment).stdout)

    def error(self, *arguments: str, code: int = 2) -> str:
        done = self(*arguments, code=code)
        assert done.stdout == ""
        first = done.stderr.splitlines()[0]
        assert first.startswith("error: ")
        return first.removeprefix("error: ")

    def limiter(self) -> SyncRateLimiter:
        return SyncRateLimiter(self.url)


class Inside(Cli):
    """The same without a process for each command: for tests of many, where a process adds nothing."""

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with patch.dict(os.environ, self.environment | environment), redirect_stdout(out), redirect_stderr(err):
            assert run(arguments) == code
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def inside(tmp_path: Path) -> Cli:
    return Inside(tmp_path)


# check


def test_check_takes_what_it_allows_and_says_when_to_come_back(cli: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=3", "--limit", "rpm=5/hour")
    first = cli(*arguments)
    assert first.stdout.startswith("allowed: me on api\n")
    assert "5/hour" in first.stdout
    second = cli.json(*arguments, code=1)
    assert not second["allowed"]
    assert 0 < second["retry_after_seconds"] <= 720
    (limit,) = second["limits"]
    assert (limit["limit_name"], limit["available"], limit["capacity"], limit["requested"]) == ("rpm", 2, 5, 3)
    assert limit["exceeded"]
    assert "retry after" in cli(*arguments, code=1).stdout


def test_check_of_more_than_the_capacity_never_passes(cli: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=6", "--limit", "rpm=5/hour")
    assert "never" in cli(*arguments, code=1).stdout
    assert cli.json(*arguments, code=1)["retry_after_seconds"] is None


def test_check_is_all_or_nothing_and_reads_decimals(cli: Cli) -> None:
    limits = ("--limit", "rpm=10/hour", "--limit", "usd=1/day")
    refused = cli.json("check", "me", "api", "--consume", "rpm=1", "--consume", "usd=1.5", *limits, code=1)
    assert [limit["exceeded"] for limit in refused["limits"]] == [False, True]
    allowed = cli.json("check", "me", "api", "--consume", "rpm=10", "--consume", "usd=0.25", *limits)
    assert [limit["available"] for limit in allowed["limits"]] == [0, 0]
    assert allowed["limits"][1]["requested"] == 0.25


def test_check_uses_the_stored_limits_and_those_of_ancestors(cli: Cli) -> None:
    with cli.limiter() as limiter:
        limiter.create_entity("acme")
        limiter.create_entity("key", parent_id="acme", cascade=True)
        limiter.set_system_defaults([Limit.per_hour("rpm", 5)])
    assert "acme" in cli("check", "key", "llm", "--consume", "rpm=2").stdout
    found = cli.json("check", "key", "llm", "--consume", "rpm=2")
    assert [(limit["entity_id"], limit["available"]) for limit in found["limits"]] == [("key", 1), ("acme", 1)]


def test_dry_run_takes_nothing(cli: Cli) -> None:
    arguments = ("check", "me", "api", "--limit", "rpm=5/hour", "--limit", "tpm=100/hour", "--dry-run")
    for _ in range(2):
        looked = cli.json(*arguments, "--consume", "rpm=4")
        assert looked["allowed"]
        assert looked["dry_run"]
        assert [(limit["limit_name"], limit["available"]) for limit in looked["limits"]] == [("rpm", 5)]
    cli("check", "me", "api", "--limit", "rpm=5/hour", "--consume", "rpm=4")
    assert "nothing was taken" in cli(*arguments, "--consume", "rpm=4", code=1).stdout
    everything = cli.json(*arguments)
    assert [(limit["limit_name"], limit["available"]) for limit in everything["limits"]] == [("rpm", 1), ("tpm", 100)]


# limits


@pytest.mark.parametrize(
    ("place", "source", "words"),
    [
        (["acme", "--resource", "llm"], "entity", "acme on llm"),
        (["--entity", "acme"], "entity_default", "acme on every resource"),
        (["--resource", "llm"], "resource", "everyone on llm"),
        (["--system"], "system", "everyone on every resource"),
    ],
)
def test_limits_are_set_shown_and_deleted_at_each_level(inside: Cli, place: list[str], source: str, words: str) -> None:
    specs = ["rpm=100/minute", "tpm=10000/minute burst 15000"]
    inside("limits", "set", *place, *specs)
    assert inside("limits", "get", *place).stdout.startswith(f"{words}\n")
    stored = inside.json("limits", "get", *place)
    assert stored["source"] == source
    assert [f"{limit['name']}={limit['limit']}" for limit in stored["limits"]] == specs
    effective = inside.json("limits", "get", "--entity", "acme", "--resource", "llm", "--effective")
    assert (effective["source"], effective["limits"]) == (source, stored["limits"])
    assert words in inside("limits", "delete", *place).stdout
    assert inside.json("limits", "delete", *place)["deleted"] is False
    assert "no limits" in inside("limits", "get", *place).stdout


def test_system_limits_carry_the_policy_for_outages(cli: Cli) -> None:
    cli("limits", "set", "--system", "rpm=20/minute", "--on-unavailable", "allow")
    assert cli.json("limits", "get", "--system")["on_unavailable"] == "allow"
    assert "allow" in cli("limits", "get", "--system").stdout
    message = cli.error("limits", "set", "acme", "rpm=20/minute", "--on-unavailable", "allow")
    assert "--system" in message


def test_limits_list_goes_through_every_page(inside: Cli) -> None:
    with inside.limiter() as limiter:
        limiter.set_system_defaults([Limit.per_day("rpm", 1)])
        for number in range(120):
            limiter.set_limits(f"entity-{number:03}", [Limit.per_day("rpm", 2)], "llm")
            limiter.set_resource_defaults(f"resource-{number:03}", [Limit.per_day("rpm", 3)])
        limiter.set_limits("acme", [Limit.per_day("rpm", 4)])
    everything = inside.json("limits", "list")
    assert [level["source"] for level in everything] == ["system", *["resource"] * 120, "entity_default"]
    on_llm = inside.json("limits", "list", "--resource", "llm")
    assert [level["entity_id"] for level in on_llm] == [f"entity-{number:03}" for number in range(120)]
    assert "entity-119 on llm" in inside("limits", "list", "--resource", "llm").stdout


# entity


def test_an_entity_is_created_shown_and_deleted(inside: Cli) -> None:
    inside("entity", "create", "acme", "--name", "Acme Ltd", "--metadata", "tier=gold", "--metadata", "note=a=b")
    assert "below acme" in inside("entity", "create", "key", "--parent", "acme", "--cascade").stdout
    inside("limits", "set", "--resource", "llm", "rpm=60/minute")
    acme = inside.json("entity", "show", "acme")
    assert (acme["name"], acme["metadata"]) == ("Acme Ltd", {"tier": "gold", "note": "a=b"})
    key = inside.json("entity", "show", "key", "--resource", "llm")
    assert (key["cascade"], key["parents"], key["effective"]["source"]) == (True, ["acme"], "resource")
    assert "rpm=60/minute (source: resource)" in inside("entity", "show", "key", "--resource", "llm").stdout
    assert [child["entity_id"] for child in inside.json("entity", "children", "acme")] == ["key"]
    assert "key has no children" in inside("entity", "children", "key").stdout
    assert "has children (key)" in inside.error("entity", "delete", "acme", "--yes")
    assert "deleted: key" in inside("entity", "delete", "key", "--yes").stdout
    assert inside.json("entity", "delete", "acme", "--yes")["deleted"]
    assert "'headgate entity create acme'" in inside.error("entity", "show", "acme")
    assert "does not exist" in inside.error("entity", "children", "acme")


def test_deleting_needs_a_yes(cli: Cli) -> None:
    cli("entity", "create", "acme")
    assert "--yes" in cli.error("entity", "delete", "acme")
    for reply, code in ((b"n\n", 1), (b"y\n", 0)):
        terminal, keyboard = pty.openpty()
        os.write(terminal, reply)
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli", "entity", "delete", "acme"],
            env=cli.environment,
            stdin=keyboard,
            capture_output=True,
            text=True,
            timeout=60,
        )
        os.close(terminal)
        os.close(keyboard)
        assert done.returncode == code
        assert done.stdout == ("nothing was deleted\n" if code else "deleted: acme\n")


# buckets


def test_buckets_are_shown_until_they_are_full(cli: Cli) -> None:
    with cli.limiter() as limiter:
        limits = [Limit.per_hour("rpm", 100, burst=150)]
        limiter.try_acquire("acme", "llm", {"rpm": 50}, limits)
        limiter.try_acquire("acme", "search", {"rpm": 1}, limits)
        limiter.penalize("acme", "search", seconds=600, limits=limits)
    shown = cli("buckets", "acme").stdout
    assert "100/hour burst 150" in shown
    assert "━" in shown
    assert "blocked for" in shown
    (bucket,) = cli.json("buckets", "acme", "--resource", "llm")
    assert (bucket["available"], bucket["capacity"], bucket["limit"]) == (100, 150, "100/hour burst 150")
    assert 1700 < bucket["full_in_seconds"] <= 1800
    assert cli("buckets", "nobody").stdout == "no buckets: all are full\n"
    assert cli.json("buckets", "nobody") == []


def test_slots_in_the_shell(cli: Cli) -> None:
    cli("limits", "set", "openai", "parallel=2 concurrent ttl 90s", "rpm=500/minute", "--resource", "gpt-4o")
    limits = cli.json("limits", "get", "openai", "--resource", "gpt-4o")["limits"]
    assert [limit["limit"] for limit in limits] == ["2 concurrent ttl 90s", "500/minute"]
    wish = ["openai", "gpt-4o", "--consume", "parallel=1", "--consume", "rpm=1"]
    assert cli("check", *wish).stdout.startswith("allowed: openai on gpt-4o\n")
    with cli.limiter() as limiter, limiter.slot("openai#gpt-4o", {"parallel": 2}):
        (slots,) = [one for one in cli.json("buckets", "openai") if one["limit_name"] == "parallel"]
        assert (slots["available"], slots["capacity"], slots["limit"]) == (0, 2, "2 concurrent ttl 90s")
        assert "refused" in cli("check", *wish, code=1).stdout
    assert cli.json("check", *wish)["allowed"], "it came back, from here and from the shell"


# reconcile


COUNTS = ["buckets", "leases", "records", "restored"]


def test_reconcile_lets_go_of_what_the_dead_hold_and_of_what_is_not_needed(cli: Cli) -> None:
    with cli.limiter() as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 1}, [Limit.custom("rpm", 1, 1, 0.001)])
        limiter.try_acquire("acme", "gpu", {"parallel": 1}, [Limit.concurrent("parallel", 1, ttl=0.001)])
    found = cli.json("reconcile")
    assert sorted(found) == COUNTS
    assert found["leases"] == 1
    assert cli("reconcile").stdout == "put right: leases 0, restored 0, buckets 0, records 0\n"


def test_reconcile_again_and_again_until_interrupted(cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "reconcile", "--every", "1", "--json"],
        env=cli.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [sorted(json.loads(line)) for line in lines] == [COUNTS] * 2


# The environment


def test_url_and_namespace_come_from_options_or_the_environment(cli: Cli, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    cli("limits", "set", "acme", "rpm=1/day", "--url", other, "--namespace", "blue")
    assert cli.json("limits", "get", "acme")["limits"] == []
    assert cli.json("limits", "get", "acme", HEADGATE_URL=other)["limits"] == []
    assert cli.json("limits", "get", "acme", HEADGATE_URL=other, HEADGATE_NAMESPACE="blue")["limits"] != []


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_DATA_HOME is not looked at elsewhere")
def test_the_default_store_is_a_file_in_the_data_directory(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "a place?"  # not yet there, and not a plain URL
    del cli.environment["HEADGATE_URL"]
    cli("limits", "set", "acme", "rpm=1/day", XDG_DATA_HOME=str(data))
    assert (data / "headgate" / "headgate.db").is_file()
    assert cli.json("limits", "get", "acme", XDG_DATA_HOME=str(data))["limits"] != []
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    assert "HEADGATE_URL" in cli("limits", "list", XDG_DATA_HOME=str(blocked), code=2).stderr


# Secrets


def _every_command(entity_id: str, parent_id: str) -> list[tuple[str, ...]]:
    """Each command that takes an entity, so that it succeeds."""
    return [
        ("entity", "create", parent_id),
        ("entity", "create", entity_id, "--parent", parent_id, "--cascade"),
        ("limits", "set", "--entity", entity_id, "rpm=5/hour", "--resource", "llm"),
        ("limits", "set", parent_id, "rpm=50/hour"),
        ("limits", "get", entity_id, "--resource", "llm", "--effective"),
        ("limits", "list"),
        ("limits", "list", "--resource", "llm"),
        ("check", entity_id, "llm", "--consume", "rpm=1"),
        ("check", entity_id, "llm", "--dry-run"),
        ("buckets", entity_id),
        ("entity", "show", entity_id, "--resource", "llm"),
        ("entity", "children", parent_id),
        ("entity", "children", entity_id),
        ("limits", "delete", entity_id, "--resource", "llm"),
        ("entity", "delete", entity_id, "--yes"),
    ]


@pytest.mark.parametrize("key", [None, "pepper"])
def test_hashed_ids_are_neither_stored_nor_shown(inside: Cli, key: str | None) -> None:
    secret, parent, environment = "sk/hunter2==", "hunter2 & co", {"HEADGATE_HASH_KEY": key} if key else {}
    with SyncRateLimiter("memory://", hash_entity_ids=key.encode() if key else True) as hashing:
        ids = {hashing.create_entity(entity_id).entity_id: entity_id for entity_id in (secret, parent)}
    for json_flag in ([], ["--json"]):
        found = ""
        for arguments in _every_command(secret, parent):
            done = inside(*arguments, *json_flag, "--hash-entity-ids", **environment)
            found += done.stdout
            assert "hunter2" not in done.stdout + done.stderr
        assert all(entity_id in found for entity_id in ids)
        inside("entity", "delete", parent, "--yes", HEADGATE_HASH_ENTITY_IDS="1", **environment)
    refused = [
        ("entity", "show", "hunter2"),
        ("check", "hunter2", "nothing", "--consume", "rpm=1"),
        ("buckets", "hunter2" * 40),
        ("entity", "create", "hunter2", "--parent", "hunter2/nobody"),
        ("limits", "get", "hunter2", "--entity", "hunter2/other"),
    ]
    for arguments in refused:
        assert "hunter2" not in inside.error(*arguments, "--hash-entity-ids")
    for path in inside.folder.iterdir():
        assert b"hunter2" not in path.read_bytes()


def test_a_hashing_limiter_and_the_command_share_buckets(inside: Cli) -> None:
    secret, limits = "sk/hunter2==", [Limit.per_hour("rpm", 5)]
    with SyncRateLimiter(inside.url, hash_entity_ids=b"pepper") as limiter:
        (status,) = limiter.try_acquire(secret, "api", {"rpm": 2}, limits).statuses
    options = ("--hash-entity-ids", "--limit", "rpm=5/hour", "--consume", "rpm=1")
    (found,) = inside.json("check", secret, "api", *options, HEADGATE_HASH_KEY="pepper")["limits"]
    assert (found["entity_id"], found["available"]) == (status.entity_id, 2)
    assert inside.json("check", secret, "api", *options)["limits"][0]["available"] == 4
    assert inside.json("buckets", status.entity_id)[0]["available"] == 2


@pytest.mark.parametrize("key", ["", "hunter2" * 10])
def test_a_key_that_cannot_be_used(inside: Cli, key: str) -> None:
    done = inside("buckets", "me", "--hash-entity-ids", code=2, HEADGATE_HASH_KEY=key)
    assert "HEADGATE_HASH_KEY must be 1 to 64 bytes" in done.stderr
    assert "hunter2" not in done.stderr
    inside("buckets", "me", HEADGATE_HASH_KEY=key)


# Errors


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["check", "me", "api"], "--consume"),
        (["check", "me", "api", "--consume", "rpm", "--limit", "rpm=1/day"], "NAME=AMOUNT"),
        (["check", "me", "api", "--consume", "rpm=lots", "--limit", "rpm=1/day"], "'lots'"),
        (["check", "me", "api", "--consume", "rpm=NaN", "--limit", "rpm=1/day"], "finite"),
        (["check", "me", "api", "--consume", "rpm=-1", "--limit", "rpm=1/day"], "more than zero"),
        (["check", "me", "api", "--consume", "rpm=1", "--consume", "rpm=1", "--limit", "rpm=1/day"], "twice"),
        (["check", "me", "api", "--consume", "rpm=1", "--limit", "rpm=5/fortnight"], "'5/fortnight'"),
        (["check", "me", "api", "--consume", "tpm=1", "--limit", "rpm=1/day"], "no limit 'tpm'"),
        (["check", "me", "api", "--consume", "rpm=1"], "headgate limits set me rpm=100/minute"),
        (["check", "m#e", "api", "--consume", "rpm=1", "--limit", "rpm=1/day"], "'m#e'"),
        (["limits", "set", "acme"], "at least one limit"),
        (["limits", "set", "acme", "100/minute"], "NAME=SPEC"),
        (["limits", "set", "rpm=1/day"], "whose limits"),
        (["limits", "get", "acme", "--entity", "other"], "two entities"),
        (["limits", "get", "acme", "--system"], "--system"),
        (["limits", "get", "acme", "--effective"], "--resource"),
        (["entity", "create", "acme", "--parent", "nobody"], "'nobody' does not exist"),
        (["entity", "create", "acme", "--metadata", "gold"], "KEY=VALUE"),
        (["buckets", "me", "--url", "mysql://host"], "'mysql://host'"),
        (["buckets", "me", "--url", "sqlite:////nowhere/at/all.db"], "cannot be opened"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--url", "memory://"], "not shared"),
        (["bukets", "me"], "bukets"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    assert run(arguments) == 2
    plain = capsys.readouterr()
    assert plain.out == ""
    first, *more = plain.err.splitlines()
    assert first.startswith("error: ")
    assert part in first
    assert all(line.startswith("see: headgate ") for line in more)
    assert run([*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().err)
    assert sorted(error) == ["error", "message"]
    assert part in error["message"]


def test_errors_as_json_name_their_kind(cli: Cli) -> None:
    missing = cli("entity", "show", "nobody", "--json", code=2)
    assert json.loads(missing.stderr)["error"] == "entity_not_found"
    cli("entity", "create", "acme")
    taken = cli("entity", "create", "acme", "--json", code=2)
    assert json.loads(taken.stderr)["error"] == "entity_exists"
    unknown = cli("buckets", "acme", "--colour", "--json", code=2)
    assert json.loads(unknown.stderr)["error"] == "usage_error"


@pytest.fixture
def locked(cli: Cli) -> Iterator[None]:
    """Somebody else writes to the file and does not stop."""
    cli("limits", "list")
    connection = sqlite3.connect(cli.folder / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.close()


@pytest.mark.usefixtures("locked")
def test_a_store_that_does_not_answer_is_exit_code_3(cli: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=1", "--limit", "rpm=1/day")
    assert "locked" in cli.error(*arguments, code=3)
    assert json.loads(cli(*arguments, "--json", code=3).stderr)["error"] == "rate_limiter_unavailable"


# Help and reference


def test_help_without_arguments_and_the_version(cli: Cli) -> None:
    assert "headgate demo" in cli(code=2).stderr
    assert "Store limits" in cli("limits", code=2).stderr
    assert cli("--version").stdout.strip().endswith(__version__)
    assert "HEADGATE_URL" in cli("check", "--help").stdout


def test_simple_commands_do_without_rich() -> None:
    script = "import sys, headgate.cli.app; sys.exit(bool({'rich', 'multiprocessing'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def _commands(group: click.Group, path: str = "headgate") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=found[0]) for found in _commands(app)])
def test_every_command_is_complete_and_documented(path: str, command: click.Command) -> None:
    options = [option for option in command.params if isinstance(option, click.Option)]
    # What is about a stack names that, and what is about neither needs no more than a way to answer.
    common = (
        {"--url", "--namespace", "--json"} if not path.startswith(("headgate aws ", "headgate token")) else {"--json"}
    )
    assert common <= {option.opts[0] for option in options}
    assert all(option.help for option in options)
    with click.Context(command, info_name=path) as context:
        assert f"Examples:\n  {path}" in command.get_help(context)
    page = (DOCS / "cli.md").read_text()
    assert f"# {path}\n" in page
    section = page.split(f"# {path}\n")[1].split("\n## ")[0].split("\n### ")[0]
    for option in options:
        assert option.opts[0] in section


def test_the_reference_is_up_to_date() -> None:
    hint = "make it again: python -m headgate.cli.reference > docs/cli.md"
    assert (DOCS / "cli.md").read_text() == reference(), hint


# Small things


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (0, ""),
        (0.0101, "0.011 s"),
        (11.5, "11.5 s"),
        (60, "1 min"),
        (125.2, "2 min 6 s"),
        (7300, "2 h 1 min"),
        (400 * 86_400 + 3600, "400 d 1 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_names_cannot_steer_the_terminal(cli: Cli) -> None:
    cli("entity", "create", "acme", "--name", "\x1b[31mred [bold]name")
    assert "\\x1b[31mred [bold]name" in cli("entity", "show", "acme").stdout
    assert printable("naïve\n") == "naïve\\n"

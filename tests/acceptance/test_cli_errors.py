"""What goes wrong: one line that names the value and says what to do, and an exit code."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate.cli.app import run


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["check", "me", "api"], "--consume"),
        (["check", "me", "api", "--consume", "rpm", "--limit", "rpm=1/day"], "NAME=AMOUNT"),
        (["check", "me", "api", "--consume", "rpm=lots", "--limit", "rpm=1/day"], "'lots'"),
        (["check", "me", "api", "--consume", "rpm=NaN", "--limit", "rpm=1/day"], "finite"),
        (["check", "me", "api", "--consume", "rpm=-1", "--limit", "rpm=1/day"], "from 0 to"),
        (["check", "me", "api", "--consume", "rpm=1", "--consume", "rpm=1", "--limit", "rpm=1/day"], "twice"),
        (["check", "me", "api", "--consume", "rpm=1", "--limit", "rpm=5/fortnight"], "'5/fortnight'"),
        (["check", "me", "api", "--consume", "tpm=1", "--limit", "rpm=1/day"], "no limit 'tpm'"),
        (["check", "me", "api", "--consume", "rpm=1"], "headgate limits set me rpm=100/minute"),
        (["check", "m#e", "api", "--consume", "rpm=1", "--limit", "rpm=1/day"], "'m#e'"),
        (["limits", "set", "acme"], "at least one limit"),
        (["limits", "set", "acme", "100/minute"], "NAME=SPEC"),
        (["limits", "set", "rpm=1/day", "tpm=2/day"], "'rpm=1/day'"),
        (["limits", "resolve", "acme"], "RESOURCE"),
        (["resource", "set", "llm"], "at least one limit"),
        (["resource", "get", "l m"], "'l m'"),
        (["system", "set"], "at least one limit"),
        (["system", "set", "rpm=0/day"], "more than zero"),
        (["entity", "create", "acme", "--parent", "nobody"], "'nobody' does not exist"),
        (["entity", "create", "acme", "--metadata", "gold"], "KEY=VALUE"),
        (["namespace", "get", "nowhere"], "'headgate namespace register'"),
        (["namespace", "register", "a b"], "'a b'"),
        (["namespace", "recover", "nowhere"], "'nowhere' does not exist"),
        (["namespace", "purge", "nowhere", "--orphan", "--confirm", "nowhere"], "'headgate namespace orphans'"),
        (["usage", "me", "--start", "yesterday"], "--start 'yesterday' is not a date"),
        (["usage", "me", "--start", "2026-02-01", "--end", "2026-01-01"], "before"),
        (["usage", "me", "--window", "week"], "week"),
        (["usage", "me", "--plot", "--summary"], "contradict"),
        (["audit", "--entity", "me", "--namespaces"], "contradict"),
        (["audit", "--limit", "0"], "--limit"),
        (["buckets", "me", "--url", "mysql://host"], "'mysql://host'"),
        (["buckets", "me", "--url", "sqlite:////nowhere/at/all.db"], "cannot be opened"),
        (["reset", "me", "api", "--actor", "line\nbreak"], "actor must be"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--url", "memory://"], "not shared"),
        (["loadtest", "--url", "memory://"], "not shared"),
        (["loadtest", "--seconds", "1", "--count", "1"], "contradict"),
        (["loadtest", "--limit", "parallel=3 concurrent"], "slots"),
        (["loadtest", "--consume", "tpm=1"], "no limit 'tpm'"),
        (["loadtest", "--consume", "calls=0.0001"], "multiple of 0.001"),
        (["doctor", "--url", "mysql://host"], "'mysql://host'"),
        (["completion", "tcsh"], "tcsh"),
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


def test_errors_as_json_name_their_kind(inside: Cli) -> None:
    def kind(*arguments: str) -> str:
        found: str = json.loads(inside(*arguments, "--json", code=2).stderr)["error"]
        return found

    assert kind("entity", "get", "nobody") == "entity_not_found"
    inside("entity", "create", "acme")
    assert kind("entity", "create", "acme") == "entity_exists"
    assert kind("entity", "update", "acme", "--no-name", "--expected-version", "9") == "version_conflict"
    assert kind("namespace", "get", "nowhere") == "namespace_not_found"
    assert kind("buckets", "acme", "--colour") == "usage_error"


@pytest.fixture
def locked(inside: Cli) -> Iterator[None]:
    """Somebody else writes to the file and does not stop."""
    inside("limits", "list")
    connection = sqlite3.connect(inside.folder / "store.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.close()


@pytest.mark.usefixtures("locked")
def test_a_store_that_does_not_answer_is_exit_code_3(inside: Cli) -> None:
    arguments = ("check", "me", "api", "--consume", "rpm=1", "--limit", "rpm=1/day")
    error = json.loads(inside(*arguments, "--json", code=3).stderr)
    assert error["error"] == "rate_limiter_unavailable"
    assert "locked" in error["message"]

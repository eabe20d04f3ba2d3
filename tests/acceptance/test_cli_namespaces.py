"""`headgate namespace`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit
from headgate.core.records import Put
from headgate.stores import open_store


def test_from_its_first_use_to_its_end(inside: Cli) -> None:
    assert "no namespace" in inside("namespace", "list").stdout
    inside("limits", "set", "acme", "rpm=1/day", "--namespace", "blue")
    assert inside("namespace", "register", "green").stdout == "registered: green\n"
    assert [one["name"] for one in inside.json("namespace", "list")] == ["blue", "green"]
    assert inside.json("namespace", "get", "blue")["status"] == "active"
    stored = inside.json("namespace", "get", "blue")["stored"]
    assert f"{stored} rows and records" in inside("namespace", "get", "blue").stdout

    assert "'headgate namespace delete blue' comes first" in inside.error(
        "namespace", "purge", "blue", "--confirm", "blue"
    )
    assert inside("namespace", "delete", "blue", "--yes").stdout == "deleted: blue\n"
    assert inside.json("namespace", "list")[0]["status"] == "deleted"
    used = inside.error("limits", "get", "acme", "--namespace", "blue")
    assert "'headgate namespace recover'" in used
    assert inside.json("namespace", "recover", "blue")["status"] == "active"
    assert inside.json("limits", "get", "acme", "--namespace", "blue")["limits"] != []

    inside("namespace", "delete", "blue", "--yes")
    assert "confirm must be 'blue'" in inside.error("namespace", "purge", "blue", "--confirm", "green")
    assert "--confirm blue" in inside.error("namespace", "purge", "blue")
    assert inside.json("namespace", "purge", "blue", "--confirm", "blue") == {"name": "blue", "removed": stored}
    assert [one["name"] for one in inside.json("namespace", "list")] == ["green"]
    assert "does not exist" in inside.error("limits", "get", "acme", "--namespace", "blue")


def test_deleting_and_purging_are_confirmed_on_a_terminal(cli: Cli, inside: Cli) -> None:
    with cli.limiter(namespace="blue") as limiter:
        limiter.set_limits("acme", [Limit.per_day("rpm", 1)])
    for command, question, replies in (
        ("delete", "Delete the namespace blue", [("y", "deleted: blue", 0)]),
        ("purge", "Type its name to confirm", [("bleu", "nothing was purged", 1), ("blue", "purged: blue", 0)]),
    ):
        for reply, end, code in replies:
            with cli.terminal("namespace", command, "blue") as terminal:
                terminal.see(question)
                terminal.type(f"{reply}\n")
                assert terminal.end() == code
                assert end in terminal.seen
                assert "\\n" not in terminal.seen, "a question of two lines is shown as two"
    assert inside.json("namespace", "list") == []


def test_orphans_are_listed_and_purged(inside: Cli) -> None:
    assert inside("namespace", "orphans").stdout == "no orphans\n"
    with closing(open_store(inside.url, 1.0)) as store:
        store.write_records([Put("ghost/entity/acme", {})], 0)
    assert inside.json("namespace", "orphans") == ["ghost"]
    assert "does not exist" in inside.error("namespace", "purge", "ghost", "--confirm", "ghost")
    assert (
        inside("namespace", "purge", "ghost", "--orphan", "--confirm", "ghost").stdout
        == "purged: ghost, 1 rows and records\n"
    )
    assert inside.json("namespace", "orphans") == []


def test_reading_an_unknown_namespace_is_an_error_and_registers_nothing(cli: Cli) -> None:
    cli("system", "set", "rpm=5/minute")
    for command in (["limits", "resolve", "ann", "api"], ["system", "get"], ["buckets", "ann"], ["entity", "list"]):
        assert cli.error(*command, "--namespace", "prodd").startswith("namespace 'prodd' does not exist")
    assert [found["name"] for found in cli.json("namespace", "list")] == ["default"]


def test_change_says_in_which_store_and_namespace_it_was_made(cli: Cli, tmp_path: Path) -> None:
    done = cli("system", "set", "rpm=5/minute", "--namespace", "staging")
    assert done.stderr == f"in namespace staging of {cli.url}\n"
    done = cli("system", "set", "rpm=5/minute", HEADGATE_URL="", XDG_DATA_HOME=str(tmp_path / "data"))
    assert "in namespace default of sqlite:///" in done.stderr
    assert "the default file: use --url or HEADGATE_URL" in done.stderr
    assert cli("reset", "ann", "api", "--json").stderr == ""

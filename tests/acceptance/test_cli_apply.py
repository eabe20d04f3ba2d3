"""`headgate apply` and `headgate export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

LIMITS = """\
system:
  limits: {rpm: 100/minute}
entities:
  holding: {name: "Holding\\e[31m"}
  acme:
    parent: holding
    limits: {rpm: 10/minute}
"""
CHANGED = LIMITS.replace("10/minute", "20/minute").replace("parent: holding", "name: Acme")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "limits.yaml"
    path.write_text(LIMITS)
    return path


def test_what_would_change_then_changing_it(inside: Cli, file: Path) -> None:
    apply = ("apply", "-f", str(file))
    planned = inside(*apply, "--plan", code=1).stdout
    assert planned.splitlines() == [
        "+ limits of everyone on every resource: rpm 100/minute",
        '+ entity holding: name "Holding\\u001b[31m"',
        "+ entity acme: parent holding",
        "+ limits of acme on every resource: rpm 10/minute",
        "would be: 4 created",
    ]
    assert inside.json("export") == {"namespace": "default"}
    assert inside(*apply).stdout.splitlines()[-1] == "4 created"
    assert inside(*apply).stdout == "no changes\n"
    assert inside(*apply, "--plan").stdout == "no changes\n"
    file.write_text(CHANGED)
    assert inside(*apply).stdout.splitlines() == [
        '~ entity acme: +name "Acme", -parent holding',
        "~ limits of acme on every resource: rpm 10/minute -> 20/minute",
        "2 changed",
    ]


def test_apply_as_json_lists_every_change_and_who_made_it(inside: Cli, file: Path) -> None:
    planned = inside.json("apply", "-f", str(file), "--plan", code=1)
    assert planned["applied"] == 0
    assert planned["changes"][0] == {
        "kind": "created",
        "what": "system",
        "entity_id": None,
        "resource": None,
        "before": None,
        "after": {"limits": {"rpm": "100/minute"}},
    }
    done = inside.json("apply", "-f", str(file), "--actor", "ci")
    assert done == planned | {"applied": 4}
    assert {event["actor"] for event in inside.json("audit")["events"]} == {"ci"}
    assert inside.json("apply", "-f", str(file)) == {"changes": [], "applied": 0}


def test_a_file_with_mistakes_changes_nothing(inside: Cli, file: Path) -> None:
    file.write_text("entities:\n  acme:\n    limits: {rpm: often}\n    colour: red\n  a/b: {}\n")
    shown = inside("apply", "-f", str(file), code=2).stderr.splitlines()
    assert [line.partition(f"{file}:")[2].partition(":")[0] for line in shown] == ["3", "4", "5"]
    assert json.loads(inside("apply", "-f", str(file), "--json", code=2).stderr)["error"] == "document_error"
    assert "it cannot be read: No such file" in inside.error("apply", "-f", "nowhere.yaml")
    file.write_text("namespace: blue")
    assert "it is for namespace 'blue', not 'default'" in inside.error("apply", "-f", str(file))
    assert inside("apply", "-f", str(file), "--namespace", "blue").stdout == "no changes\n"
    assert inside.json("export") == {"namespace": "default"}


def test_pruning_asks_before_it_removes_what_the_file_lacks(cli: Cli, inside: Cli, file: Path) -> None:
    inside("apply", "-f", str(file))
    file.write_text("system:\n  limits: {rpm: 100/minute}\n")
    assert inside("apply", "-f", str(file)).stdout == "no changes\n"
    prune = ("apply", "-f", str(file), "--prune")
    assert inside(*prune, "--plan", code=1).stdout.endswith("would be: 3 removed\n")
    assert "use --yes" in inside("apply", "-f", str(file), "--prune", code=2).stderr
    with cli.terminal(*prune) as terminal:
        terminal.see("Remove 3 stored items permanently?")
        terminal.type("n\n")
        assert terminal.end() == 1
    assert "nothing was changed" in terminal.seen
    assert inside(*prune, "--yes").stdout.splitlines() == [
        "- limits of acme on every resource: rpm 10/minute",
        "- entity acme: parent holding",
        '- entity holding: name "Holding\\u001b[31m"',
        "3 removed",
    ]


def test_many_are_shown_as_they_go(cli: Cli, inside: Cli, file: Path) -> None:
    many = {f"e{at}": {"limits": {"rpm": "10/minute"}} for at in range(600)}
    file.write_text(json.dumps({"entities": many}))
    with cli.terminal("apply", "-f", str(file)) as terminal:
        assert terminal.end() == 0
    assert "and 550 more: --plan shows all of them" in terminal.seen
    assert "applying" in terminal.seen
    assert "600 of 600" in terminal.seen
    assert len(inside.json("export")["entities"]) == 600


def test_exporting_and_applying_is_nothing(inside: Cli, file: Path, tmp_path: Path) -> None:
    assert inside("export").stdout == "namespace: default\n"
    inside("apply", "-f", str(file))
    for name in ("out.yaml", "out.toml"):
        assert inside("export", "-o", str(tmp_path / name)).stdout == ""
        assert inside("apply", "-f", str(tmp_path / name), "--prune").stdout == "no changes\n"
    assert inside("export", "--format", "toml").stdout == (tmp_path / "out.toml").read_text()
    assert inside("export").stdout == (tmp_path / "out.yaml").read_text()
    assert inside.json("export")["entities"]["acme"] == {"parent": "holding", "limits": {"rpm": "10/minute"}}
    assert "cannot be written: Is a directory" in inside.error("export", "-o", str(tmp_path))


def test_apply_with_hashed_ids_shows_no_plain_id(inside: Cli, file: Path) -> None:
    file.write_text("entities:\n  a b@c: {name: Secret}\n")
    assert "is not allowed" in inside.error("apply", "-f", str(file))
    shown = inside("apply", "-f", str(file), "--hash-entity-ids").stdout
    assert "a b@c" not in shown
    assert inside.json("entity", "get", "a b@c", "--hash-entity-ids")["name"] == "Secret"
    assert inside("apply", "-f", str(file), "--hash-entity-ids").stdout == "no changes\n"


def test_the_schema_is_printed(inside: Cli) -> None:
    assert json.loads(inside("apply", "--schema").stdout)["title"] == "headgate limits"

"""Which store, which namespace, and whose secrets: what comes from the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit, SyncRateLimiter


def test_url_and_namespace_come_from_options_or_the_environment(inside: Cli, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    inside("limits", "set", "acme", "rpm=1/day", "--url", other, "--namespace", "blue")
    assert inside.json("limits", "get", "acme")["limits"] == []
    assert inside.json("limits", "get", "acme", HEADGATE_URL=other)["limits"] == []
    assert inside.json("limits", "get", "acme", HEADGATE_URL=other, HEADGATE_NAMESPACE="blue")["limits"] != []


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_DATA_HOME is not looked at elsewhere")
def test_the_default_store_is_a_file_in_the_data_directory(inside: Cli, tmp_path: Path) -> None:
    data = tmp_path / "a place?"  # not yet there, and not a plain URL
    del inside.environment["HEADGATE_URL"]
    inside("limits", "set", "acme", "rpm=1/day", XDG_DATA_HOME=str(data))
    assert (data / "headgate" / "headgate.db").is_file()
    assert inside.json("limits", "get", "acme", XDG_DATA_HOME=str(data))["limits"] != []
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    assert "HEADGATE_URL" in inside("limits", "list", XDG_DATA_HOME=str(blocked), code=2).stderr


def _every_command(entity_id: str, parent_id: str) -> list[tuple[str, ...]]:
    """Each command that takes an entity, so that it succeeds."""
    return [
        ("entity", "create", parent_id),
        ("entity", "create", entity_id, "--parent", parent_id, "--cascade"),
        ("limits", "set", entity_id, "rpm=5/hour", "--resource", "llm"),
        ("limits", "set", parent_id, "rpm=50/hour"),
        ("limits", "get", entity_id, "--resource", "llm"),
        ("limits", "resolve", entity_id, "llm"),
        ("limits", "list"),
        ("limits", "list", "--resource", "llm"),
        ("check", entity_id, "llm", "--consume", "rpm=1"),
        ("check", entity_id, "llm", "--dry-run"),
        ("buckets", entity_id),
        ("penalize", entity_id, "llm", "--factor", "0.5"),
        ("reset", entity_id, "llm"),
        ("usage", entity_id),
        ("usage", entity_id, "--plot"),
        ("usage",),
        ("entity", "get", entity_id, "--resource", "llm"),
        ("entity", "update", entity_id, "--parent", parent_id, "--name", "Key"),
        ("entity", "list"),
        ("entity", "children", parent_id),
        ("audit",),
        ("audit", "--entity", entity_id),
        ("limits", "delete", entity_id, "--resource", "llm", "--yes"),
        ("entity", "delete", entity_id, "--yes"),
    ]


@pytest.mark.parametrize("key", [None, "pepper"])
def test_an_entity_id_that_is_hashed_is_neither_stored_nor_shown(inside: Cli, key: str | None) -> None:
    secret, parent = "sk/hunter2==", "org hunter2"
    environment = {"HEADGATE_HASH_KEY": key} if key else {}
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
        ("entity", "get", "hunter2"),
        ("check", "hunter2", "nothing", "--consume", "rpm=1"),
        ("buckets", "hunter2" * 40),
        ("entity", "create", "hunter2", "--parent", "hunter2/nobody"),
        ("entity", "update", "hunter2", "--no-parent"),
        ("penalize", "hunter2", "nothing", "--seconds", "1"),
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


WRITING = [
    ("system", "set", "rpm=5/hour"),
    ("resource", "set", "llm", "rpm=5/hour"),
    ("entity", "create", "ann"),
    ("entity", "update", "ann", "--name", "Ann"),
    ("limits", "set", "ann", "rpm=5/hour"),
    ("penalize", "ann", "llm", "--factor", "0.5"),
    ("reset", "ann", "llm"),
    ("limits", "delete", "ann", "--yes"),
    ("entity", "delete", "ann", "--yes"),
    ("resource", "delete", "llm", "--yes"),
    ("system", "delete", "--yes"),
    ("reconcile",),
]
WRITING_NAMESPACES = [
    ("namespace", "register", "blue"),
    ("namespace", "delete", "blue", "--yes"),
    ("namespace", "recover", "blue"),
    ("namespace", "delete", "blue", "--yes"),
    ("namespace", "purge", "blue", "--confirm", "blue"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_DATA_HOME is not looked at elsewhere")
@pytest.mark.parametrize("given", [True, False])
def test_every_writing_command_says_where_it_wrote(inside: Cli, tmp_path: Path, given: bool) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("system:\n  limits:\n    rpm: 7/hour\n")
    url, own = inside.url, ""
    if not given:
        del inside.environment["HEADGATE_URL"]
        inside.environment["XDG_DATA_HOME"] = str(tmp_path)
        url, own = f"sqlite:///{tmp_path}/headgate/headgate.db", " (the default file: use --url or HEADGATE_URL"
    for command in [*WRITING, ("apply", "--file", str(file), "--yes")]:
        assert f"in namespace default of {url}{own}" in inside(*command).stderr, command
    for command in WRITING_NAMESPACES:
        assert f"in {url}{own}" in inside(*command).stderr, command

"""The sandbox: the whole stack in processes that outlive whoever started them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import boto3
import pytest

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.aws.stack import StackError, StackFailed, StackOptions, ministack
from headgate.aws.stack.ministack import ServerDied
from headgate.aws.stack.sandbox import Sandbox
from headgate.testing.servers.process import eventually

LIMITS = [Limit.per_hour("rpm", 100)]
SMALL = StackOptions(alarms=False, archive=False)


@pytest.fixture
def box(tmp_path: Path, dynamodb_wanted: None) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path / "state" / "sandbox")
    yield made
    made.down()


def test_sandbox_up_serves_limiters_and_down_ends_all_of_it(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither these credentials nor this endpoint are anybody's business in there.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert box.status().state == "stopped"
    assert box.down() is False
    found = box.up()
    assert found.running
    assert found == box.status()
    assert found.url == f"dynamodb://headgate?region=us-east-1&endpoint_url=http://127.0.0.1:{found.port}"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with patch.dict(os.environ, found.environment), SyncRateLimiter(os.environ["HEADGATE_URL"]) as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)
        eventually(lambda: _used(found.endpoint_url) == {"3000"}, "the function has counted")
    with box.stack() as stack:
        assert stack.status().problems == []
    again = box.up()
    assert (again.pid, again.port) == (found.pid, found.port)
    with pytest.raises(ValidationError, match=f"table 'headgate' on port {found.port}: stop it first"):
        box.up("other")
    if sys.platform == "linux":
        assert b"hunter2" not in Path(f"/proc/{found.pid}/environ").read_bytes()
    assert box.down() is True
    assert not box.folder.exists()
    assert found.pid is not None
    assert ministack.born(found.pid) == ""
    assert box.status().environment == {}
    with pytest.raises(StackError, match="the sandbox is stopped"):
        box.stack()


def _used(endpoint_url: str | None) -> set[str]:
    client = boto3.client("dynamodb", endpoint_url=endpoint_url)
    try:
        found = client.scan(TableName="headgate", FilterExpression="attribute_exists(u_rpm)")["Items"]
    finally:
        client.close()
    return {item["u_rpm"]["N"] for item in found}


def test_one_that_died_is_started_again(box: Sandbox) -> None:
    first = box.up(options=SMALL)
    assert first.pid is not None
    os.killpg(first.pid, signal.SIGKILL)
    eventually(lambda: box.status().state == "died", "it is known to be dead")
    second = box.up(options=SMALL)
    assert second.running
    assert second.pid != first.pid
    assert second.pid is not None
    os.kill(second.pid, signal.SIGSTOP)
    assert box.status().state == "hung"
    assert box.down() is True
    assert ministack.born(second.pid) == ""


def test_two_at_once_start_one(box: Sandbox) -> None:
    found: list[int | None] = []
    threads = [threading.Thread(target=lambda: found.append(box.up(options=SMALL).pid)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1


def test_one_that_does_not_start(box: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValidationError, match=f"port {port} cannot be used: Address already in use"):
            box.up(port=port)
        # Somebody is there before it, but after we looked.
        with (
            patch.object(ministack, "free_port", lambda wanted: port),
            pytest.raises(ServerDied, match="already in use"),
        ):
            box.up(port=port)
    assert box.status().state == "stopped"


def test_a_deploy_that_fails_leaves_nothing_running(box: Sandbox) -> None:
    failed = StackFailed("headgate", "DELETE_COMPLETE", "Table", "no")
    pids: list[int | None] = []

    def fail(*args: object, **kwargs: object) -> None:
        pids.append(box.status().pid)
        raise failed

    with patch("headgate.aws.stack.stack.Stack.deploy", fail), pytest.raises(StackFailed):
        box.up()
    (pid,) = pids
    assert pid is not None
    assert ministack.born(pid) == ""
    assert box.status().state == "stopped"


def test_what_is_in_the_folder_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("finished")
    box = Sandbox(tmp_path)
    with pytest.raises(ValidationError, match="has other files in it: use an empty one"):
        box.up()
    assert box.down() is False
    assert (tmp_path / "thesis.txt").read_text() == "finished"
    with pytest.raises(ValidationError, match="cannot be used"):
        Sandbox(tmp_path / "thesis.txt" / "below").up()


def test_a_process_that_only_has_the_number_is_not_ended(box: Sandbox) -> None:
    box.folder.mkdir(parents=True)
    (box.folder / "sandbox.lock").touch()
    state = {"pid": os.getpid(), "port": 1, "name": "headgate", "born": "Mon Jan  1 00:00:00 2024"}
    (box.folder / "sandbox.json").write_text(json.dumps(state))
    assert box.status().state == "died"
    assert box.down() is True
    (tmp := box.folder).mkdir(parents=True)
    (tmp / "sandbox.lock").touch()
    (tmp / "sandbox.json").write_text('{"pid": 12')
    assert box.status().state == "stopped"

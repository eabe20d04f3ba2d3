"""Corrupt data behind the service: an answer for the one request it concerns, and pages that go on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from service_process import Api, ServeProcess

from headgate import Limit, SyncRateLimiter

LIMIT = "spend=10/week"


@pytest.fixture
def damage(tmp_path: Path) -> Callable[[str], None]:
    """Buckets and entities of three, of whom bob's are going to be damaged by a statement."""
    path = tmp_path / "store.db"
    with SyncRateLimiter(f"sqlite:///{path}") as limiter:
        for entity_id in ("ann", "bob", "cid"):
            limiter.create_entity(entity_id)
            limiter.set_limits(entity_id, [Limit.parse("spend", "10/week")], "r")
            limiter.try_acquire(entity_id, "r", {"spend": 1})
        for resource in ("chat", "mail"):
            limiter.set_resource_defaults(resource, [Limit.per_minute("rpm", 5)])

    def run(statement: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement).rowcount

    return run


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with ServeProcess("--url", f"sqlite:///{tmp_path}/store.db") as process, process.start().client() as client:
        yield Api(client)


def ask(entity_id: str) -> dict[str, Any]:
    return {"entity_id": entity_id, "resource": "r", "limits": [LIMIT]}


def test_corrupt_buckets_are_a_problem_of_their_own_request(damage: Callable[[str], None], api: Api) -> None:
    damage("UPDATE buckets SET tokens_milli = 'x' WHERE key = 'default/bob#r'")
    problem = api.post("/v1/acquire", ask("bob"), status=503)
    assert problem["cause"] == "corrupt"
    assert "'bob' on 'r' is corrupt" in problem["detail"]
    assert "POST /v1/reset" in problem["detail"]
    batch = api.post("/v1/acquire/batch", {"asks": [ask("ann"), ask("bob"), [ask("cid"), ask("ann")]]})["decisions"]
    assert [one["allowed"] for one in batch] == [True, False, True]
    assert ["error" in one for one in batch] == [False, True, False]
    assert "corrupt" in batch[1]["error"]
    api.post("/v1/reset", {"entity_id": "bob", "resource": "r"}, status=204)
    assert api.post("/v1/acquire", ask("bob"))["limits"][0]["available"] == 9
    assert api.available("ann") == {"spend": 7}, "exactly once"


def test_lists_and_pages_go_on_with_the_others(damage: Callable[[str], None], api: Api) -> None:
    damage("UPDATE records SET value = '[]' WHERE key = 'default/entity#bob'")
    damage("UPDATE buckets SET period_ms = 0 WHERE key = 'default/bob#r'")
    listed = api.get("/v1/entities")
    assert [one["entity_id"] for one in listed["items"]] == ["ann", "cid"]
    assert listed["corrupt"] == ["bob"]
    problem = api.get("/v1/entities/bob", status=503)
    assert problem["cause"] == "corrupt"
    for path, said in (
        ("/ui/entities", "Record default/entity#bob is corrupt"),
        ("/ui/buckets", "The state of bob on r is corrupt"),
    ):
        page = api.http.get(path)
        assert page.status_code == 200
        assert said in page.text
        assert "cid" in page.text
    assert api.http.get("/ui").status_code == 200
    assert "corrupt" not in api.get("/v1/entities", limit=1)


def test_corrupt_limits_of_a_resource_are_named_beside_the_others(damage: Callable[[str], None], api: Api) -> None:
    damage("UPDATE records SET value = '{}' WHERE key = 'default/limits#resource#chat'")
    page = api.http.get("/ui/limits")
    assert page.status_code == 200
    assert "Record default/limits#resource#chat is corrupt" in page.text
    assert "mail" in page.text

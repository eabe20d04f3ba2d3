"""Many write to the same items at once: as many pass as can, nobody is passed over for ever, and all are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from dynamodb_limiters import Scene, Table, at_once, both_kinds, fixed, limiter_of, new_entity, scene_on, take

from headgate import Limit, SyncRateLimiter
from headgate.testing import ManualClock
from local_servers.dynamodb import Engine, Request


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


@both_kinds
def test_contending_limiters_admit_exactly_the_limit_and_all_are_answered(kind: str, scene: Scene) -> None:
    """Limiters that know nothing of each other, close to the limit: as many pass as can, and all are answered."""
    entity, limit = new_entity(), fixed(40)
    admitted: list[bool] = []

    def hammer() -> None:
        with limiter_of(kind, scene.url, store_timeout=60) as limiter:
            take(limiter, new_entity("warm"), limit=limit)
            start.wait()
            for _ in range(12):
                admitted.append(bool(take(limiter, entity, limit=limit)))

    start = threading.Barrier(6)
    at_once([hammer] * 6)
    assert sum(admitted) == 40
    assert scene.left(entity, limit=limit) == 0
    assert scene.proxy.count("UpdateItem") < 40 + 6 * 6, "nobody is in another's way but at the limit"


@both_kinds
def test_others_are_always_faster(kind: str, scene: Scene) -> None:
    """Whenever a write arrives another has been there, later by its clock, and left one: who runs after them never
    gets there, and so is answered as of when it first knew."""
    entity, limit = new_entity(), Limit.per_second("n", 10)
    clock, theirs = ManualClock(), ManualClock()
    with (
        limiter_of(kind, scene.url, clock=clock) as limiter,
        SyncRateLimiter(scene.table.url, clock=theirs, store_timeout=20) as other,
    ):

        def be_faster(request: Request) -> None:
            theirs.advance(0.5)
            assert take(other, entity, other.available(entity, "r", [limit])["n"] - 1, limit)

        assert take(limiter, entity, 9, limit)
        scene.proxy.forget()
        scene.proxy.before(be_faster, 100, operation="UpdateItem")
        assert not take(limiter, entity, 1, limit)
        assert scene.proxy.count("UpdateItem") <= 3


@both_kinds
def test_a_large_one_among_small_ones(kind: str, scene: Scene) -> None:
    """It is for all shards, and whenever it comes to be written others have taken of each."""
    entity, limit = new_entity(), fixed(1000)
    with limiter_of(kind, scene.url) as limiter:
        scene.proxy.fail(1, "ThrottlingException", operation="UpdateItem")
        assert take(limiter, entity, 1, limit)
        assert len(scene.shards(entity)) == 2

        def be_faster(request: Request) -> None:
            for _ in range(10):
                assert take(scene.direct, entity, 1, limit)

        scene.proxy.forget()
        scene.proxy.before(be_faster, 100, operation="TransactWriteItems")
        assert take(limiter, entity, 600, limit)
        assert scene.proxy.count("TransactWriteItems") == 2
        assert scene.left(entity, limit=limit) == 1000 - 1 - 600 - 20


@both_kinds
def test_a_storm_of_changed_limits(kind: str, scene: Scene) -> None:
    """Each insists on a limit of its own: that does not commute, and still everyone is answered."""
    entity = new_entity()
    start = threading.Barrier(3)

    def hammer_with(limit: Limit) -> Callable[[], None]:
        def hammer() -> None:
            with limiter_of(kind, scene.url, store_timeout=60) as limiter:
                start.wait()
                for _ in range(12):
                    assert take(limiter, entity, limit=limit)

        return hammer

    at_once([hammer_with(Limit.custom("n", 1000, 0.001 * (1 + number), 366 * 86_400)) for number in range(3)])
    assert scene.left(entity) == 1000 - 36

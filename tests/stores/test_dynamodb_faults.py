"""DynamoDB is overloaded, or in conflict with itself: whoever passes is counted once, and everybody is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from dynamodb_helpers import START_MS, request
from dynamodb_limiters import (
    FAR_TOO_LONG_SECONDS,
    TEN,
    Scene,
    Table,
    both_kinds,
    limiter_of,
    new_entity,
    patiently,
    scene_on,
    store_of,
    take,
    told,
)

from headgate import Limit, RateLimiterUnavailable
from headgate.core.decide import TAKE
from local_servers.dynamodb import Engine, Proxy

THROTTLED = ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
CONFLICTS = ["TransactionConflictException", "ConditionalCheckFailedException"]
MINUTE = Limit.per_minute("n", 10)  # for a store, which is told the time


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


@both_kinds
class TestThrottled:
    @pytest.mark.parametrize("code", THROTTLED)
    def test_throttled_write_is_sent_again_and_counted_once(self, kind: str, code: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.unsplit) as limiter:
            assert take(limiter, entity)
            scene.proxy.forget()
            scene.proxy.fail(3, code, operation="UpdateItem")
            assert take(limiter, entity).statuses[0].available == 8
            limiter.adjust(entity, "r", {"n": 3}, [TEN])
        assert scene.writes() == 3 + 2
        assert scene.left(entity) == 5

    def test_throttled_reads_of_namespace_and_limits_are_sent_again(self, kind: str, scene: Scene) -> None:
        """Reading the namespace and the limits as well."""
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            for code in THROTTLED:
                scene.proxy.fail(2, code)
            assert take(limiter, entity)
        assert not scene.proxy.left
        assert scene.left(entity) == 9

    def test_throttled_until_the_deadline_is_unavailable_and_takes_nothing(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url, store_timeout=0.2) as limiter:
            assert patiently(lambda: take(limiter, entity))
            left = scene.left(entity)
            scene.proxy.fail(100_000, THROTTLED[0])
            for call in (
                lambda: take(limiter, entity),
                lambda: limiter.adjust(entity, "r", {"n": -1}, [TEN]),
                lambda: limiter.available(entity, "r", [TEN]),
                lambda: limiter.get_limits(entity),
            ):
                started = time.monotonic()
                with pytest.raises(RateLimiterUnavailable, match=r"did not answer within 0\.2 s|throttles table"):
                    call()
                assert time.monotonic() - started < FAR_TOO_LONG_SECONDS
            assert limiter.try_acquire(entity, "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
            assert scene.left(entity) == left
            scene.proxy.forget()
            assert patiently(lambda: take(limiter, entity))

    def test_it_is_spread_over_more_items(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            scene.proxy.fail(1, THROTTLED[0], operation="UpdateItem")
            assert take(limiter, entity)
            assert scene.shards(entity) == {"0": "2", "1": "2"}
            assert scene.left(entity) == 8
            scene.proxy.fail(3, THROTTLED[0], operation="BatchGetItem")
            assert limiter.get_limits(entity) == []
            assert scene.shards(entity) == {"0": "2", "1": "2"}, "it was not for this item"
            assert [bool(take(limiter, entity)) for _ in range(9)] == [True] * 8 + [False]

    @pytest.mark.parametrize("code", ["AccessDeniedException", "InternalServerError"])
    def test_if_it_cannot_be_spread_it_passes_all_the_same(
        self, kind: str, code: str, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            scene.proxy.fail(1, THROTTLED[0], operation="UpdateItem")
            scene.proxy.fail(100, code, operation="TransactWriteItems")
            assert take(limiter, entity)
            assert "could not be split" in caplog.text

    def test_throttled_statements_are_sent_again_and_counted_once(self, kind: str, scene: Scene) -> None:
        batch = [request(MINUTE, 1, TAKE, f"default/{new_entity()}#r") for _ in range(8)]
        with store_of(kind, scene.url) as store:
            store.settle(batch, START_MS)
            scene.proxy.forget()
            throttled = {"Error": {"Code": "ThrottlingError", "Message": "on demand"}}
            scene.proxy.answer(1, 200, {"Responses": [throttled] * 8}, operation="BatchExecuteStatement")
            scene.proxy.fail(1, THROTTLED[0], operation="BatchExecuteStatement")
            assert [answer.levels for answer in store.settle(batch, START_MS)] == [[(8000, 0)]] * 8
            assert scene.proxy.count("BatchExecuteStatement") == 3


@both_kinds
class TestConflicts:
    @pytest.mark.parametrize("code", CONFLICTS)
    def test_conflicting_write_is_sent_again_and_counted_once(self, kind: str, code: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            scene.proxy.forget()
            scene.proxy.fail(4, code, operation="UpdateItem")
            assert take(limiter, entity).statuses[0].available == 8
            scene.proxy.fail(4, code, operation="UpdateItem")
            limiter.adjust(entity, "r", {"n": -1}, [TEN])
        # A failed condition says that there is no such item, and so each has to be told that there is, and asks whether
        # there is still the namespace.
        assert scene.proxy.count() <= 2 * (4 + 3)
        assert scene.left(entity) == 9

    def test_endless_conflicts_give_up_after_a_bounded_number_of_attempts(self, kind: str, scene: Scene) -> None:
        """It gives up after so many attempts, however long the deadline: each of them is paid for."""
        entity, code = new_entity(), CONFLICTS[kind == "sync"]
        with limiter_of(kind, scene.url, store_timeout=60) as limiter:
            assert take(limiter, entity)
            scene.proxy.forget()
            scene.proxy.fail(100_000, code, operation="UpdateItem")
            assert "too many writers" in told(lambda: take(limiter, entity))
        assert 10 < scene.proxy.count("UpdateItem") <= 60
        assert scene.left(entity) == 9

    @pytest.mark.parametrize(
        "reasons",
        [
            ("None", "TransactionConflict"),
            ("TransactionConflict", "TransactionConflict"),
            ("ConditionalCheckFailed", "None"),
            ("TransactionConflict", "ConditionalCheckFailed"),
            ("ProvisionedThroughputExceeded", "None"),
            ("ThrottlingError", "TransactionConflict"),
        ],
    )
    def test_cancelled_transaction_is_sent_again_and_counted_once(
        self, kind: str, reasons: tuple[str, str], scene: Scene
    ) -> None:
        """The first cascade of a process is one."""
        family = scene.family()
        with limiter_of(kind, scene.url) as limiter:
            scene.proxy.cancel(2, *reasons)
            assert take(limiter, family[0])
        assert scene.left(*family) == [9, 9]


@both_kinds
class TestCascade:
    """The child is written, and its parent is not."""

    def test_the_child_is_given_back(self, kind: str, scene: Scene) -> None:
        for fault in (
            lambda: scene.proxy.fail(1, "InternalServerError", operation="UpdateItem"),
            lambda: scene.proxy.refuse(1, operation="UpdateItem"),
        ):
            family = scene.family()
            with limiter_of(kind, scene.url) as limiter:
                assert take(limiter, family[0])
                fault()
                told(lambda child=family[0]: take(limiter, child, 2))
            assert scene.left(*family) == [9, 9]

    def test_what_was_lost_stays_lost(self, kind: str, scene: Scene) -> None:
        """Of whom nothing is known, nothing is given back."""
        family = scene.family()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, family[0])
            scene.proxy.lose_replies(1, operation="UpdateItem")
            told(lambda: take(limiter, family[0], 2))
        assert sorted(scene.left(*family)) == [7, 9]

    @pytest.mark.parametrize(("lose", "left"), [("lose_replies", 9), ("refuse", 7)])
    def test_giving_back_is_not_repeated(self, kind: str, lose: str, left: int, scene: Scene) -> None:
        """The parent turns out to be empty, and nobody knows whether the child has its tokens back."""
        child, parent = scene.family()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, child)
            scene.direct.adjust(parent, "r", {"n": 9}, [TEN])
            scene.proxy.forget()
            scene.proxy.before(lambda request: None, 2, operation="UpdateItem")
            getattr(scene.proxy, lose)(1, operation="UpdateItem")
            told(lambda: take(limiter, child, 2))
        assert scene.proxy.count("UpdateItem") == 3
        assert scene.left(child, parent) == [left, 0]

    @pytest.mark.parametrize("timeout_seconds", [0.3, 60])
    def test_child_is_given_back_if_its_parent_is_throttled_without_end(
        self, kind: str, timeout_seconds: float, scene: Scene
    ) -> None:
        """Until the deadline, or until it gives up: then there is still time to give back."""
        child, parent = scene.family()
        with limiter_of(kind, scene.unsplit, store_timeout=timeout_seconds) as limiter:
            assert patiently(lambda: take(limiter, child))
            before = scene.left(child, parent)
            throttle(scene.proxy, parent)
            told(lambda: take(limiter, child, 2))
            assert scene.left(child, parent) == before


def throttle(proxy: Proxy, entity: str) -> None:
    """Every write of an entity's buckets, and none of another's."""
    really = proxy._handle

    def handle(request: Any, pass_on: Any) -> Any:
        if request.operation == "UpdateItem" and f"BUCKET#{entity}#" in request.body["Key"]["PK"]["S"]:
            proxy.fail(1, "ThrottlingException")
        return really(request, pass_on)

    assert proxy._listener is not None
    proxy._listener.handle = handle

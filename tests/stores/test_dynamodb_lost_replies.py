"""A reply is lost, and nobody knows whether DynamoDB did what it was told: it is not told again.

Of a take at most its amount is missing then. What gives back would make tokens if it were done twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from dynamodb_helpers import START_MS, new_table, request
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

from headgate import Limit
from headgate.core.decide import FORCE, PEEK, TAKE, Answer
from headgate.core.errors import PartlyAnswered
from local_servers.dynamodb import Engine, Ministack, Proxy

MINUTE = Limit.per_minute("n", 10)  # for a store, which is told the time
TIMEOUT_SECONDS = 0.3
AWAY_SECONDS = 1.5  # for one that answers, on a machine that is busy

Lose = Callable[[Proxy, str], None]


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


def reply_lost(proxy: Proxy, operation: str) -> None:
    proxy.lose_replies(1, operation=operation)


def request_lost(proxy: Proxy, operation: str) -> None:
    proxy.refuse(1, operation=operation)


def server_error(proxy: Proxy, operation: str) -> None:
    proxy.fail(1, "InternalServerError", operation=operation)


ways = pytest.mark.parametrize(("lose", "done"), [(reply_lost, True), (request_lost, False), (server_error, False)])
REASONS = ("closed the connection", "InternalServerError")


@both_kinds
@ways
class TestLost:
    def lost(self, scene: Scene, lose: Lose, call: Callable[[], Any], operation: str = "UpdateItem") -> None:
        """It is sent once, and the caller is told."""
        scene.proxy.forget()
        lose(scene.proxy, operation)
        why = told(call)
        assert any(reason in why for reason in REASONS)
        assert scene.writes() == 1

    def test_take_with_a_lost_reply_is_not_sent_again(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            self.lost(scene, lose, lambda: take(limiter, entity, 4))
            assert scene.left(entity) == (5 if done else 9)
            assert take(limiter, entity, 5 if done else 9)
            assert not take(limiter, entity)

    def test_a_take_that_may_be_missed(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url, on_unavailable="allow") as limiter:
            assert take(limiter, entity)
            lose(scene.proxy, "UpdateItem")
            assert take(limiter, entity, 4).degraded
            assert scene.left(entity) == (5 if done else 9)

    def test_adjust_with_a_lost_reply_is_not_sent_again(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            limiter.adjust(entity, "r", {"n": 6}, [TEN])
            self.lost(scene, lose, lambda: limiter.adjust(entity, "r", {"n": -3}, [TEN]))
            assert scene.left(entity) == (7 if done else 4)

    def test_a_lease_gives_back_once(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        for give_back in (lambda lease: lease.release(n=2), lambda lease: lease.rollback()):
            entity = new_entity()
            with limiter_of(kind, scene.url) as limiter:
                assert take(limiter, entity, 6)
                lease = take(limiter, entity, 2).lease
                self.lost(scene, lose, lambda back=give_back, lease=lease: back(lease))
                assert scene.left(entity) == (4 if done else 2)
                if not lease._target._ended if kind == "async" else not lease._ended:
                    lease.rollback()
                assert scene.left(entity) == (4 if done else 2), "what may be back is not given back again"

    def test_the_error_of_the_body_comes_first(
        self, kind: str, lose: Lose, done: bool, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            with pytest.raises(KeyError), limiter.acquire(entity, "r", {"n": 4}, [TEN]):
                lose(scene.proxy, "UpdateItem")
                raise KeyError
            assert "could not be rolled back" in caplog.text
            assert scene.left(entity) == (9 if done else 5)

    def test_penalty_with_a_lost_reply_is_not_sent_again(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url, audit_days=0) as limiter:
            limiter.adjust(entity, "r", {"n": 2}, [TEN])
            self.lost(scene, lose, lambda: limiter.penalize(entity, "r", factor=0.5, limits=[TEN]))
            assert scene.left(entity) == (4 if done else 8)

    def test_batch_with_a_lost_reply_is_not_sent_again(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        """In one request as statements."""
        keys = [f"default/{new_entity()}#r" for _ in range(8)]
        with store_of(kind, scene.url) as store:
            store.settle([request(MINUTE, 1, TAKE, key) for key in keys], START_MS)
            both = [request(MINUTE, 2, TAKE, key) for key in keys[:4]]
            both += [request(MINUTE, -1, FORCE, key) for key in keys[4:]]
            self.lost(scene, lose, lambda: store.settle(both, START_MS), "BatchExecuteStatement")
            left = [answer.levels[0][0] for answer in store.settle([_look(key) for key in keys], START_MS)]
            assert left == ([7000] * 4 + [10_000] * 4 if done else [9000] * 8)

    def test_a_transaction_is_sent_again(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        """It has a token, by which DynamoDB knows it again. That it is too busy to say more changes nothing."""
        for then in ("", "ThrottlingException", "TransactionInProgressException"):
            family = scene.family()
            with limiter_of(kind, scene.url) as limiter:
                scene.proxy.forget()
                lose(scene.proxy, "TransactWriteItems")
                if then:
                    scene.proxy.fail(2, then, operation="TransactWriteItems")
                assert take(limiter, family[0], 3)
                assert scene.proxy.count("TransactWriteItems") == (4 if then else 2)
            assert scene.left(*family) == [7, 7]

    def test_take_over_all_shards_with_a_lost_reply_is_done_once(
        self, kind: str, lose: Lose, done: bool, scene: Scene
    ) -> None:
        """What is too large for one is a transaction as well."""
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            scene.proxy.fail(1, "ThrottlingException", operation="UpdateItem")
            assert take(limiter, entity)
            assert len(scene.shards(entity)) == 2
            scene.proxy.forget()
            lose(scene.proxy, "TransactWriteItems")
            assert take(limiter, entity, 8)
            assert scene.proxy.count("TransactWriteItems") == 2
            assert scene.left(entity) == 1

    def test_looking_again_does_no_harm(self, kind: str, lose: Lose, done: bool, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            for operation, look in (
                ("GetItem", lambda: limiter.available(entity, "r", [TEN])),
                ("BatchGetItem", lambda: limiter.get_limits(entity)),
                ("Query", lambda: limiter.get_buckets(entity)),
            ):
                scene.proxy.forget()
                lose(scene.proxy, operation)
                look()
                assert scene.proxy.left == 0
                assert scene.proxy.count(operation) >= 2

    def test_lost_reply_to_one_of_a_batch_leaves_the_others_answered(
        self, kind: str, lose: Lose, done: bool, scene: Scene
    ) -> None:
        """The others have their answers."""
        keys = [f"default/{new_entity()}#r" for _ in range(3)]
        with store_of(kind, scene.url) as store:
            batch = [request(MINUTE, 1, TAKE, key) for key in keys]
            store.settle(batch, START_MS)
            scene.proxy.forget()
            lose(scene.proxy, "UpdateItem")
            with pytest.raises(PartlyAnswered) as caught:
                store.settle(batch, START_MS)
            assert scene.writes() == 3
            answers = [one if isinstance(one, Answer) else None for one in caught.value.results]
            assert [answer.levels for answer in answers if answer is not None] == [[(8000, 0)]] * 2
            looks = store.settle([_look(key) for key in keys], START_MS)
            lost = [look.levels[0][0] for look, answer in zip(looks, answers) if answer is None]
            assert lost == [8000 if done else 9000]


def _look(key: str) -> Any:
    return request(MINUTE, 0, PEEK, key)


@both_kinds
class TestLate:
    def test_a_reply_that_never_comes(self, kind: str, scene: Scene) -> None:
        taker, giver = new_entity(), new_entity()
        with limiter_of(kind, scene.url, store_timeout=TIMEOUT_SECONDS) as limiter:
            for entity, call, left in (
                (taker, lambda: take(limiter, taker, 2), 6),
                (giver, lambda: limiter.adjust(giver, "r", {"n": -1}, [TEN]), 9),
            ):
                assert patiently(lambda entity=entity: take(limiter, entity, 2))
                scene.proxy.forget()
                scene.proxy.lose_replies(1, silently=True)
                started = time.monotonic()
                assert f"did not answer within {TIMEOUT_SECONDS} s" in told(call)
                assert 0.9 * TIMEOUT_SECONDS < time.monotonic() - started < FAR_TOO_LONG_SECONDS
                assert scene.writes() == 1
                assert scene.left(entity) == left

    def test_an_engine_that_stands_still(self, kind: str, own_ministack: Ministack, aws_credentials: str) -> None:
        entity = new_entity()
        with limiter_of(kind, new_table(own_ministack), store_timeout=TIMEOUT_SECONDS) as limiter:
            assert patiently(lambda: take(limiter, entity))
            own_ministack.pause()
            for call in (
                lambda: take(limiter, entity),
                lambda: limiter.adjust(entity, "r", {"n": 1}, [TEN]),
                lambda: limiter.get_limits(entity),
            ):
                started = time.monotonic()
                assert "did not answer within 0.3 s" in told(call)
                assert time.monotonic() - started < FAR_TOO_LONG_SECONDS
            assert limiter.try_acquire(entity, "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
            own_ministack.resume()
            admitted = 1
            while patiently(lambda: take(limiter, entity)):
                admitted += 1
            assert 1 < admitted <= 10, "what came too late may have been done all the same, and was not sold again"


@both_kinds
class TestAway:
    def test_calls_fail_while_the_table_is_away_and_work_when_it_is_back(self, kind: str, scene: Scene) -> None:
        """What was never sent may be sent again, and the connections from before are not missed."""
        entity = new_entity()
        with limiter_of(kind, scene.url, store_timeout=AWAY_SECONDS) as limiter:
            assert patiently(lambda: take(limiter, entity))
            for _ in range(2):
                scene.proxy.down()
                assert "cannot be reached" in told(lambda: take(limiter, entity))
                assert "cannot be reached" in told(lambda: limiter.adjust(entity, "r", {"n": -1}, [TEN]))
                assert scene.left(entity) == 9
                scene.proxy.up()
                limiter.adjust(entity, "r", {"n": 1}, [TEN])
                limiter.adjust(entity, "r", {"n": -1}, [TEN])
            scene.proxy.down()
            scene.proxy.up()
            assert take(limiter, entity)
            assert scene.left(entity) == 8

    def test_a_short_outage_within_the_deadline_is_waited_out(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            scene.proxy.down()
            back = threading.Timer(0.2, scene.proxy.up)
            back.start()
            assert take(limiter, entity)
            back.join()
            assert scene.left(entity) == 8

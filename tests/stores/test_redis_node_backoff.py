"""A node of a cluster that does not answer is skipped for a while: calls to other nodes do not wait for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from redis_play import HIGH, LATE, LOW, UNREACHED, A, B, deliver, new_router, nodes, once

from headgate import RateLimiterUnavailable
from headgate.stores.redis.router import NodeBackoff, Router


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def router(time: Time) -> Router:
    router = new_router("redis+cluster://a:1")
    router._backoff = NodeBackoff(time)
    return router


def both(router: Router, *, a: Any) -> Any:
    play = deliver(router, once("x", LOW), once("y", HIGH), by=nodes(lambda node, _: a if node == A else 1))
    assert play.replies[1] == 1, "it is on the other node"
    return play


def asked_of_a(play: Any) -> bool:
    return (A, ("x",)) in play.sent


def test_after_two_times_it_is_left_alone(router: Router, time: Time) -> None:
    for _ in range(2):
        assert asked_of_a(both(router, a=LATE))
    for _ in range(100):
        play = both(router, a=LATE)
        assert not asked_of_a(play)
        assert (B, ("y",)) in play.sent
        assert isinstance(play.replies[0], RateLimiterUnavailable)
    assert play.told == "the Redis server at a:1 has not answered lately, and is skipped for a moment"


def test_after_a_pause_one_tries_it(router: Router, time: Time) -> None:
    for _ in range(2):
        both(router, a=LATE)
    time.now += 0.25
    tried = [asked_of_a(both(router, a=LATE)) for _ in range(10)]
    assert tried == [True] + [False] * 9


def test_the_pauses_grow_up_to_five_seconds(router: Router, time: Time) -> None:
    tries = []
    while time.now < 40:
        if asked_of_a(both(router, a=LATE)):
            tries.append(time.now)
        time.now += 0.05
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(tries[1:])]
    assert pauses[0] < 0.5
    assert pauses == sorted(pauses)
    assert max(pauses) < 5.2


def test_once_it_answers_all_is_as_before(router: Router, time: Time) -> None:
    for _ in range(2):
        both(router, a=LATE)
    time.now += 0.25
    assert both(router, a=7).replies == [7, 1]
    assert both(router, a=7).replies == [7, 1]


@pytest.mark.parametrize("reply", [UNREACHED, 7])
def test_what_is_over_soon_keeps_nobody_waiting(router: Router, reply: Any) -> None:
    for _ in range(5):
        assert asked_of_a(both(router, a=reply))


def test_one_server_is_the_breakers_matter() -> None:
    router = new_router()
    for _ in range(5):
        assert len(deliver(router, once(), by=lambda _: LATE).sent) == 1

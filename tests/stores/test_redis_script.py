"""settle.lua is the second copy of the arithmetic. Whatever happens to it and to core, they say the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.bucket import Bucket
from headgate.core.decide import Answer, Mode, Part, Request, decide
from headgate.core.names import bucket_key, parse_bucket_key
from headgate.core.units import MAX_AMOUNT, MAX_PERIOD_MS, MILLI
from headgate.stores import Store, open_store
from headgate.testing.servers.redis import RedisServer

START = 1_700_000_000_000
LARGEST = 10**12 * MILLI
DAY = 86_400_000
INJECTED_CLOCK_MARGIN_MS = DAY  # as in settle.lua

_namespaces = (f"n{number}" for number in itertools.count())

# Numbers people use, numbers at the ends, and anything in between.
milli = st.one_of(
    st.integers(1, 20_000), st.sampled_from([1, 999, 1000, LARGEST - 1, LARGEST]), st.integers(1, LARGEST)
)
periods_ms = st.one_of(
    st.sampled_from([1, 7, 1000, 60_000, DAY, 30 * DAY, MAX_PERIOD_MS - 1, MAX_PERIOD_MS]),
    st.integers(1, MAX_PERIOD_MS),
)
amounts_milli = st.one_of(milli, st.integers(0, 3), st.sampled_from([MAX_AMOUNT * MILLI, 3 * LARGEST]))
waits_ms = st.one_of(st.just(0), st.just(0), st.integers(1, 100_000), st.integers(1, MAX_PERIOD_MS))
steps_ms = st.one_of(
    st.integers(0, 3), st.integers(0, 100_000), st.integers(0, 3 * MAX_PERIOD_MS), st.integers(-5000, -1)
)
limits = st.builds(Limit.from_stored, st.sampled_from("xyz"), milli, milli, periods_ms)


@st.composite
def requests(draw: st.DrawFn, pool: list[Limit]) -> Request:
    mode = draw(st.sampled_from([Mode.TAKE, Mode.TAKE, Mode.TAKE, Mode.FORCE, Mode.PEEK, Mode.PENALIZE]))
    keys = tuple(draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)))
    parts = []
    for level in range(len(keys)):
        chosen = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique_by=lambda limit: limit.name))
        for limit in chosen:
            amount = draw(amounts_milli)
            if mode is Mode.FORCE and draw(st.booleans()):
                amount = -amount
            parts.append(Part(level, limit, amount, draw(st.integers(0, 3))))
    block_ms, keep_milli = draw(st.sampled_from([0, 0, 1, 5000, DAY])), draw(st.sampled_from([MILLI, 0, 1, 333, 999]))
    return Request(mode, keys, tuple(parts), draw(waits_ms), block_ms, keep_milli)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[Request]]]:
    pool = draw(st.lists(limits, min_size=1, max_size=4))
    history = []
    for _ in range(draw(st.integers(1, 6))):
        batch = draw(st.lists(requests(pool), min_size=1, max_size=3))
        repeated = [request for request in batch for _ in range(draw(st.sampled_from([1, 1, 2, 5])))]
        history.append((draw(steps_ms), repeated))
    return history


class Reference:
    """Buckets in a dict, and core."""

    def __init__(self) -> None:
        self.buckets: dict[tuple[str, str], Bucket] = {}

    def settle(self, batch: list[Request], now_ms: int) -> list[Answer]:
        answers = [decide(request, self._found(request, now_ms), now_ms) for request in batch]
        touched = {request.keys[part.level] for request in batch for part in request.parts}
        for place, bucket in list(self.buckets.items()):
            # A row that is written again leaves out what has been full for long.
            if place[0] in touched and bucket.full_at_ms() <= now_ms - INJECTED_CLOCK_MARGIN_MS:
                del self.buckets[place]
        return answers

    def _found(self, request: Request, now_ms: int) -> list[Bucket]:
        found = []
        for level, limit, _, revision in request.parts:
            full = Bucket.full(limit, now_ms, revision)
            found.append(self.buckets.setdefault((request.keys[level], limit.name), full))
        return found


@pytest.fixture(scope="module")
def store(redis_server: RedisServer) -> Iterator[Store]:
    store = open_store(redis_server.url.replace("/0", "/15"), 10.0)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def _empty(redis_server: RedisServer) -> Iterator[None]:
    yield
    with redis_server.client() as client:
        client.select(15)
        client.flushdb()


def shown(answer: Answer) -> tuple[object, ...]:
    return answer.allowed, answer.wait_ms, list(answer.levels)


def state(bucket: Bucket) -> tuple[object, ...]:
    limit = bucket.limit
    return (
        (limit.name, limit.capacity_milli, limit.refill_milli, limit.period_ms),
        (bucket.tokens_milli, bucket.settled_at_ms, bucket.remainder, bucket.blocked_until_ms, bucket.revision),
    )


def stored(store: Store, key: str, limit_name: str) -> Bucket:
    """As it lies there: looked up in its row, settled by nobody."""
    namespace, entity_id, resource = parse_bucket_key(key)
    (row,) = store.list_buckets(namespace, entity_id, resource, None, 0)
    (bucket,) = (bucket for bucket in row.buckets if bucket.limit.name == limit_name)
    return bucket


X = Limit.from_stored("x", LARGEST, 1, MAX_PERIOD_MS)
OWING = Request(Mode.FORCE, ("a",), (Part(0, Limit.from_stored("x", LARGEST, LARGEST, DAY), 9 * LARGEST),))


@given(histories())
@example([(0, [OWING] * 200), (3 * MAX_PERIOD_MS, [OWING]), (1, [OWING] * 3)])
@example(
    [(0, [Request(Mode.TAKE, ("a",), (Part(0, X, LARGEST),))]), (7, [Request(Mode.PEEK, ("a",), (Part(0, X, 1),))])]
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_history_equals_core(store: Store, history: list[tuple[int, list[Request]]]) -> None:
    namespace = next(_namespaces)
    reference = Reference()
    now_ms = START
    for step_ms, batch in history:
        now_ms += step_ms
        expected = reference.settle(batch, now_ms)
        there = [
            request._replace(keys=tuple(bucket_key(namespace, key, "r") for key in request.keys)) for request in batch
        ]
        assert [shown(answer) for answer in store.settle(there, now_ms)] == [shown(answer) for answer in expected]
    for (key, name), bucket in reference.buckets.items():
        assert state(stored(store, bucket_key(namespace, key, "r"), name)) == state(bucket)

"""settle.sql is a second copy of the arithmetic. Whatever happens to it and to core, they say the same."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from settle_histories import (
    DAY,
    LARGEST,
    History,
    all_kinds,
    alternations,
    amounts_milli,
    concurrent,
    crowds,
    few_slots,
    histories,
    limits,
    milli,
    periods_ms,
    queues,
    quota_turns,
    quotas,
    steps_ms,
    ttls_ms,
)

from headgate import Limit
from headgate.core.bucket import Bucket
from headgate.core.decide import Answer, Mode, Part, Request, State, decide, state_of
from headgate.core.names import bucket_key, parse_bucket_key
from headgate.core.quota import Quota
from headgate.core.slots import Slots
from headgate.core.units import MAX_PERIOD_MS
from headgate.core.usage import HOUR_MS, hour_of, is_over
from headgate.stores import Store, open_store
from headgate.stores.memory import MemoryStore
from local_servers.postgres import PostgresServer

START = 1_700_000_000_000

_namespaces = (f"n{number}" for number in itertools.count())


@st.composite
def plain_histories(draw: st.DrawFn) -> History:
    """One bucket or quota, equal takes that cannot wait: what take() and take_quota() do alone, and now and then
    something that they find."""
    limit = draw(st.one_of(st.builds(Limit.from_stored, st.just("x"), milli, milli, periods_ms), quotas("x")))
    close = st.integers(max(0, limit.capacity_milli // 7 - 3), limit.capacity_milli + 1)  # to what there is
    history = []
    for _ in range(draw(st.integers(3, 12))):
        mode = draw(st.sampled_from([Mode.TAKE] * 5 + [Mode.FORCE, Mode.PENALIZE]))
        request = Request(mode, ("a",), (Part(0, limit, draw(st.one_of(close, close, amounts_milli))),))
        request = request._replace(block_ms=draw(st.sampled_from([0, 5000])))
        history.append((draw(steps_ms), [request] * draw(st.sampled_from([1, 1, 2, 9]))))
    return history


def without_unknown_calendar(state: State, part: Part, now_ms: int) -> Limit | None:
    """The limit, as it is known to who has another calendar when the window is over."""
    limit = state.limit
    if not isinstance(state, Quota) or limit.calendar in (None, part.limit.calendar):
        return None
    if max(now_ms, state.settled_at_ms) < state.remainder:
        return None
    return Limit.from_stored(limit.name, limit.capacity_milli, limit.refill_milli, 0)


class Reference:
    """Buckets and slots in a dict, what was used of them in another, and core."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], State] = {}
        self._used: Counter[tuple[str, str, int]] = Counter()  # by key, limit and hour

    def settle(self, batch: list[Request], now_ms: int) -> list[Answer]:
        return [self._decided(request, now_ms) for request in batch]

    def _decided(self, request: Request, now_ms: int) -> Answer:
        states = [self._state(request, part, now_ms) for part in request.parts]
        hidden = []
        for part, state in zip(request.parts, states):
            if known := without_unknown_calendar(state, part, now_ms):
                hidden.append((state, state.limit, known))
                state.limit = known
            if isinstance(state, Quota):
                state.settle(now_ms)  # one whose calendar was hidden before begins its window, even at the same moment
        answer = decide(request, states, now_ms)
        for state, limit, known in hidden:
            if state.limit is known:
                state.limit = limit
        return answer

    def used(self) -> dict[tuple[str, str, int], int]:
        for place, state in self.states.items():
            self._put_away(place, state)
        return {place: milli for place, milli in self._used.items() if milli}

    def _put_away(self, place: tuple[str, str], state: State) -> None:
        if isinstance(state, Bucket):
            self._used[(*place, hour_of(state.settled_at_ms))] += state.used_milli
            state.used_milli = 0

    def _state(self, request: Request, part: Part, now_ms: int) -> State:
        place, anew = (request.keys[part.level], part.limit.name), state_of(part, now_ms)
        state = self.states.setdefault(place, anew)
        if type(state) is type(anew):
            if isinstance(state, Bucket) and is_over(state, now_ms):
                self._put_away(place, state)
            return state
        if request.mode is not Mode.PEEK:  # which changes nothing
            self._put_away(place, state)
            self.states[place] = anew
        return anew


@pytest.fixture(scope="module")
def store(postgres_server: PostgresServer) -> Iterator[Store]:
    store = open_store(f"{postgres_server.url}?schema=settled", 10.0)
    store.setup()
    store.usage_ms = 50 * MAX_PERIOD_MS
    yield store
    store.close()
    postgres_server.execute("DROP SCHEMA settled CASCADE")


def shown(answer: Answer) -> tuple[object, ...]:
    return answer.allowed, answer.wait_ms, list(answer.levels)


def told(state: State) -> tuple[object, ...]:
    limit = state.limit
    shape = (limit.name, limit.capacity_milli, limit.refill_milli, limit.period_ms)
    common = (state.settled_at_ms, state.blocked_until_ms, state.revision)
    if isinstance(state, Slots):
        return shape, common, state.holders, state.held_milli
    return shape, common, state.tokens_milli, state.remainder


def stored(store: Store, key: str, limit_name: str) -> State:
    """As it lies there: looked up in its row, settled by nobody."""
    namespace, entity_id, resource = parse_bucket_key(key)
    (row,) = store.list_buckets(namespace, entity_id, resource, None, 0)
    (state,) = (state for state in row.buckets if state.limit.name == limit_name)
    return state


def within(namespace: str, batch: list[Request]) -> list[Request]:
    return [request._replace(keys=tuple(bucket_key(namespace, key, "r") for key in request.keys)) for request in batch]


def check_equals_core(store: Store, history: History) -> None:
    namespace = next(_namespaces)
    reference = Reference()
    now_ms = START
    for step_ms, batch in history:
        now_ms += step_ms
        expected = reference.settle(batch, now_ms)
        answers = store.settle(within(namespace, batch), now_ms)
        assert [shown(answer) for answer in answers] == [shown(answer) for answer in expected]
    for (key, name), state in reference.states.items():
        assert told(stored(store, bucket_key(namespace, key, "r"), name)) == told(state)
    assert used(store, namespace, now_ms) == reference.used()


def used(store: Store, namespace: str, now_ms: int) -> dict[tuple[str, str, int], int]:
    """By entity, limit and hour; nothing is in two parts."""
    found: dict[tuple[str, str, int], int] = {}
    page = store.list_usage(namespace, None, None, (hour_of(START) - 24, hour_of(now_ms) + 24), None, now_ms)
    for row in page:
        counted = {(row.entity_id, name, hour): milli for name, of in row.used.items() for hour, milli in of.items()}
        assert not found.keys() & counted.keys()
        found |= {place: milli for place, milli in counted.items() if milli}
    return found


X = Limit.from_stored("x", LARGEST, 1, MAX_PERIOD_MS)
A_SEVENTH = Limit.from_stored("x", 10, 1, 7)
EMPTYING = Request(Mode.FORCE, ("a",), (Part(0, A_SEVENTH, 10),))
LOWERING = Request(Mode.LOWER, ("a",), (Part(0, A_SEVENTH, 0),))
PAIR = [Limit.per_day("x", 10), Limit.per_day("x", 20)]
SMALLEST = Request(Mode.TAKE, ("a",), (Part(0, Limit.from_stored("x", 1, 1, 7), 1),))
OWING = Request(Mode.FORCE, ("a",), (Part(0, Limit.from_stored("x", LARGEST, LARGEST, DAY), 9 * LARGEST),))
AHEAD = Request(Mode.TAKE, ("a",), (Part(0, Limit.from_stored("x", LARGEST, LARGEST, 1), LARGEST),), MAX_PERIOD_MS)

LIGHTLY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@given(histories())
@example([(0, [OWING] * 200), (3 * MAX_PERIOD_MS, [OWING]), (1, [OWING] * 3)])
@example(
    [(0, [Request(Mode.TAKE, ("a",), (Part(0, X, LARGEST),))]), (7, [Request(Mode.PEEK, ("a",), (Part(0, X, 1),))])]
)
@example([(0, [EMPTYING]), (5, [LOWERING]), (0, [LOWERING]), (9, [EMPTYING])])
@example([(0, [AHEAD] * 300), (5, [AHEAD]), (MAX_PERIOD_MS, [AHEAD])])
@LIGHTLY
def test_every_history_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(plain_histories())
@LIGHTLY
def test_every_plain_history_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(alternations())
@example([(0, [Request(Mode.TAKE, ("a",), (Part(0, limit, 1000),)) for _ in range(500) for limit in PAIR])])
@example([(0, [OWING] * 200 + [SMALLEST]), (5, [OWING, SMALLEST, OWING])])
@LIGHTLY
def test_limits_that_take_turns_equal_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(queues())
@LIGHTLY
def test_every_queue_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(crowds())
@LIGHTLY
def test_every_crowd_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(histories(st.one_of(concurrent("xyz"), concurrent("xyz"), limits)))
@LIGHTLY
def test_every_history_with_slots_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(histories(all_kinds("xyz")))
@example([(0, [AHEAD, Request(Mode.TAKE, ("a",), (Part(0, Limit.quota("y", 5, "day"), 1000),), DAY)])])
@LIGHTLY
def test_every_history_of_all_three_kinds_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


@given(quota_turns())
@LIGHTLY
def test_a_quota_whose_windows_change_equals_core(store: Store, history: History) -> None:
    check_equals_core(store, history)


def _of_no_revision(request: Request) -> Request:
    return request._replace(parts=tuple(part._replace(revision=0) for part in request.parts))


# A limit is of one kind, by its name, and the time is short: memory forgets what has been full for a minute.
of_one_kind = st.one_of(
    st.builds(Limit.from_stored, st.sampled_from("xy"), few_slots, st.just(0), ttls_ms),
    st.builds(Limit.from_stored, st.just("z"), milli, milli, periods_ms),
    quotas("w"),
)


@given(
    histories(of_one_kind, st.sampled_from(["l1", "l2", "l3"]), st.integers(0, 9000)),
    st.lists(st.sampled_from(["sweep", "delete", ""]), min_size=6, max_size=6),
)
@settings(LIGHTLY, max_examples=40)
def test_every_history_equals_memory(store: Store, history: History, acts: list[str]) -> None:
    """What is removed is as good as what was never there, and leaves its usage behind."""
    namespace, memory = next(_namespaces), MemoryStore()
    memory.usage_ms = store.usage_ms
    now_ms = START - START % HOUR_MS + HOUR_MS - 20_000  # the hour turns on the way
    for (step_ms, batch), act in zip(history, acts):
        now_ms += step_ms
        batch = [_of_no_revision(request) for request in batch]  # which what is forgotten has no longer
        if act == "sweep":
            assert store.sweep(namespace, now_ms).leases == memory.sweep(namespace, now_ms).leases
        elif act == "delete":
            for each in (store, memory):
                each.delete_buckets([bucket_key(namespace, key, "r") for key in ("a", "b")])
        there = within(namespace, batch)
        expected = [shown(answer) for answer in memory.settle(there, now_ms)]
        assert [shown(answer) for answer in store.settle(there, now_ms)] == expected
        assert used(store, namespace, now_ms) == used(memory, namespace, now_ms)

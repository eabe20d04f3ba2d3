"""Settling on DynamoDB: the answers of the memory store, and what they cost on the wire."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dynamodb_helpers import START_MS, USAGE_MS, new_table, opened, request, used
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from settle_histories import CALENDARS, History, alternations

from headgate.core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Part, Request
from headgate.core.limit import AT_ONCE, Limit
from headgate.stores.dynamodb import blocking
from headgate.stores.dynamodb.exchange import Failed, Send
from headgate.stores.memory.store import MemoryStore
from local_servers.dynamodb import Engine

RPM = Limit.per_minute("rpm", 60)
TPM = Limit.per_minute("tpm", 1000, burst=1500)
PAIR = [Limit.per_day("rpd", 10), Limit.per_day("rpd", 20)]

_entities = itertools.count()


@pytest.fixture(scope="module")
def url(dynamodb_engine: Engine, aws_credentials: str) -> str:
    return new_table(dynamodb_engine)


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Any]:
    """One that counts what is used: it costs nothing."""
    with opened(url) as store:
        store.usage_ms = USAGE_MS
        store.settle([request(RPM, 1, TAKE, "n/warm#up")], START_MS)
        yield store


def counting() -> MemoryStore:
    memory = MemoryStore()
    memory.usage_ms = USAGE_MS
    return memory


@pytest.fixture
def key() -> str:
    return f"n/e{next(_entities)}#r"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What goes over the wire, by operation; with a - what DynamoDB did not do."""
    count: Counter[str] = Counter()
    really = blocking._Talk._send

    def counted(self: Any, client: Any, send: Send) -> Any:
        reply = really(self, client, send)
        count[send.operation + "-" * isinstance(reply, Failed)] += 1
        return reply

    monkeypatch.setattr(blocking._Talk, "_send", counted)
    return count


@contextmanager
def costs(sent: Counter[str], **expected: int) -> Iterator[None]:
    sent.clear()
    yield
    assert dict(sent) == expected


# The answers

shapes = st.tuples(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 120_000))
extremes = st.tuples(st.integers(1, 10**15), st.integers(1, 10**15), st.integers(1, 366 * 86_400_000))
calendars = st.tuples(st.integers(1, 20_000), st.just(AT_ONCE), st.just(0), st.sampled_from(CALENDARS))
from_first_use = st.tuples(st.integers(1, 20_000), st.just(AT_ONCE), st.integers(1, 120_000))
limits = st.one_of(shapes, extremes, calendars, from_first_use)
steps_ms = st.one_of(st.integers(-500, 60_000), st.integers(-500, 60_000), st.integers(0, 3 * 86_400_000))
amounts = st.one_of(st.integers(0, 30_000), st.integers(1, 10**15), st.just(0))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Any, ...]:
    mode = draw(st.sampled_from([TAKE, TAKE, TAKE, FORCE, PEEK, PENALIZE, LOWER]))
    levels = draw(st.sampled_from([[0], [1], [0, 1], [2, 1, 0]]))
    named = draw(st.sampled_from([["x"], ["y"], ["x", "y"]]))
    amount = draw(st.integers(-30_000, 30_000) if mode is FORCE else amounts)
    revision = draw(st.sampled_from([0, 0, 1]))  # an older one may meet a bucket that was full and is forgotten
    wait = draw(st.sampled_from([0, 0, 1000, 10**6]))
    return mode, levels, named, amount, revision, wait, draw(st.booleans()), draw(st.sampled_from([0, 0, 500]))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.tuples(limits, limits),
    second=st.tuples(limits, limits),
    batches=st.lists(st.tuples(steps_ms, st.lists(requests(), min_size=1, max_size=5)), max_size=6),
)
@example(  # a take that is refused, and a penalty after it
    first=((1, 1, 1), (1, 1, 1)),
    second=((1, 1, 1), (1, 1, 2)),
    batches=[
        (
            0,
            [
                (TAKE, [0, 1], ["x"], 0, 0, 0, False, 0),
                (PEEK, [2, 1, 0], ["y"], 0, 0, 0, True, 0),
                (TAKE, [2, 1, 0], ["y"], 2, 0, 0, False, 0),
                (PENALIZE, [0], ["y"], 0, 0, 0, False, 0),
            ],
        )
    ],
)
def test_every_batch_is_answered_like_by_the_memory_store(store: Any, first: Any, second: Any, batches: Any) -> None:
    known = [{name: Limit.from_stored(name, *shape) for name, shape in zip("xy", shapes)} for shapes in (first, second)]
    turning = any(known[0][name].is_quota is not known[1][name].is_quota for name in "xy")
    number, memory, now_ms = next(_entities), counting(), START_MS
    keys = [f"n/h{number}-{level}#r" for level in range(3)]
    for step_ms, described in batches:
        now_ms += abs(step_ms) if turning else step_ms  # one that changes its kind forgets the time with the rest
        batch = [_request(keys, known, *one) for one in described]
        assert _plain(store.settle(batch, now_ms)) == _plain(memory.settle(batch, now_ms))
    for level in range(3):
        assert used(store, f"h{number}-{level}", "r") == used(memory, f"h{number}-{level}", "r")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(alternations())
@example([(0, [request(limit, 1, TAKE, "a") for _ in range(100) for limit in PAIR])])
def test_limits_that_take_turns_are_answered_like_by_the_memory_store(store: Any, history: History) -> None:
    number, memory, now_ms = next(_entities), counting(), START_MS
    for step_ms, described in history:
        now_ms += step_ms
        batch = [_of_no_revision(one, f"n/t{number}#r") for one in described]
        assert _plain(store.settle(batch, now_ms)) == _plain(memory.settle(batch, now_ms))
    assert _plain(store.settle(batch, now_ms)) == _plain(memory.settle(batch, now_ms))


def _of_no_revision(request: Request, key: str) -> Request:
    """Of a bucket that was only looked at, the memory store knows the revision."""
    return request._replace(keys=(key,), parts=tuple(part._replace(revision=0) for part in request.parts))


# With slots: s and t are of slots. If limits turn into the other kind, z is of tokens under one and of slots under the
# other. It is not looked at, and clocks do not step back then: the memory store takes even a look for a change of kind,
# and forgets the time with the rest.


@st.composite
def slot_requests(draw: st.DrawFn) -> tuple[Any, ...]:
    mode = draw(st.sampled_from([TAKE, TAKE, TAKE, FORCE, FORCE, RENEW, RENEW, PEEK, PENALIZE, LOWER]))
    levels = draw(st.sampled_from([[0], [0], [1], [0, 1]]))
    named = draw(st.lists(st.sampled_from("ssstxz"), min_size=1, max_size=3, unique=True))
    tokens = draw(st.integers(-30_000, 30_000) if mode is FORCE else amounts)
    held = draw(st.sampled_from([1000, 1000, 1000, 2000, 3000, 500, 0]))
    revision = draw(st.sampled_from([0, 0, 1]))
    wait = draw(st.sampled_from([0, 0, 1000, 10**6]))
    lease_id = draw(st.sampled_from("abcd"))
    changed, block_ms = draw(st.booleans()), draw(st.sampled_from([0, 0, 500]))
    if mode is FORCE and draw(st.sampled_from([True, True, False])):
        held = -held
    return mode, levels, named, tokens, held, revision, wait, lease_id, changed, block_ms


token_shapes = st.one_of(shapes, calendars, from_first_use)
slot_shapes = st.tuples(st.integers(1, 4).map(lambda slots: slots * 1000), st.just(0), st.integers(1, 3000))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.tuples(slot_shapes, slot_shapes, token_shapes, token_shapes),
    second=st.tuples(slot_shapes, slot_shapes, token_shapes, slot_shapes),
    batches=st.lists(st.tuples(st.integers(-500, 2000), st.lists(slot_requests(), min_size=1, max_size=6)), max_size=8),
    turning=st.booleans(),
)
def test_every_batch_with_slots_too(store: Any, first: Any, second: Any, batches: Any, turning: bool) -> None:
    known = [{name: Limit.from_stored(name, *shape) for name, shape in zip("stxz", each)} for each in (first, second)]
    number, memory, now_ms = next(_entities), counting(), START_MS
    keys = [f"n/s{number}-{level}#r" for level in range(2)]
    for step_ms, described in batches:
        now_ms += abs(step_ms) if turning or known[0]["x"].is_quota is not known[1]["x"].is_quota else step_ms
        found = [_slot_request(keys, known, turning, *one) for one in described]
        batch = [one for one in found if one.parts]
        assert _plain(store.settle(batch, now_ms)) == _plain(memory.settle(batch, now_ms))
    for key in keys:
        rows = [one.list_buckets("n", key[2:-2], "r", None, now_ms + 4000) for one in (store, memory)]
        assert _used(rows[0]) == _used(rows[1])


def _slot_request(
    keys: list[str], known: Any, turning: bool, mode: Any, levels: Any, named: Any, tokens: int, held: int,
    revision: int, wait: int, lease_id: str, changed: bool, block_ms: int,
) -> Request:  # fmt: skip
    of = known[changed if revision == 0 else 0]
    if not turning or mode is PEEK or not (of["z"].is_concurrent or mode in (FORCE, PENALIZE)):
        named = [name for name in named if name != "z"]
    parts = tuple(
        Part(place, of[name], held if of[name].is_concurrent else tokens, revision)
        for place, _ in enumerate(levels)
        for name in named
    )
    keep = 1000 if block_ms or mode is not PENALIZE else 333
    return Request(mode, tuple(keys[level] for level in levels), parts, wait, block_ms, keep, lease_id)


def _used(page: Any) -> list[Any]:
    """What is not full, or not free: the rest may have been forgotten."""
    return [
        (state.limit, state.available_milli(), getattr(state, "holders", None))
        for row in page
        for state in row.buckets
        if state.full_at_ms() > state.settled_at_ms
    ]


def _request(
    keys: list[str], known: Any, mode: Any, levels: Any, named: Any, amount: int, revision: int, wait: int,
    changed: bool, block_ms: int,
) -> Request:  # fmt: skip
    # Of one revision there is one limit.
    of = known[changed if revision == 0 else 0]
    parts = tuple(Part(place, of[name], amount, revision) for place, _ in enumerate(levels) for name in named)
    keep = 1000 if block_ms or mode is not PENALIZE else 333
    return Request(mode, tuple(keys[level] for level in levels), parts, wait, block_ms, keep)


def _plain(answers: list[Answer]) -> list[Any]:
    return [(answer.allowed, answer.wait_ms, list(answer.levels)) for answer in answers]


def test_a_store_that_knows_nothing_answers_the_same(store: Any, url: str, key: str) -> None:
    store.settle([request(RPM, 30, TAKE, key)], START_MS)
    with opened(url) as other:
        assert _plain(other.settle([request(RPM, 31, TAKE, key)], START_MS)) == [(False, 1000, [(30_000, 1000)])]
    with opened(url) as other:
        assert _plain(other.settle([request(RPM, 30, TAKE, key)], START_MS)) == [(True, 0, [(0, 0)])]


# The costs


def test_one_that_passes_is_one_write(store: Any, sent: Counter[str], key: str) -> None:
    both = Request(TAKE, (key,), (Part(0, RPM, 1000), Part(0, TPM, 5000)))
    for _ in range(3):
        with costs(sent, UpdateItem=1):
            assert store.settle([both], START_MS)[0].allowed
    with costs(sent, UpdateItem=1):  # full again in the meantime
        assert store.settle([both], START_MS + 3_600_000)[0].allowed


def test_all_who_wait_for_one_bucket_are_one_write(store: Any, sent: Counter[str], key: str) -> None:
    store.settle([request(RPM, 1, TAKE, key)], START_MS)
    with costs(sent, UpdateItem=1):
        answers = store.settle([request(RPM, 1, TAKE, key)] * 80, START_MS)
    assert [answer.allowed for answer in answers] == [True] * 59 + [False] * 21
    assert answers[58].levels == [(0, 0)]
    assert answers[59].wait_ms == 1000


def test_one_that_does_not_fit_lets_smaller_ones_pass(store: Any, sent: Counter[str], key: str) -> None:
    store.settle([request(RPM, 50, TAKE, key)], START_MS)
    batch = [request(RPM, amount, TAKE, key) for amount in (6, 5, 4, 1)]
    with costs(sent, UpdateItem=1):
        assert [answer.allowed for answer in store.settle(batch, START_MS)] == [True, False, True, False]


def test_many_buckets_are_few_requests(dynamodb_engine: Engine, store: Any, sent: Counter[str], key: str) -> None:
    if dynamodb_engine.name == "dynoxide":
        pytest.skip("it does not know quoted names on the right of SET in a statement")
    keys = [key.replace("#", f"-{number}#") for number in range(64)]
    store.settle([request(RPM, 1, TAKE, one) for one in keys], START_MS)
    with costs(sent, BatchExecuteStatement=3):
        answers = store.settle([request(RPM, 2, TAKE, one) for one in keys], START_MS)
    assert _plain(answers) == [(True, 0, [(57_000, 0)])] * 64
    with costs(sent, BatchExecuteStatement=3):
        answers = store.settle([request(RPM, 1, TAKE, one) for one in keys], START_MS + 60_000)
    assert _plain(answers) == [(True, 0, [(59_000, 0)])] * 64


def test_a_cascade_is_two_writes_side_by_side(store: Any, sent: Counter[str], key: str) -> None:
    parent = key.replace("#", "-parent#")
    with costs(sent, GetItem=2, TransactWriteItems=1):
        assert store.settle([request(RPM, 1, TAKE, key, parent)], START_MS)[0].allowed
    with costs(sent, UpdateItem=2):
        assert store.settle([request(RPM, 1, TAKE, key, parent)], START_MS)[0].allowed


def test_what_a_cascade_took_in_vain_comes_back(url: str, store: Any, sent: Counter[str], key: str) -> None:
    """The parent is empty, which the one who asks does not know."""
    parent = key.replace("#", "-parent#")
    store.settle([request(RPM, 1, TAKE, key, parent)], START_MS)
    with opened(url) as other:
        other.settle([request(RPM, 59, TAKE, parent)], START_MS)
    with costs(sent, **{"UpdateItem": 2, "UpdateItem-": 1}):
        assert not store.settle([request(RPM, 1, TAKE, key, parent)], START_MS)[0].allowed
    (answer,) = store.settle([request(RPM, 0, PEEK, key)], START_MS)
    assert answer.levels[0][0] == 59_000


def test_a_refusal_writes_nothing(store: Any, sent: Counter[str], key: str) -> None:
    store.settle([request(RPM, 60, TAKE, key)], START_MS)
    sent.clear()
    for _ in range(200):
        assert _plain(store.settle([request(RPM, 1, TAKE, key)], START_MS)) == [(False, 1000, [(0, 1000)])]
    assert set(sent) == {"GetItem"}
    assert sent["GetItem"] < 100, "looked at now and then, not each time"
    assert not store.settle([request(RPM, 1, TAKE, key)], START_MS + 999)[0].allowed
    with costs(sent, UpdateItem=1):
        assert store.settle([request(RPM, 1, TAKE, key)], START_MS + 1000)[0].allowed


def test_what_another_gives_back_is_seen(url: str, store: Any, key: str) -> None:
    store.settle([request(RPM, 60, TAKE, key)], START_MS)
    assert not store.settle([request(RPM, 1, TAKE, key)], START_MS)[0].allowed
    with opened(url) as other:
        other.settle([request(RPM, -1, FORCE, key)], START_MS)
    assert store.settle([request(RPM, 1, TAKE, key)], START_MS)[0].allowed


def test_giving_back_is_one_write(store: Any, sent: Counter[str], key: str) -> None:
    store.settle([request(RPM, 10, TAKE, key)], START_MS)
    with costs(sent, UpdateItem=1):
        store.settle([request(RPM, -3, FORCE, key)], START_MS)
    with costs(sent, UpdateItem=1):  # callers of both kinds at once
        answers = store.settle([request(RPM, 53, TAKE, key), request(RPM, -2, FORCE, key)], START_MS)
    assert [answer.levels[0][0] for answer in answers] == [0, 2000]

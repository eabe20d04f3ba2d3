"""Slots on DynamoDB: what they cost, who races for them, what is swept, and what a lost reply means.

That the answers are those of the memory store is in test_dynamodb_settle.py.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from dynamodb_helpers import START_MS, available, hold, new_table, opened, request, split
from dynamodb_limiters import Scene, Table, both_kinds, scene_on, store_of

from headgate.core.decide import FORCE, LOWER, PENALIZE, RENEW, TAKE, Answer, Part, Request
from headgate.core.errors import PartlyAnswered, RateLimiterUnavailable, ValidationError
from headgate.core.limit import Limit
from headgate.core.slots import Slots
from headgate.stores import open_async_store
from headgate.stores.dynamodb import blocking, places, slot_items
from headgate.stores.dynamodb.exchange import Failed, Send
from headgate.stores.memory.store import MemoryStore
from local_servers.dynamodb import Engine

TWO = Limit.concurrent("s", 2, ttl=60)
TTL_MS = 60_000
RPM = Limit.per_minute("rpm", 60)

_entities = itertools.count()


@pytest.fixture(scope="module")
def url(dynamodb_engine: Engine, aws_credentials: str) -> str:
    return new_table(dynamodb_engine)


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Any]:
    with opened(url) as store:
        store.settle([request(RPM, 1, TAKE, "n/warm#up")], START_MS)
        yield store


@pytest.fixture
def key() -> str:
    return f"n/e{next(_entities)}#r"


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


class Wire(Counter[str]):
    """What goes over the wire, by operation; with a - what DynamoDB did not do. And the capacity units it costs."""

    units = 0.0

    def begin(self) -> None:
        self.clear()
        self.units = 0.0


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    count = Wire()
    really = blocking._Talk._send

    def counted(self: Any, client: Any, send: Send) -> Any:
        asks = {**send.parameters, "ReturnConsumedCapacity": "TOTAL"}
        reply = really(self, client, send._replace(parameters=asks))
        count[send.operation + "-" * isinstance(reply, Failed)] += 1
        consumed = {} if isinstance(reply, Failed) else reply.get("ConsumedCapacity", {})
        count.units += sum(
            one.get("CapacityUnits", 0) for one in (consumed if isinstance(consumed, list) else [consumed])
        )
        return reply

    monkeypatch.setattr(blocking._Talk, "_send", counted)
    return count


def take(store: Any, key: str, lease_id: str, limit: Limit = TWO, now_ms: int = START_MS, amount: int = 1) -> Answer:
    (answer,) = store.settle([hold(limit, key, lease_id, amount)], now_ms)
    return answer


def release(store: Any, key: str, lease_id: str, now_ms: int = START_MS, amount: int = 1, limit: Limit = TWO) -> Answer:
    (answer,) = store.settle([hold(limit, key, lease_id, -amount, FORCE)], now_ms)
    return answer


def renew(store: Any, key: str, lease_id: str, now_ms: int = START_MS, limit: Limit = TWO) -> Answer:
    (answer,) = store.settle([hold(limit, key, lease_id, 0, RENEW)], now_ms)
    return answer


def holders(store: Any, key: str, now_ms: int = START_MS) -> dict[str, tuple[int, int]]:
    (found,) = store.list_buckets("n", key[2:].partition("#")[0], "r", None, now_ms)
    (slots,) = [one for one in found.buckets if isinstance(one, Slots)]
    return slots.holders


# What it costs


def test_a_take_a_renewal_and_a_release_are_one_write_each(
    dynamodb_engine: Engine, store: Any, wire: Wire, key: str
) -> None:
    assert take(store, key, "first").allowed
    assert wire["BatchGetItem"] == wire["UpdateItem"] == 1, "nothing was known: whether it exists is read"
    for lone in (
        lambda: take(store, key, "lone", now_ms=START_MS + 1),
        lambda: renew(store, key, "lone", START_MS + 2),
        lambda: release(store, key, "lone", START_MS + 3),
    ):
        wire.begin()
        assert lone().allowed
        assert wire == {"UpdateItem": 1}
        assert wire.units == 1 or dynamodb_engine.name != "DynamoDB Local", "the others do not count them like AWS"


def test_a_hundred_in_a_batch_are_one_write(store: Any, wire: Wire, key: str) -> None:
    many = Limit.concurrent("s", 90, ttl=60)
    take(store, key, "first", many)
    wire.begin()
    answers = store.settle([hold(many, key, f"lease{number}") for number in range(100)], START_MS)
    assert [answer.allowed for answer in answers] == [True] * 89 + [False] * 11
    assert wire == {"UpdateItem": 1}
    wire.begin()
    answers = store.settle([hold(many, key, f"lease{number}", 0, RENEW) for number in range(100)], START_MS + 1)
    assert [answer.allowed for answer in answers] == [True] * 89 + [False] * 11
    assert wire == {"UpdateItem": 1}


def test_a_refusal_writes_nothing(store: Any, wire: Wire, key: str) -> None:
    for lease_id in "ab":
        take(store, key, lease_id)
    wire.begin()
    for _ in range(100):
        assert not take(store, key, "c").allowed
    assert set(wire) == {"GetItem"}
    assert wire["GetItem"] < 50, "looked at now and then, not each time"


def test_what_is_nothing_to_do_is_looked_up_once(store: Any, wire: Wire, key: str) -> None:
    take(store, key, "a")
    for nothing in (lambda: release(store, key, "b"), lambda: renew(store, key, "b")):
        wire.begin()
        nothing()
        assert wire == {"GetItem": 1}


def test_those_who_hold_are_in_nobodys_way(url: str, store: Any, wire: Wire, key: str) -> None:
    """What another has done meanwhile does not matter, as long as there is room."""
    limit = Limit.concurrent("s", 10, ttl=60)
    take(store, key, "mine", limit)
    with opened(url) as other:
        take(other, key, "first", limit)
        for number, step in enumerate(
            (
                lambda: take(store, key, "more", limit),
                lambda: renew(store, key, "mine", START_MS + 5, limit),
                lambda: release(store, key, "mine", limit=limit),
            )
        ):
            take(other, key, f"theirs{number}", limit)
            wire.begin()
            assert step().allowed
            assert wire == {"UpdateItem": 1}
    assert holders(store, key).keys() == {"first", "more", "theirs0", "theirs1", "theirs2"}


# All or nothing


def test_a_slot_and_tokens_or_neither(url: str, store: Any, wire: Wire, key: str) -> None:
    """The one who asks does not know that the tokens are gone, and has the slot in its hand."""
    both = Request(TAKE, (key,), (Part(0, TWO, 1000), Part(0, RPM, 1000)), lease_id="a")
    assert store.settle([both], START_MS)[0].allowed
    with opened(url) as other:
        other.settle([request(RPM, 59, TAKE, key)], START_MS)
    wire.begin()
    (answer,) = store.settle([both._replace(lease_id="b")], START_MS)
    assert (answer.allowed, list(answer.levels)) == (False, [(1000, 0), (0, 1000)])
    assert wire["UpdateItem"] >= 2, "it was taken, and given back"
    assert holders(store, key).keys() == {"a"}
    (answer,) = store.settle([both._replace(lease_id="b", max_wait_ms=1000)], START_MS)
    assert (answer.allowed, answer.wait_ms) == (True, 1000), "tokens can be reserved"
    (answer,) = store.settle([both._replace(lease_id="c", max_wait_ms=10**6)], START_MS)
    assert (answer.allowed, answer.wait_ms) == (False, TTL_MS), "slots cannot"
    assert available(store, RPM, key=key) == -1000


def test_slots_beside_a_bucket_of_many_shards_are_taken_with_it(ministack: Engine, aws_credentials: str) -> None:
    limit = Limit.per_minute("n", 100)
    with opened(new_table(ministack)) as store:
        both = Request(TAKE, ("n/e#r",), (Part(0, TWO, 1000), Part(0, limit, 40_000)), lease_id="a")
        assert store.settle([both], START_MS)[0].allowed
        split(store)
        split(store)
        (answer,) = store.settle([both._replace(lease_id="b")], START_MS)
        assert (answer.allowed, list(answer.levels)) == (True, [(0, 0), (20_000, 0)])
        (answer,) = store.settle([both._replace(lease_id="c")], START_MS)
        assert (answer.allowed, [level for level, _ in answer.levels]) == (False, [0, 20_000])
        release(store, "n/e#r", "b")
        (answer,) = store.settle([both._replace(lease_id="c")], START_MS)
        assert (answer.allowed, [level for level, _ in answer.levels]) == (False, [1000, 20_000])
        assert holders(store, "n/e#r").keys() == {"a"}, "what was taken in vain is back"
        (answer,) = store.settle([both._replace(mode=RENEW)], START_MS + 1)
        assert (answer.allowed, [wait for _, wait in answer.levels]) == (False, [0, None])


def test_lowering_a_bucket_of_shards_leaves_the_amount_over_all_of_them(
    ministack: Engine, aws_credentials: str
) -> None:
    """All of them together have so much, and each its share: not the least of them everything."""
    limit = Limit.custom("n", 100, 0.001, 366 * 86_400)
    with opened(new_table(ministack)) as store:
        store.settle([request(limit, 10)], START_MS)
        split(store)
        store.settle([request(limit, 20)], START_MS)
        split(store)
        for amount, left in ((80, 70), (51, 51), (50, 50), (7, 7), (9, 7), (0, 0)):
            store.settle([request(limit, amount, LOWER)], START_MS)
            assert available(store, limit) == left * 1000
        assert not store.settle([request(limit, 1)], START_MS)[0].allowed


def test_lowering_is_decided_on_what_is_true(url: str, store: Any, wire: Wire, key: str) -> None:
    store.settle([request(RPM, 58, TAKE, key)], START_MS)
    with opened(url) as other:
        other.settle([request(RPM, -40, FORCE, key)], START_MS)
    (answer,) = store.settle([request(RPM, 5, LOWER, key)], START_MS)
    assert answer.levels[0][0] == available(store, RPM, key=key) == 5000
    with opened(url) as other:
        other.settle([request(RPM, -40, FORCE, key)], START_MS)
    batch = [request(Limit.per_minute("other", 9), 1, TAKE, key), request(RPM, 6, LOWER, key)]
    assert store.settle(batch, START_MS)[1].levels[0][0] == available(store, RPM, key=key) == 6000


# Who races


@pytest.mark.parametrize("renewing", [False, True])
def test_racing_threads_never_hold_more_than_all_slots(renewing: bool, ministack: Engine, aws_credentials: str) -> None:
    url, lock = new_table(ministack), threading.Lock()
    inside, most, passed = 0, 0, 0

    def work(store: Any, number: int) -> None:
        nonlocal inside, most, passed
        for turn in range(8):
            lease_id = f"{number}-{turn}"
            if take(store, "n/e#r", lease_id).allowed:
                with lock:
                    inside, passed = inside + 1, passed + 1
                    most = max(most, inside)
                if renewing:
                    assert renew(store, "n/e#r", lease_id, START_MS + turn).allowed
                with lock:
                    inside -= 1
                assert release(store, "n/e#r", lease_id).allowed

    with ExitStack() as stack:
        stores = [stack.enter_context(opened(url)) for _ in range(2)]
        threads = [threading.Thread(target=work, args=(stores[number % 2], number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert holders(stores[0], "n/e#r", START_MS + 10) == {}
    assert most <= 2
    assert passed >= 8


def test_racing_tasks_never_hold_more_than_all_slots(ministack: Engine, aws_credentials: str) -> None:
    url, inside, most, passed = new_table(ministack), 0, 0, 0

    async def work(store: Any, number: int) -> None:
        nonlocal inside, most, passed
        for turn in range(8):
            lease_id = f"{number}-{turn}"
            (answer,) = await store.settle([hold(TWO, "n/e#r", lease_id)], START_MS)
            if answer.allowed:
                inside, passed = inside + 1, passed + 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1
                await store.settle([hold(TWO, "n/e#r", lease_id, -1, FORCE)], START_MS)

    async def main() -> None:
        stores = [open_async_store(url, 20.0) for _ in range(2)]
        await asyncio.gather(*(work(stores[number % 2], number) for number in range(6)))
        for store in stores:
            await store.close()

    asyncio.run(main())
    assert 0 < most <= 2
    assert inside == 0
    assert passed >= 8


def test_the_last_one_goes_to_one(scene: Scene, key: str) -> None:
    """Whoever decides does not know that another is about to."""
    with store_of("sync", scene.url) as store, opened(scene.table.url) as other:
        take(store, key, "a")
        release(store, key, "b")
        scene.proxy.before(lambda sent: take(other, key, "b"), operation="UpdateItem")
        assert not take(store, key, "c").allowed
        assert holders(other, key).keys() == {"a", "b"}


# Running out


def test_what_has_run_out_is_taken_by_the_next(url: str, store: Any, key: str) -> None:
    for lease_id in "ab":
        take(store, key, lease_id)
    assert take(store, key, "c", now_ms=START_MS + TTL_MS - 1).wait_ms == 1
    with opened(url) as other:
        assert take(other, key, "c", now_ms=START_MS + TTL_MS).allowed
        assert take(other, key, "d", now_ms=START_MS + TTL_MS).allowed
    for lease_id in "ab":
        lost = renew(store, key, lease_id, START_MS + TTL_MS)
        assert (lost.allowed, lost.wait_ms, list(lost.levels)) == (False, None, [(0, None)])
        assert release(store, key, lease_id, START_MS + TTL_MS).levels[0][0] == 0, "it is nobody's to give back"
    assert holders(store, key, START_MS + TTL_MS).keys() == {"c", "d"}


def test_what_was_taken_by_the_next_stays_lost(url: str, store: Any, key: str) -> None:
    """Also to one whose clock is late, and who has not heard of it."""
    for lease_id in "ab":
        take(store, key, lease_id)
    with opened(url) as other:
        for lease_id in "cd":
            assert take(other, key, lease_id, now_ms=START_MS + TTL_MS).allowed
        assert renew(store, key, "a", START_MS + 10).wait_ms is None
        release(store, key, "b", START_MS + 10)
        assert holders(other, key, START_MS + TTL_MS).keys() == {"c", "d"}


def test_a_lease_of_which_one_has_not_heard(url: str, store: Any, key: str) -> None:
    """Another process took it; it is given back and renewed here all the same."""
    take(store, key, "a")
    with opened(url) as other:
        take(other, key, "b")
        assert renew(store, key, "b", START_MS + 10).allowed
        assert holders(other, key)["b"] == (1000, START_MS + 10 + TTL_MS)
        release(other, key, "a")
        take(other, key, "c")
        assert release(store, key, "c").levels[0] == (1000, 0)
        assert holders(other, key).keys() == {"b"}


def test_what_is_not_lost_is_renewed(store: Any, key: str) -> None:
    other = Limit.concurrent("t", 2, ttl=1)
    for limit in (TWO, other):
        take(store, key, "a", limit)
    both = Request(RENEW, (key,), (Part(0, other, 0), Part(0, TWO, 0)), lease_id="a")
    (answer,) = store.settle([both], START_MS + 5000)
    assert (answer.allowed, answer.wait_ms, list(answer.levels)) == (False, None, [(2000, None), (1000, 0)])
    assert renew(store, key, "a", START_MS + TTL_MS + 1).allowed


def test_three_sweeps_count_each_lease_once(ministack: Engine, aws_credentials: str) -> None:
    """As many as ten thousand run out together."""
    url, limit, swept = new_table(ministack), Limit.concurrent("s", 600, ttl=60), []
    with opened(url, 60.0) as store:
        for entity in range(20):
            batch = [hold(limit, f"n/e{entity}#r", f"{entity}-{number:030}") for number in range(500)]
            assert all(answer.allowed for answer in store.settle(batch, START_MS))
        take(store, "n/e0#r", "late", limit, START_MS + 1)

        def sweep() -> None:
            with opened(url, 60.0) as one:
                swept.append(one.sweep("n", START_MS + TTL_MS).leases)

        threads = [threading.Thread(target=sweep) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (sum(swept), len(swept)) == (10_000, 3)
        assert holders(store, "n/e0#r", START_MS + TTL_MS).keys() == {"late"}
        assert store.sweep("n", START_MS + TTL_MS).leases == 0
        assert release(store, "n/e1#r", f"1-{7:030}", START_MS + TTL_MS, limit=limit).levels[0][0] == 600_000


def test_a_sweep_takes_nothing_from_the_living(scene: Scene) -> None:
    """One renews when the sweep has already seen that it has run out."""
    with store_of("sync", scene.url) as store, opened(scene.table.url) as other:
        key = "swept/e#r"
        for lease_id in "ab":
            take(store, key, lease_id)
        # Its clock is late: for it, the lease is alive.
        scene.proxy.before(lambda sent: renew(other, key, "a", START_MS + 10), operation="UpdateItem")
        assert store.sweep("swept", START_MS + TTL_MS + 5).leases == 1
        (row,) = other.list_buckets("swept", "e", "r", None, START_MS)
        assert row.buckets[0].holders.keys() == {"a"}


def test_an_item_goes_away_by_itself(table: Table, key: str) -> None:
    with opened(table.url) as store:
        take(store, key, "a", Limit.concurrent("s", 2, ttl=7200))
        (item,) = table.items(f"{key[2:]}#0#SLOTS")
    assert 7200 + 3500 < int(item["ttl"]["N"]) - time.time() < 7200 + 3700


# From outside


def test_listing_and_deleting_slots_equals_the_memory_store(
    store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By entity, by resource, and page by page, as in the memory store; also who has nothing but slots."""
    namespace, memory = f"list{next(_entities)}", MemoryStore()
    keys = [f"{namespace}/{entity}#{resource}" for entity in ("e", "f", "g") for resource in ("r", "q")]
    batch = [hold(TWO, key, f"lease-{number}") for number, key in enumerate(keys) if number != 1]
    batch += [request(RPM, 3, TAKE, key) for key in keys[1:4]]
    batch += [Request(PENALIZE, (keys[0],), (Part(0, TWO, 0),), block_ms=5000)]
    for one in (store, memory):
        one.settle(batch, START_MS)
    monkeypatch.setattr(places, "_PAGE", 3)

    def listed(one: Any, entity_id: str | None, resource: str | None) -> dict[Any, Any]:
        found, cursor = {}, None
        while True:
            page = one.list_buckets(namespace, entity_id, resource, cursor, START_MS + 1)
            for row in page:
                states = [(state.limit, state.available_milli(), getattr(state, "holders", 0)) for state in row.buckets]
                found[row.entity_id, row.resource] = states
            cursor = page.cursor
            if cursor is None:
                return found

    for _ in range(2):
        for which in ((None, None), ("e", None), (None, "q"), ("f", "r"), ("x", "r")):
            assert listed(store, *which) == listed(memory, *which)
        for one in (store, memory):
            one.delete_buckets([keys[0], keys[1], keys[3]])
    with opened(url) as other:
        for one in (store, other):
            assert renew(one, keys[0], "lease-0").wait_ms is None
            assert take(one, keys[0], "new").levels[0] == (1000, 0)
            release(one, keys[0], "new")
    with pytest.raises(ValidationError):
        store.list_buckets(namespace, None, None, "nonsense#SLOTS", START_MS)


def test_a_limit_of_another_kind_starts_anew(url: str, store: Any, key: str) -> None:
    tokens, slots = Limit.per_minute("s", 5), TWO
    with opened(url) as other:
        for _ in range(2):
            assert store.settle([request(tokens, 5, TAKE, key)], START_MS)[0].levels[0] == (0, 0)
            assert [take(other, key, lease_id, slots).allowed for lease_id in "abc"] == [True, True, False]
            assert holders(other, key).keys() == {"a", "b"}
            for one in (other, store):
                assert one.settle([request(tokens, 1, TAKE, key)], START_MS)[0].allowed
            (row,) = store.list_buckets("n", key[2:-2], "r", None, START_MS)
            assert len(row.buckets) == 1
            store.delete_buckets([key])


def test_a_limit_that_turns_within_a_batch(store: Any, key: str) -> None:
    """And one that refuses in between is answered as of its place."""
    tokens, memory = Limit.per_minute("s", 5), MemoryStore()
    both = Request(TAKE, (key,), (Part(0, TWO, 1000), Part(0, RPM, 61_000)), lease_id="d")
    batches = [
        [request(RPM, 1, TAKE, key), hold(TWO, key, "a"), hold(TWO, key, "b")],
        [hold(TWO, key, "c", -1, FORCE), both, request(RPM, 7, TAKE, key), hold(TWO, key, "a", -1, FORCE)],
        [request(tokens, 4, TAKE, key), hold(TWO, key, "d", 2), request(tokens, 3, TAKE, key), hold(TWO, key, "e", 2)],
    ]
    for batch in batches:
        answers = [
            [(answer.allowed, answer.wait_ms, list(answer.levels)) for answer in one.settle(batch, START_MS)]
            for one in (store, memory)
        ]
        assert answers[0] == answers[1]


def test_too_many_for_an_item(store: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit.concurrent("s", 100, ttl=60)
    monkeypatch.setattr(slot_items, "MOST_HOLDERS", 5)
    assert all(one.allowed for one in store.settle([hold(limit, key, f"{n}") for n in range(5)], START_MS))
    with pytest.raises(ValidationError, match="5 leases hold slots"):
        take(store, key, "one-more", limit)
    others = [hold(limit, key, "3"), hold(limit, key, "one-more"), hold(limit, key, "4", 0, RENEW)]
    with pytest.raises(PartlyAnswered) as caught:
        store.settle(others, START_MS)
    assert [isinstance(one, Answer) and one.allowed for one in caught.value.results] == [True, False, True]
    assert take(store, key, "one-more", limit, START_MS + TTL_MS).allowed, "those that have run out do not count"


# Lost replies


@both_kinds
@pytest.mark.parametrize("done", [True, False])
class TestLostReplies:
    def lose(self, scene: Scene, done: bool) -> None:
        scene.proxy.forget()
        (scene.proxy.lose_replies if done else scene.proxy.refuse)(1, operation="UpdateItem")

    def test_take_of_a_slot_with_a_lost_reply_is_not_sent_again(
        self, kind: str, done: bool, scene: Scene, key: str
    ) -> None:
        """It is not sent again. If it was done, the slot runs out by itself."""
        with store_of(kind, scene.url) as store, opened(scene.table.url) as direct:
            take(store, key, "a")
            self.lose(scene, done)
            with pytest.raises(RateLimiterUnavailable):
                take(store, key, "b")
            assert scene.writes() == 1
            assert holders(direct, key).keys() == ({"a", "b"} if done else {"a"})
            assert take(store, key, "c").allowed is not done
            assert take(store, key, "d", now_ms=START_MS + TTL_MS).allowed

    def test_of_a_release_and_of_a_renewal(self, kind: str, done: bool, scene: Scene, key: str) -> None:
        """Done twice they are as done once: they are sent again, and nobody notices."""
        with store_of(kind, scene.url) as store, opened(scene.table.url) as direct:
            for lease_id in "ab":
                take(store, key, lease_id)
            self.lose(scene, done)
            assert renew(store, key, "a", START_MS + 5).allowed
            assert holders(direct, key)["a"] == (1000, START_MS + 5 + TTL_MS)
            self.lose(scene, done)
            assert release(store, key, "a", START_MS + 5).levels == [(1000, 0)]
            assert holders(direct, key, START_MS + 5).keys() == {"b"}

    def test_of_a_part_that_is_given_back(self, kind: str, done: bool, scene: Scene, key: str) -> None:
        """Done twice it would give back what is still in use."""
        with store_of(kind, scene.url) as store, opened(scene.table.url) as direct:
            take(store, key, "a", amount=2)
            self.lose(scene, done)
            with pytest.raises(RateLimiterUnavailable):
                release(store, key, "a")
            assert scene.writes() == 1
            assert holders(direct, key)["a"][0] == (1000 if done else 2000)

    def test_of_the_tokens_beside_it(self, kind: str, done: bool, scene: Scene, key: str) -> None:
        """The slot is given back."""
        both = Request(TAKE, (key,), (Part(0, RPM, 1000), Part(0, TWO, 1000)), lease_id="a")
        with store_of(kind, scene.url) as store, opened(scene.table.url) as direct:
            store.settle([both], START_MS)
            scene.proxy.forget()
            lost: list[str] = []

            def of_buckets(sent: Any) -> None:
                if sent.body["Key"]["SK"]["S"] == "#STATE" and not lost:
                    lost.append("tokens")
                    raise ConnectionError

            _lose_one(scene, done, of_buckets)
            with pytest.raises(RateLimiterUnavailable):
                store.settle([both._replace(lease_id="b")], START_MS)
            assert lost
            assert holders(direct, key).keys() == {"a"}


def _lose_one(scene: Scene, done: bool, chosen: Callable[[Any], None]) -> None:
    """Lose the reply to a request, or the request, of which `chosen` raises ConnectionError."""
    from local_servers.dynamodb.listener import NoReply

    def play(request: Any, pass_on: Any) -> Any:
        try:
            chosen(request)
        except ConnectionError:
            if done:
                pass_on()
            raise NoReply(silent=False) from None
        return pass_on()

    scene.proxy._add(play, 10, "UpdateItem")

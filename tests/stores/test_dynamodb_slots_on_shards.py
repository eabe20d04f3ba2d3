"""Slots beside buckets that are spread over shards, on chains in which not every level has both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, new_table, opened, spread
from dynamodb_tables import a_table
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.core.decide import FORCE, PEEK, TAKE, Mode, Part, Request
from headgate.core.errors import RateLimiterUnavailable
from headgate.core.limit import Limit
from headgate.stores.dynamodb.exchange import Lost
from headgate.stores.dynamodb.places import ItemPlace
from headgate.stores.dynamodb.plans import DynamoDBPlans
from headgate.stores.memory.store import MemoryStore
from local_servers.dynamodb import Engine

DAILY = Limit.per_day("daily", 8)
SLOTS = Limit.concurrent("s", 2, ttl=60)
CHILD, PARENT = 0, 1

_examples = itertools.count()


@pytest.fixture(scope="module")
def store(ministack: Engine, aws_credentials: str) -> Iterator[Any]:
    with opened(new_table(ministack)) as store:
        yield store


def on_chain(keys: tuple[str, ...], mode: Mode, lease_id: str, parts: list[tuple[int, Limit, int]]) -> Request:
    wanted = tuple(Part(level, limit, amount * 1000) for level, limit, amount in parts)
    return Request(mode, keys, wanted, lease_id=lease_id)


amounts = st.sampled_from([1, 1, 2, 3])
level_parts = st.sampled_from([(CHILD, DAILY), (CHILD, SLOTS), (PARENT, DAILY), (PARENT, SLOTS)])
steps = st.tuples(
    st.sampled_from([TAKE, TAKE, TAKE, FORCE, PEEK]),
    st.sampled_from(["l1", "l2", "l3"]),
    st.lists(st.tuples(level_parts, amounts), min_size=1, max_size=4, unique_by=lambda part: part[0]),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=1, max_size=12))
@example([(PEEK, "l1", [((CHILD, SLOTS), 1)])])  # the parent is on shards, and has no part in it
@example([(TAKE, "l1", [((CHILD, SLOTS), 1), ((PARENT, DAILY), 3)])])
@example([(TAKE, "l1", [((CHILD, SLOTS), 3), ((CHILD, DAILY), 1), ((PARENT, DAILY), 1)])])
@example([*[(TAKE, "l1", [((CHILD, DAILY), 3)])] * 2, (TAKE, "l2", [((CHILD, SLOTS), 1), ((CHILD, DAILY), 3)])])
def test_slots_beside_shards_are_answered_like_in_memory(store: Any, history: list[Any]) -> None:
    one, memory = next(_examples), MemoryStore()
    entities = f"child{one}", f"parent{one}"
    for entity in entities:
        spread(store, DAILY, 4, entity)
    keys = tuple(f"n/{entity}#r" for entity in entities)
    everything = on_chain(keys, PEEK, "", [(level, limit, 0) for level in (CHILD, PARENT) for limit in (DAILY, SLOTS)])
    for mode, lease_id, parts in history:
        sign = -1 if mode is FORCE else 1
        wanted = on_chain(keys, mode, lease_id, [(level, limit, sign * n) for (level, limit), n in parts])
        (expected,), (answer,) = (each.settle([wanted], START_MS) for each in (memory, store))
        assert answer.allowed == expected.allowed, wanted
        (expected,), (answer,) = (each.settle([everything], START_MS) for each in (memory, store))
        assert [level for level, _ in answer.levels] == [level for level, _ in expected.levels], wanted


def test_slots_are_given_back_if_the_shards_do_not_answer(ministack: Engine, aws_credentials: str) -> None:
    key = "n/e#r"
    both = on_chain((key,), TAKE, "l1", [(CHILD, SLOTS, 1), (CHILD, DAILY, 3)])
    with a_table(ministack) as driven:
        plans = DynamoDBPlans(driven.deliver.settings)
        assert driven.run(plans.settle_plan([both], START_MS))[0].allowed
        place = ItemPlace(plans.namespaces.known("n") or "", "e", "r", 0)
        assert driven.run(plans.shards.split_plan(place)) == 2
        assert driven.run(plans.shards.split_plan(place)) == 4
        driven.meddle_once("BatchGetItem", lambda send: Lost("is away", sent=False, late=True))
        with pytest.raises(RateLimiterUnavailable, match="is away"):
            driven.run(plans.settle_plan([both._replace(lease_id="l2")], START_MS))
        (answer,) = driven.run(plans.settle_plan([on_chain((key,), PEEK, "", [(CHILD, SLOTS, 0)])], START_MS))
    assert answer.levels == [(1000, 0)]

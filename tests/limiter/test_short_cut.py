"""The short cut for a caller that was here a moment ago: what it remembers never changes an answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headgate import HeadgateError, Limit, SyncRateLimiter, ValidationError
from headgate.core.errors import LimitNotFound
from headgate.core.names import StoredId
from headgate.limiter.acquire.chain import Shape
from headgate.limiter.config.cache import ConfigCache
from headgate.testing import ManualClock

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 90)


@pytest.fixture
def limiter() -> Any:
    with SyncRateLimiter("memory://", clock=ManualClock()) as limiter:
        for _ in range(3):  # the third takes the short cut
            assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
        yield limiter


@pytest.mark.parametrize("bad", [True, "1", None, float("nan"), 0.0001, -1, [1]])
def test_bad_amount_is_an_error_after_a_good_one(limiter: Any, bad: Any) -> None:
    with pytest.raises(ValidationError):
        limiter.try_acquire("e", "r", {"rpm": bad}, [RPM])
    assert limiter.available("e", "r", [RPM]) == {"rpm": 57}


@pytest.mark.parametrize("consume", [None, {}, "rpm", 1, []])
def test_consume_that_names_nothing_is_an_error_before_and_after_a_good_one(limiter: Any, consume: Any) -> None:
    for resource in ("r", "new"):
        with pytest.raises(ValidationError, match="consume"):
            limiter.try_acquire("e", resource, consume, [RPM])
    with SyncRateLimiter("memory://", limits=[RPM]) as fresh:
        fresh.try_acquire("e", "r", {"rpm": 1})
        fresh.engine.cache.get("e", "r").shape.last = Shape([], []).last
        with pytest.raises(ValidationError, match="consume"):
            fresh.try_acquire("e", "r", consume)


def test_limits_that_the_caller_changes_are_seen(limiter: Any) -> None:
    limits = [RPM]
    limiter.try_acquire("e", "r", {"rpm": 1}, limits)
    limits[0] = Limit.per_minute("rpm", 4)
    assert not limiter.try_acquire("e", "r", {"rpm": 1}, limits)
    limits.append(TPM)
    assert limiter.try_acquire("e", "r", {"tpm": 90}, limits)
    limits.pop()
    with pytest.raises(LimitNotFound):
        limiter.try_acquire("e", "r", {"tpm": 1}, limits)


class EqualDict(dict[str, int]):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class EqualList(list[Limit]):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_values_that_claim_to_equal_anything_are_read_themselves(limiter: Any) -> None:
    assert not limiter.try_acquire("e", "r", EqualDict({"rpm": 58}), [RPM])
    assert not limiter.try_acquire("e", "r", {"rpm": 1}, EqualList([Limit.per_minute("rpm", 3)]))


def test_amounts_that_the_caller_changes_are_seen(limiter: Any) -> None:
    consume = {"rpm": 2}
    limiter.try_acquire("e", "r", consume, [RPM])
    consume["rpm"] = 50
    limiter.try_acquire("e", "r", consume, [RPM])
    assert limiter.available("e", "r", [RPM]) == {"rpm": 5}


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_is_answered_as_by_a_limiter_that_remembers_nothing(seed: int) -> None:
    chance, clock = random.Random(seed), ManualClock()
    other = Limit.per_minute("rpm", 5)
    with (
        SyncRateLimiter("memory://", clock=clock) as warm,
        SyncRateLimiter("memory://", clock=clock, config_cache_ttl=0) as cold,
    ):
        for _ in range(60):
            entity, consume = chance.choice("ab"), chance.choice([{"rpm": 1}, {"rpm": 3}, {"rpm": 1.0}, {"rpm": True}])
            limits = chance.choice([[RPM], (RPM,), [other], [RPM, TPM], []])
            assert _outcome(warm, entity, consume, limits) == _outcome(cold, entity, consume, limits)
            clock.advance(chance.choice([0, 0, 0.5, 3]))


def _outcome(limiter: Any, entity: str, consume: Any, limits: Any) -> Any:
    try:
        decision = limiter.try_acquire(entity, "r", consume, limits)
    except HeadgateError as error:
        return type(error), str(error)
    return decision.allowed, decision.statuses


def test_chain_that_is_found_while_the_cache_is_cleared_is_not_kept() -> None:
    clears = iter([True])

    def stored_id(value: Any, what: str = "entity_id", /) -> StoredId:
        if next(clears, False):
            cache.clear()  # as by another thread, after an edit
        return StoredId(value)

    cache = ConfigCache("n", 60, None, lambda: 0, stored_id)
    cache.put_shape("r", Shape([{"rpm": RPM}], [1]), cache.generation)
    assert cache.get("e", "r") is not None
    assert cache.get("e", "r") is None

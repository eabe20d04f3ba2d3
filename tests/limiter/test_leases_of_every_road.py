"""A lease is the same however it was acquired: what it took, what it says, what it gives back."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import pytest

from headgate import HeadgateError, LeaseExpired, Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter
from headgate.core.decide import Parts
from headgate.limiter.acquire import chain
from headgate.testing import ManualClock

LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 90)]
AMOUNTS: list[dict[str, Any]] = [{"rpm": 1}, {"tpm": 7}, {"rpm": 3, "tpm": 2}, {"rpm": 25}, {"rpm": 0.5}]
ACTS = ("consumed", "release", "adjust", "consume", "commit", "rollback", "fail")


class BodyFailed(Exception):
    pass


class Wish(NamedTuple):
    entity_id: str
    consume: dict[str, Any]
    on_error: Any
    acts: list[str]


@pytest.mark.parametrize("seed", range(20))
def test_every_road_takes_says_and_gives_back_the_same(seed: int) -> None:
    chance, clock = random.Random(seed), ManualClock()
    plain: dict[str, Any] = {"limits": LIMITS, "clock": clock}
    roads = {
        "with": _entered(SyncRateLimiter("memory://", **plain)),
        "async with": _entered(RateLimiter("memory://", **plain)),
        "remembering nothing": _entered(SyncRateLimiter("memory://", **plain, config_cache_ttl=0)),
        "observed": _entered(SyncRateLimiter("memory://", **plain, on_event=lambda event: None)),
        "lease of a decision": _decided(SyncRateLimiter("memory://", **plain)),
        "lease of an awaited decision": _decided(RateLimiter("memory://", **plain)),
    }

    async def histories() -> None:
        for _ in range(60):
            acts = chance.choices(ACTS, k=chance.randrange(4))
            wish = Wish(chance.choice("ab"), chance.choice(AMOUNTS), chance.choice(["rollback", "keep"]), acts)
            heard = {name: await road(wish) for name, road in roads.items()}
            assert heard == dict.fromkeys(roads, heard["with"]), wish
            clock.advance(chance.choice([0, 0, 0.5, 3]))

    asyncio.run(histories())


def _entered(limiter: Any) -> Callable[[Wish], Awaitable[Any]]:
    async def road(wish: Wish) -> Any:
        said: list[Any] = []
        with suppress(BodyFailed):
            async with AsyncExitStack() as stack:
                acquire = limiter.acquire(wish.entity_id, "r", wish.consume, on_error=wish.on_error)
                enter = stack.enter_async_context if isinstance(limiter, RateLimiter) else stack.enter_context
                try:
                    lease = await _now(enter(acquire))
                except RateLimitExceeded as refused:
                    return [list(refused.statuses)], await _now(limiter.available(wish.entity_id, "r"))
                await _use(lease, wish, said)
        return said, await _now(limiter.available(wish.entity_id, "r"))

    return road


def _decided(limiter: Any) -> Callable[[Wish], Awaitable[Any]]:
    async def road(wish: Wish) -> Any:
        said: list[Any] = []
        decision = await _now(limiter.try_acquire(wish.entity_id, "r", wish.consume))
        if not decision:
            return [decision.statuses], await _now(limiter.available(wish.entity_id, "r"))
        try:
            await _use(decision.lease, wish, said)
        except BodyFailed:
            if wish.on_error == "rollback":
                with suppress(LeaseExpired):
                    await _now(decision.lease.rollback())
        return said, await _now(limiter.available(wish.entity_id, "r"))

    return road


async def _use(lease: Any, wish: Wish, said: list[Any]) -> None:
    name, amount = next(iter(wish.consume.items()))
    for act in wish.acts:
        try:
            if act == "fail":
                raise BodyFailed
            if act == "consumed":
                said.append(lease.consumed)
            elif act in ("commit", "rollback"):
                await _now(getattr(lease, act)())
            else:
                await _now(getattr(lease, act)(**{name: amount}))
        except HeadgateError as error:
            said.append(type(error))
    said.append(lease.consumed)


async def _now(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def test_what_a_lease_took_is_not_what_its_entity_has_left_to_take() -> None:
    """Leases share what they were made of. What one of them took more is its own."""
    with SyncRateLimiter("memory://", limits=LIMITS) as limiter:
        with limiter.acquire("e", "r", {"rpm": 1}) as first, limiter.acquire("e", "r", {"rpm": 1}) as second:
            first.adjust(rpm=4)
            first.consume(tpm=2)
            assert (first.consumed, second.consumed) == ({"rpm": 5, "tpm": 2}, {"rpm": 1})
        with limiter.acquire("e", "r", {"rpm": 1}) as third:
            assert third.consumed == {"rpm": 1}


def test_correction_by_a_thread_that_comes_between_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lease took is worked out when it is first asked for, by two threads at once perhaps."""
    with SyncRateLimiter("memory://", limits=LIMITS) as limiter, limiter.acquire("e", "r", {"rpm": 1}) as lease:
        comes_between = iter([True])

        def own_amounts(parts: Parts) -> dict[str, int]:
            if next(comes_between, False):
                other = threading.Thread(target=lambda: lease.adjust(rpm=4))
                other.start()
                other.join()
            return chain.own_amounts(parts)

        monkeypatch.setattr("headgate.limiter.leases.lease.own_amounts", own_amounts)
        assert lease.consumed == {"rpm": 5}

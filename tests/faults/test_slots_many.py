"""Ten thousand leases expire in the same millisecond: all their slots are free at once, and are cleared away once.

By a clock that the test moves, so that it is the same millisecond, and the one before can be looked at too. The leases
are dropped, as a dead holder's are: nobody renews them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fault_helpers import LONG_ENOUGH, Place

from headgate import Limit, RateLimiter
from headgate.testing import ManualClock

ENTITIES = [f"e{number}" for number in range(20)]
EACH = 500
TTL_SECONDS = 60
SLOTS = Limit.concurrent("slots", EACH, TTL_SECONDS)


async def free(limiter: RateLimiter, entities: Sequence[str] = ENTITIES) -> set[int]:
    """How many slots are, of each of the entities."""
    found = await asyncio.gather(*(limiter.available(entity, "api", [SLOTS]) for entity in entities))
    return {one["slots"] for one in found}


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgres"], indirect=True)
def test_ten_thousand_leases_that_expire_at_once_are_free_and_swept_once(place: Place) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        settings: dict[str, Any] = {"namespace": place.namespace, "store_timeout": LONG_ENOUGH, "clock": clock}
        async with RateLimiter(place.url, **settings) as limiter:

            async def take(entity: str, slots: int = 1) -> bool:
                return bool(await limiter.try_acquire(entity, "api", {"slots": slots}, [SLOTS]))

            assert all(await asyncio.gather(*(take(entity) for entity in ENTITIES * EACH)))
            assert await free(limiter) == {0}
            clock.advance(TTL_SECONDS - 0.001)
            assert await free(limiter) == {0}
            assert not any(await asyncio.gather(*map(take, ENTITIES)))
            assert (await limiter.reconcile()).leases == 0
            clock.advance(0.001)
            # Whoever needs slots finds all of them free, without anybody having cleared away.
            assert await take(ENTITIES[0], EACH)
            found = [(await limiter.reconcile()).leases for _ in range(2)]
            assert found == [(len(ENTITIES) - 1) * EACH, 0]
            assert await free(limiter, ENTITIES[1:]) == {EACH}
            assert all([await take(entity, EACH) for entity in ENTITIES[1:]])
            assert await free(limiter) == {0}

    asyncio.run(scenario())

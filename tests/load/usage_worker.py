"""Acquires, adjusts, gives back and fails at random, and prints what it has consumed in all, by limit, in thousandths.

Its clock runs so fast that an hour is a tenth of a second: hours turn while it works.

Usage: usage_worker.py URL NAMESPACE SEED STEPS START_MS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from fractions import Fraction

from headgate import Limit, RateLimiter, RateLimitExceeded

ENTITIES = ("hot", "hot", "hot", "a", "b")
LIMITS = [Limit.per_second("rps", 10**6), Limit.per_day("usd", 10**9)]
TASKS = 8
HASTE = 36_000


class FastClock:
    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + (time.time_ns() // 10**6 - self._start_ms) * HASTE


class Failed(Exception):
    pass


async def step(limiter: RateLimiter, chance: random.Random, total: dict[str, Fraction]) -> None:
    entity_id = chance.choice(ENTITIES)
    lease = None
    try:
        async with limiter.acquire(
            entity_id, "api", {"rps": 1, "usd": chance.randint(1, 5000) / 1000}, LIMITS
        ) as lease:
            if chance.random() < 0.3:
                await lease.adjust(usd=chance.randint(-500, 5000) / 1000)
            if chance.random() < 0.2:
                await lease.consume(usd=0.125)
            if chance.random() < 0.2:
                raise Failed
    except (Failed, RateLimitExceeded):  # clocks that run so fast disagree by minutes
        return
    assert lease is not None
    for name, amount in lease.consumed.items():
        total[name] = total.get(name, Fraction(0)) + Fraction(str(amount))


async def main(url: str, namespace: str, seed: str, steps: int, start_ms: int) -> None:
    total: dict[str, Fraction] = {}
    async with RateLimiter(url, namespace=namespace, clock=FastClock(start_ms), store_timeout=60) as limiter:

        async def work(number: int) -> None:
            chance = random.Random(f"{seed}.{number}")
            for _ in range(steps):
                await step(limiter, chance, total)

        await asyncio.gather(*(work(number) for number in range(TASKS)))
    sys.stdout.write(json.dumps({name: int(amount * 1000) for name, amount in total.items()}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))

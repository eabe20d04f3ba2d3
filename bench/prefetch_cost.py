"""What an acquire costs when one task makes one each ms: calls on Redis, calls and units on DynamoDB."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.local_servers.dynamodb import Engine

from .dynamodb_cost import Cost, Meter, every_client_asks
from .dynamodb_peers import PATIENCE_SECONDS, REGION
from .ours import async_hit
from .peers import KEY
from .prefetch_contenders import aio_limiter
from .prefetch_scenes import PACED_DYNAMODB, PACED_REDIS, PREFETCH, WITH, WITHOUT
from .redis_peers import Loop

HITS = 2000
HITS_ALONE = 200  # of one that has a call to DynamoDB for each


class Calls:
    """A Watcher that counts calls to the store."""

    def __init__(self) -> None:
        self.count = 0

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        pass

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.count += 1


async def paced(hit: Callable[[], Awaitable[bool]], hits: int) -> None:
    """One each ms. One that was late does not delay the others."""
    start = time.perf_counter()
    for number in range(hits):
        await asyncio.sleep(max(0.0, start + number / 1000 - time.perf_counter()))
        if not await hit():
            raise RuntimeError("a hit was refused: a benchmark of refusals would measure something else")


def on_redis(url: str, loop: Loop) -> list[Cost]:
    costs = []
    for name, prefetch in ((WITH, PREFETCH), (WITHOUT, 0)):
        with aio_limiter(url, loop, prefetch, namespace=f"paced-{prefetch}".replace(".", "-")) as limiter:
            hit = async_hit(limiter, KEY)
            loop.run_until_complete(paced(hit, 10))  # connections and limits
            calls = Calls()
            limiter.watch(calls)
            loop.run_until_complete(paced(hit, HITS))
            limiter.unwatch(calls)
        costs.append(Cost(name, PACED_REDIS, HITS, calls.count / HITS, 0, 0, 1))
    return costs


def on_dynamodb(engine: Engine, loop: Loop) -> list[Cost]:
    costs = []
    for name, prefetch, hits in ((WITH, PREFETCH, HITS), (WITHOUT, 0, HITS_ALONE)):
        with Meter(engine.endpoint_url) as meter, every_client_asks():
            url = meter.url(f"paced-{len(costs)}", region=REGION)
            with aio_limiter(url, loop, prefetch, store_timeout=PATIENCE_SECONDS) as limiter:
                hit = async_hit(limiter, KEY)
                loop.run_until_complete(paced(hit, 10))
                meter.begin()
                loop.run_until_complete(paced(hit, hits))
                each = (count / hits for count in (meter.count(), meter.write_units, meter.read_units))
                costs.append(Cost(name, PACED_DYNAMODB, hits, *each, meter.at_once))
    return costs

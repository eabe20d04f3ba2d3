"""What an acquire costs on DynamoDB, counted on the wire.

In a pass of its own: the proxy that counts would slow down those whose time is taken. The engine says what it charges
to whoever asks, so every client is made to ask.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore import handlers
from tests.local_servers.dynamodb import Engine, Proxy, Request
from tests.local_servers.dynamodb.listener import Reply

from . import dynamodb_peers as peers
from .dynamodb_contenders import LIMITERS, turn_of
from .dynamodb_scenes import ENTITIES, REFUSALS
from .peers import KEY

HITS, HITS_OF_A_TASK = 100, 4  # of one that is alone, and of one among many
# What is known of an empty bucket is believed for a while, so that a burst of refusals would cost nothing.
BETWEEN_REFUSALS_SECONDS = 0.02
# Requests that are sent together are under way together, however quick the engine is. DynamoDB takes no less.
LATE_SECONDS = 0.005

READS = ("GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan")
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems", "BatchExecuteStatement")
IN_A_TRANSACTION = 2  # units for an item


@dataclass(frozen=True)
class Cost:
    """Of one acquire, on average. `at_once`: the most requests that were under way together."""

    name: str
    scene: str
    hits: int
    requests: float
    write_units: float
    read_units: float
    at_once: int


def on_dynamodb(engine: Engine, loop: peers.Loop, say: Callable[[str], None]) -> list[Cost]:
    scenes = [*ENTITIES, REFUSALS]
    costs = []
    for name, open_at, _ in LIMITERS:
        with Meter(engine.endpoint_url) as meter, every_client_asks(), open_at(meter, loop) as take:
            for scene in scenes:
                say(f"{scene}: what it costs")
                hits = _refused(meter, loop, take) if scene == REFUSALS else _admitted(meter, loop, take, scene)
                each = (count / hits for count in (meter.count(), meter.write_units, meter.read_units))
                costs.append(Cost(name, scene, hits, *each, meter.at_once))
    return sorted(costs, key=lambda cost: scenes.index(cost.scene))


def _admitted(meter: Meter, loop: peers.Loop, take: peers.Take, scene: str) -> int:
    tasks = len(ENTITIES[scene])
    turn = turn_of(take, loop, scene)
    turn(2 * tasks)  # connections, limits, and buckets that did not exist
    hits = HITS if tasks == 1 else tasks * HITS_OF_A_TASK
    meter.begin()
    turn(hits)
    return hits


def _refused(meter: Meter, loop: peers.Loop, take: peers.Take) -> int:
    async def admitted(hits: int) -> int:
        count = 0
        for _ in range(hits):
            count += await take(KEY, peers.SCARCE)
            await asyncio.sleep(BETWEEN_REFUSALS_SECONDS)
        return count

    if loop.run_until_complete(admitted(4)) != 1:
        raise RuntimeError("a bucket with one token did not admit one hit")
    meter.begin()
    if loop.run_until_complete(admitted(HITS)):
        raise RuntimeError("an empty bucket admitted a hit")
    return HITS


class Meter(Proxy):
    """A proxy that adds up the units, and sees how many requests are under way."""

    def __init__(self, endpoint_url: str) -> None:
        self._sums = threading.Lock()
        self._under_way = 0
        self._zero()
        super().__init__(endpoint_url)

    def _zero(self) -> None:
        self.write_units = self.read_units = 0.0
        self.at_once = 0

    def begin(self) -> None:
        """Count from now on."""
        self.forget()
        self.delay(LATE_SECONDS)
        self._zero()

    def _handle(self, request: Request, pass_on: Callable[[], Reply]) -> Reply:
        with self._sums:
            self._under_way += 1
            self.at_once = max(self.at_once, self._under_way)
        try:
            return super()._handle(request, lambda: self._metered(request, pass_on()))
        finally:
            with self._sums:
                self._under_way -= 1

    def _metered(self, request: Request, reply: Reply) -> Reply:
        units = _units(reply.data)
        with self._sums:
            if request.operation in WRITES:
                self.write_units += units
            else:
                self.read_units += units
        return reply


def _units(reply: dict[str, Any]) -> float:
    """What was charged. An error does not say it, but a condition costs as much when it does not hold."""
    error = str(reply.get("__type", "")).rpartition("#")[2]
    if error == "ConditionalCheckFailedException":
        return 1
    if error == "TransactionCanceledException":
        return IN_A_TRANSACTION * len(reply["CancellationReasons"])
    consumed = reply.get("ConsumedCapacity") or []
    return sum(float(one["CapacityUnits"]) for one in ([consumed] if isinstance(consumed, dict) else consumed))


@contextmanager
def every_client_asks() -> Iterator[None]:
    """Every client that is made meanwhile asks for the units of what it does."""

    def ask(params: dict[str, Any], **_: Any) -> None:
        params["ReturnConsumedCapacity"] = "TOTAL"

    asking = [(f"before-parameter-build.dynamodb.{operation}", ask) for operation in (*READS, *WRITES)]
    handlers.BUILTIN_HANDLERS.extend(asking)
    try:
        yield
    finally:
        del handlers.BUILTIN_HANDLERS[-len(asking) :]

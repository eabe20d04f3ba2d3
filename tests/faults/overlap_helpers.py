"""Two flights under way and callers that wait behind them, on a store whose replies a test holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

from fault_helpers import LONG_ENOUGH
from reply_relay import ReplyRelay, http_reply, postgres_reply, redis_reply

from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.testing.servers.redis import RedisServer
from local_servers.dynamodb import Engine
from local_servers.postgres import PostgresServer

CAPACITY = 1000
LIMIT = Limit.custom("n", CAPACITY, 0.001, 366 * 86_400)  # as good as no refill
Tasks = list[asyncio.Task[Any]]


class Line(NamedTuple):
    """A store behind a relay. `flights`: how many it has under way. `spoil`: makes the row of an entity corrupt.
    `repeats`: a take without a reply is sent again."""

    relay: ReplyRelay
    url: str
    direct: str
    namespace: str
    flights: int
    spoil: Callable[[str, str], None]
    repeats: bool = True

    def limiter(self, **settings: Any) -> RateLimiter:
        return RateLimiter(self.url, namespace=self.namespace, **({"store_timeout": LONG_ENOUGH} | settings))

    def taken(self, entity: str = "e") -> int:
        with SyncRateLimiter(self.direct, namespace=self.namespace, store_timeout=LONG_ENOUGH) as limiter:
            return CAPACITY - limiter.available(entity, "r", [LIMIT])["n"]


def redis_line(server: RedisServer) -> tuple[ReplyRelay, Callable[[ReplyRelay], Line]]:
    def spoil(namespace: str, entity: str) -> None:
        with server.client() as client:
            assert client.set(f"headgate:{{{namespace}}}:{entity}#r", b"garbage", xx=True)

    def line(relay: ReplyRelay) -> Line:
        return Line(relay, f"redis://127.0.0.1:{relay.port}/0", server.url, _new(), 2, spoil)

    return ReplyRelay(server.port, redis_reply), line


def postgres_line(server: PostgresServer) -> tuple[ReplyRelay, Callable[[ReplyRelay], Line]]:
    def spoil(namespace: str, entity: str) -> None:
        found = server.execute(
            "UPDATE headgate.buckets SET remainder = -1 WHERE key = %s RETURNING 1", f"{namespace}/{entity}#r"
        )
        assert found

    def line(relay: ReplyRelay) -> Line:
        url = server.url.replace(f":{server.port}/", f":{relay.port}/") + "?sslmode=disable&gssencmode=disable"
        return Line(relay, url, server.url, _new(), 2, spoil)

    return ReplyRelay(server.port, postgres_reply), line


def dynamodb_line(engine: Engine) -> tuple[ReplyRelay, Callable[[ReplyRelay], Line]]:
    table = f"overlap-{uuid4().hex}"
    direct = engine.url(table)
    with SyncRateLimiter(direct, store_timeout=LONG_ENOUGH) as limiter:
        limiter.setup()

    def spoil(namespace: str, entity: str) -> None:
        client = engine.client()
        items = client.scan(TableName=table, ConsistentRead=True)["Items"]
        (item,) = [item for item in items if item["PK"]["S"].endswith(f"BUCKET#{entity}#r#0")]
        client.put_item(TableName=table, Item=item | {"b_n_lm": {"S": ""}})
        client.close()

    def line(relay: ReplyRelay) -> Line:
        return Line(relay, direct.replace(str(engine.port), str(relay.port)), direct, _new(), 1, spoil, repeats=False)

    return ReplyRelay(engine.port, http_reply), line


def _new() -> str:
    return uuid4().hex[:12]


class Flights(NamedTuple):
    """Callers in the flight that was sent first, in the second one if there is one, and those not sent yet."""

    first: Tasks
    second: Tasks
    queued: Tasks

    @property
    def all(self) -> Tasks:
        return self.first + self.second + self.queued


def ask(limiter: RateLimiter, *entities: str, limit: Limit = LIMIT) -> Tasks:
    """Tasks named after their entities."""
    return [
        asyncio.create_task(limiter.try_acquire(entity, "r", {"n": 1}, [limit]), name=entity) for entity in entities
    ]


async def warmed(limiter: RateLimiter, *entities: str) -> None:
    """Connected, with all that is asked only once; each entity has used a token."""
    for entity in entities:
        assert (await limiter.try_acquire(entity, "r", {"n": 1}, [LIMIT])).allowed
        await limiter.available(entity, "r", [LIMIT])


async def under_way(
    line: Line, limiter: RateLimiter, first: str = "eee", second: str = "ee", queued: str = "eee", corrupt: str = ""
) -> Flights:
    """Each letter is an entity and a caller. A flight of several is made of those that wait while others fly."""
    await warmed(limiter, *sorted({"e", *first, *second, *queued}))
    for entity in corrupt:
        line.spoil(line.namespace, entity)
    line.relay.hold()
    before = ask(limiter, "e")
    await line.relay.held(1)
    if line.flights == 2:
        before += ask(limiter, "e")
        await line.relay.held(2)
    flights: list[Tasks] = []
    for callers in (first, second)[: line.flights]:
        flights.append(ask(limiter, *callers))
        await asyncio.sleep(0)
        line.relay.release()
        assert (await before[len(flights) - 1]).allowed
        await line.relay.held(line.flights)
    waiting = ask(limiter, *queued)
    await asyncio.sleep(0)
    return Flights(flights[0], flights[1] if line.flights == 2 else [], waiting)

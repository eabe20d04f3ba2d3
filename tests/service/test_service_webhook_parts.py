"""Who delivers, and what is looked at: one process, on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from webhook_server import SECRET, WebhookServer

from headgate import Limit, SyncRateLimiter
from headgate.core.records import ABSENT, Put
from headgate.limiter import keys
from headgate.limiter.bind import blocking
from headgate.limiter.observe.delivery import HOLD_MS, leave_plan, turn_plan
from headgate.limiter.observe.thresholds import delivered_plan
from headgate.plan import Plan, WriteRecords
from headgate.service import webhook as webhook_module
from headgate.service.endpoint import Endpoint
from headgate.service.state import Service
from headgate.testing import ManualClock

USD = Limit.quota("usd", 10, "day", alert_at=(0.8,))


def write_plan(engine: Any, key: str, value: dict[str, Any], expected: int | None = None) -> Plan[None]:
    yield from WriteRecords([Put(key, value, expected)])


turn, leave, mark, write = map(blocking, (turn_plan, leave_plan, delivered_plan, write_plan))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> SyncRateLimiter:
    limiter = SyncRateLimiter("memory://", clock=clock)
    for entity in ("one", "two"):
        limiter.try_acquire(entity, "r", {"usd": 9}, [USD])
    return limiter


def test_one_at_a_time_delivers(limiter: SyncRateLimiter, clock: ManualClock) -> None:
    two, one = limiter.list_alerts()
    assert turn(limiter, "a", one.id) == turn(limiter, "a", two.id) == "mine"
    assert turn(limiter, "b", one.id) == turn(limiter, "b", two.id) == "others"
    clock.advance(HOLD_MS * 0.6 / 1000)
    assert turn(limiter, "a", one.id) == "mine"  # for another while
    clock.advance(HOLD_MS * 0.6 / 1000)
    assert turn(limiter, "b", one.id) == "others"
    clock.advance(HOLD_MS * 0.4 / 1000)
    assert turn(limiter, "b", one.id) == "mine"
    assert turn(limiter, "a", one.id) == "others"
    leave(limiter, "a")
    assert turn(limiter, "a", one.id) == "others"
    leave(limiter, "b")
    assert turn(limiter, "a", one.id) == "mine"


def test_what_is_delivered_is_done(limiter: SyncRateLimiter) -> None:
    two, one = limiter.list_alerts()
    assert turn(limiter, "a", one.id) == "mine"
    mark(limiter, one)
    assert turn(limiter, "a", one.id) == turn(limiter, "b", one.id) == turn(limiter, "a", "gone") == "done"
    assert [alert.delivered for alert in limiter.list_alerts()] == [False, True]
    assert turn(limiter, "a", two.id) == "mine"


@pytest.mark.parametrize("held", [{}, {"holder": "b", "until_ms": "soon"}, {"holder": "b", "until_ms": 10**15}])
def test_a_broken_record_stops_nobody(limiter: SyncRateLimiter, held: dict[str, Any]) -> None:
    alert = limiter.list_alerts()[0]
    write(limiter, keys.delivery_key("default"), held)
    assert turn(limiter, "a", alert.id) == "mine"
    assert turn(limiter, "b", alert.id) == "others"


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.close()


@asynccontextmanager
async def running(webhook: WebhookServer) -> AsyncIterator[Service]:
    service = Service("memory://", webhook=Endpoint(f"http://{webhook.origin}/", SECRET.encode()))
    assert service.webhook is not None
    service.webhook.start()
    try:
        yield service
    finally:
        await service.close()


async def reach(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(6000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come true")


async def all_delivered(service: Service, count: int) -> None:
    limiter = service.room("default").limiter

    async def they_are() -> bool:
        found = await limiter.list_alerts()
        return len(found) == count and all(alert.delivered for alert in found)

    await reach(they_are)


def test_an_alert_of_its_own_is_delivered_at_once(webhook: WebhookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "_EVERY_SECONDS", 3600.0)

    async def run() -> None:
        async with running(webhook) as service:
            for number in range(3):
                await service.room("default").limiter.try_acquire(f"e{number}", "r", {"usd": 9}, [USD])
                await all_delivered(service, number + 1)

    asyncio.run(run())
    assert len(webhook.posted) == 3


def test_a_corrupt_alert_holds_up_no_other(webhook: WebhookServer) -> None:
    async def run() -> None:
        async with running(webhook) as service:
            limiter = service.room("default").limiter
            for value in ({}, {"at": "yesterday"}, {"at": 5, "delivered": False}):
                change = Put(keys.alert_key("default", f"0{len(value)}"), value, ABSENT)
                await limiter.engine.perform(WriteRecords([change]))
            await limiter.try_acquire("acme", "r", {"usd": 9}, [USD])
            await all_delivered(service, 1)

    asyncio.run(run())
    assert len(webhook.posted) == 1


def test_old_alerts_are_looked_at_again(webhook: WebhookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process whose clock is behind; if it is far behind, with the next look at all."""
    monkeypatch.setattr(webhook_module, "_EVERY_SECONDS", 0.01)

    async def run() -> None:
        async with running(webhook) as service:
            limiter, delivering = service.room("default").limiter, service.webhook
            assert delivering is not None
            await limiter.try_acquire("now", "r", {"usd": 9}, [USD])
            await all_delivered(service, 1)
            (alert,) = await limiter.list_alerts()
            for entity, ago, order in (("late", timedelta(minutes=4), "97"), ("very late", timedelta(days=1), "98")):
                told = {name: it for name, it in alert.as_dict().items() if name != "id"}
                told |= {"at": (alert.at - ago).isoformat(), "entity_id": entity, "delivered": False}
                change = Put(keys.alert_key("default", f"{order}{alert.id}"), told, ABSENT)
                await limiter.engine.perform(WriteRecords([change]))
            await reach(lambda: posted("late"))
            assert not await posted("very late")
            delivering._looked["default"].all_at = 0.0
            await all_delivered(service, 3)

    async def posted(entity: str) -> bool:
        return entity in [one.alert["entity_id"] for one in webhook.posted]

    asyncio.run(run())
    assert len(webhook.posted) == 3

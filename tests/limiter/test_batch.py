"""Many decisions in one call: what becomes of them when the store is away, half away, or the caller is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headgate import Ask, Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter, register_store
from headgate.core.decide import Answer, Request
from headgate.core.errors import PartlyAnswered
from headgate.stores.memory.store import MemoryStore

AWAY = RateLimiterUnavailable("half away")
RPM = [Limit.per_minute("rpm", 60)]
SLOTS = [Limit.concurrent("parallel", 6), *RPM]


class HalfStore(MemoryStore):
    """Of every batch it answers only those on `there`; `away` in whole."""

    in_process = False
    away = False
    there: str | None = None
    batches: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.batches = []

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        self.batches.append(len(batch))
        if self.away:
            raise RateLimiterUnavailable("away")
        if self.there is None:
            return super().settle(batch, now_ms)
        answers = [
            super(HalfStore, self).settle([request], now_ms)[0] if f"#{self.there}" in request.keys[0] else AWAY
            for request in batch
        ]
        if AWAY in answers:
            raise PartlyAnswered(answers)
        return answers  # type: ignore[return-value]


@pytest.fixture
def store() -> HalfStore:
    store = HalfStore()
    register_store("half", lambda url, timeout: store)
    return store


class Caller:
    """Both limiters, asked alike."""

    def __init__(self, kind: str) -> None:
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.limiter: Any = RateLimiter("half://") if self._loop else SyncRateLimiter("half://")

    def __call__(self, method: str, *arguments: Any, **settings: Any) -> Any:
        result = getattr(self.limiter, method)(*arguments, **settings)
        return self._loop.run_until_complete(result) if self._loop else result

    def close(self) -> None:
        self("close")
        if self._loop:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


@pytest.fixture(params=["sync", "async"])
def ask(store: HalfStore, request: pytest.FixtureRequest) -> Iterator[Caller]:
    caller = Caller(request.param)
    yield caller
    caller.close()


def test_one_call_to_the_store(ask: Caller, store: HalfStore) -> None:
    asks: list[Any] = [Ask(f"e{number}", "r", {"rpm": 1}, SLOTS) for number in range(30)]
    ask("try_acquire_each", asks)
    assert store.batches == [30]
    ask("try_acquire_each", [asks[0], asks[1:]])
    assert store.batches == [30, 2]
    assert ask("try_acquire_each", [asks])[0].allowed
    assert store.batches == [30, 2, 1]


@pytest.mark.parametrize("wish", [{"rpm": 1}, {"rpm": 1, "parallel": 1}])
def test_a_store_that_is_away(ask: Caller, store: HalfStore, wish: dict[str, int]) -> None:
    asks = [Ask("e", "r", wish, SLOTS), [Ask("e", "r", wish, SLOTS), Ask("e", "s", wish, SLOTS)]]
    ask("try_acquire_each", asks)
    store.away = True
    with pytest.raises(RateLimiterUnavailable):
        ask("try_acquire_each", asks)
    allowed = ask("try_acquire_each", asks, on_unavailable="allow")
    assert [(decision.allowed, decision.degraded, decision.statuses) for decision in allowed] == [(True, True, [])] * 2
    assert [len(decision.leases) for decision in allowed] == [1, 2]
    here = ask("try_acquire_each", asks, on_unavailable="local")
    assert [(decision.allowed, decision.degraded) for decision in here] == [(True, True)] * 2
    assert [len(decision.statuses) for decision in here] == [len(wish), 2 * len(wish)]


@pytest.mark.parametrize(
    ("wish", "limits"), [({"rpm": 1}, SLOTS), ({"rpm": 1, "parallel": 1}, SLOTS), ({"rpm": 1}, RPM)]
)
def test_half_a_store_and_nothing_stays_taken(
    ask: Caller, store: HalfStore, wish: dict[str, int], limits: list[Limit]
) -> None:
    asks = [Ask("e", resource, wish, limits) for resource in ("there", "gone", "there")]
    ask("available", "e", "there", SLOTS)
    ask("available", "e", "gone", SLOTS)
    store.there = "there"
    with pytest.raises(RateLimiterUnavailable):
        ask("try_acquire_each", asks)
    assert ask("available", "e", "there", SLOTS) == {"parallel": 6, "rpm": 60}
    for settings in ({"on_unavailable": "allow"}, {}):
        decisions = ask("try_acquire_each", asks, **settings)
        assert [decision.degraded for decision in decisions] == [False, True, False]
        ask.limiter.on_unavailable = "allow"
    assert ask("available", "e", "there", SLOTS)["rpm"] == 56


def test_whoever_is_cancelled_has_taken_nothing(store: HalfStore) -> None:
    async def main() -> None:
        async with RateLimiter("half://") as limiter:
            await limiter.available("e", "r", RPM)
            asks: list[Any] = [
                Ask("e", "r", {"rpm": 1}, RPM),
                [Ask("e", "r", {"rpm": 2}, RPM), Ask("f", "r", None, RPM)],
            ]
            for turns in range(12):
                task = asyncio.create_task(limiter.try_acquire_each(asks))
                other = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 1}, RPM))
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled = task.cancel()
                results = await asyncio.gather(task, other, return_exceptions=True)
                took = 4 if not isinstance(results[0], asyncio.CancelledError) else 1
                assert cancelled or took == 4
                assert (await limiter.available("e", "r", RPM))["rpm"] == 60 - took
                await limiter.reset("e", "r")
                await limiter.reset("f", "r")

    asyncio.run(main())

"""Many at once: nothing is sold twice, nothing is lost, and coalescing changes no answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from ...core.limit import Limit
from ...limiter import RateLimiter
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance
from .waiting import drive


class ConcurrencyConformance(Conformance):
    @pytest.mark.parametrize("coalesce", [True, False])
    def test_the_last_token_goes_to_one(self, open_limiter: Callable[..., Any], coalesce: bool) -> None:
        limiter = open_limiter(coalesce=coalesce)
        limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
        for _ in range(3):
            answers = limiter.together([("try_acquire", ("e", "r", {"rpm": 1}))] * 24)
            assert sum(map(bool, answers)) == 10
            assert limiter.available("e", "r") == {"rpm": 0}
            limiter.reset("e", "r")

    @pytest.mark.parametrize("coalesce", [True, False])
    def test_crossing_cascades_neither_deadlock_nor_oversell(
        self, open_limiter: Callable[..., Any], coalesce: bool
    ) -> None:
        limiter = open_limiter(coalesce=coalesce)
        limiter.set_system_defaults([Limit.per_minute("rpm", 100)])
        limiter.create_entity("org")
        limiter.set_limits("org", [Limit.per_minute("rpm", 15)])
        for name in "abcd":
            limiter.create_entity(name, parent_id="org", cascade=True)
        answers = limiter.together([("try_acquire", (name, "r", {"rpm": 1})) for name in "abcd" * 6])
        assert sum(map(bool, answers)) == 15
        taken = sum(100 - bucket.available for name in "abcd" for bucket in limiter.get_buckets(name))
        assert taken == 15, "a refused child kept nothing"

    def test_concurrent_adjustments_all_count(self, limiter: Any) -> None:
        limiter.set_system_defaults([RPM, TPM])
        limiter.together([("adjust", ("e", "r", {"tpm": n, "rpm": 1})) for n in range(24)])
        assert limiter.available("e", "r") == {"rpm": 60 - 24, "tpm": 1500 - sum(range(24))}

    def test_first_come_first_served(self, url: str, clock: ManualClock) -> None:
        """Tasks start in order, so with coalescing too the first ones pass and the last ones do not."""

        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
            answers = await asyncio.gather(*(limiter.try_acquire("e", "r", {"rpm": 1}) for _ in range(30)))
            assert [bool(answer) for answer in answers] == [True] * 10 + [False] * 20

        drive(url, clock, scenario, **self.settings)

    def test_coalescing_changes_no_answer(self, url: str, clock: ManualClock) -> None:
        """The same tasks, started in the same order, get the same answers one by one and together."""
        chance = random.Random(7)
        requests = [
            (f"e{chance.randrange(3)}", {"rpm": chance.randrange(1, 12), "tpm": chance.randrange(1, 300)})
            for _ in range(120)
        ]

        async def answers(limiter: RateLimiter) -> list[Any]:
            await limiter.set_system_defaults([RPM, TPM])
            decisions = await asyncio.gather(
                *(limiter.try_acquire(entity_id, "r", consume) for entity_id, consume in requests)
            )
            return [(decision.allowed, decision.retry_after_seconds, decision.statuses) for decision in decisions]

        async def scenario(limiter: RateLimiter) -> None:
            together = await answers(limiter)
            alone = RateLimiter(url, namespace="alone", clock=clock, coalesce=False, **self.settings)
            one_by_one = []
            await alone.set_system_defaults([RPM, TPM])
            for entity_id, consume in requests:
                decision = await alone.try_acquire(entity_id, "r", consume)
                one_by_one.append((decision.allowed, decision.retry_after_seconds, decision.statuses))
            await alone.close()
            assert together == one_by_one
            assert {allowed for allowed, _, _ in together} == {True, False}

        drive(url, clock, scenario, **self.settings)

    @pytest.mark.parametrize("coalesce", [True, False])
    def test_cancelled_at_any_moment_nothing_stays_taken(self, url: str, clock: ManualClock, coalesce: bool) -> None:
        """Cancel after 0, 1, 2, ... steps of the event loop: before, during and after the call to the store."""

        async def take(limiter: RateLimiter) -> None:
            async with limiter.acquire("e", "r", {"rpm": 1}):
                await asyncio.sleep(3600)

        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([RPM])
            for steps in range(40):
                tasks = [asyncio.create_task(take(limiter)) for _ in range(3)]
                for _ in range(steps):
                    await asyncio.sleep(0.0001 if steps % 4 == 3 else 0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
                assert await limiter.available("e", "r") == {"rpm": 60}, steps

        drive(url, clock, scenario, coalesce=coalesce, **self.settings)

    @pytest.mark.parametrize("steps", range(6))
    def test_an_event_loop_that_ends_amid_acquires(self, url: str, clock: ManualClock, steps: int) -> None:
        """asyncio.run() cancels whatever still runs, our own tasks too: nobody hangs, and everything comes back."""
        limiter = RateLimiter(url, clock=clock, **self.settings)
        tasks: list[asyncio.Task[None]] = []

        async def take() -> None:
            async with limiter.acquire("e", "r", {"rpm": 1}):
                await asyncio.sleep(3600)

        async def main() -> None:
            await limiter.set_system_defaults([RPM])
            await limiter.available("e", "r")
            tasks.extend(asyncio.create_task(take()) for _ in range(20))
            for _ in range(steps):
                await asyncio.sleep(0)

        asyncio.run(main())
        assert all(task.cancelled() for task in tasks)
        assert asyncio.run(limiter.available("e", "r")) == {"rpm": 60}
        asyncio.run(limiter.close())

    @pytest.mark.parametrize("pause", [0, 0.0005])
    def test_an_event_loop_that_ends_amid_releases(self, url: str, clock: ManualClock, pause: float) -> None:
        limiter = RateLimiter(url, clock=clock, **self.settings)

        async def take() -> None:
            async with limiter.acquire("e", "r", {"rpm": 1}, [RPM]):
                raise KeyError

        async def main(steps: int) -> None:
            await limiter.available("e", "r", [RPM])
            for _ in range(8):
                asyncio.create_task(take()).add_done_callback(lambda task: task.cancelled() or task.exception())
            for _ in range(steps):
                await asyncio.sleep(pause)

        for steps in range(12):
            asyncio.run(main(steps))
            assert asyncio.run(limiter.available("e", "r", [RPM])) == {"rpm": 60}, steps
        asyncio.run(limiter.close())

    @pytest.mark.parametrize("pause", [0, 0.0003])
    def test_cancelled_acquires_leave_nothing_taken_when_the_event_loop_ends_at_once(
        self, url: str, clock: ManualClock, pause: float
    ) -> None:
        """Ctrl-C on a gather: its tasks are cancelled, and then everything is that still runs, ours too."""
        limiter = RateLimiter(url, clock=clock, **self.settings)

        async def take() -> None:
            async with limiter.acquire("e", "r", {"rpm": 1}, [RPM]):
                await asyncio.sleep(3600)

        async def main(before: int, after: int) -> None:
            await limiter.available("e", "r", [RPM])
            tasks = [asyncio.create_task(take()) for _ in range(20)]
            for _ in range(before):
                await asyncio.sleep(pause)
            for task in tasks:
                task.cancel()
            for _ in range(after):
                await asyncio.sleep(0)

        for before in range(7):
            for after in range(3):
                asyncio.run(main(before, after))
                assert asyncio.run(limiter.available("e", "r", [RPM])) == {"rpm": 60}, (before, after)
        asyncio.run(limiter.close())

    def test_cancelled_twice_it_still_gives_back(self, url: str, clock: ManualClock) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([RPM])
            for steps in range(12):
                task = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 60}))
                for _ in range(steps):
                    await asyncio.sleep(0)
                cancelled = task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if cancelled and task.cancelled():
                    assert await limiter.available("e", "r") == {"rpm": 60}, steps
                else:
                    await limiter.reset("e", "r")

        drive(url, clock, scenario, **self.settings)

    def test_a_cancelled_adjustment_lands_all_the_same(self, url: str, clock: ManualClock) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([RPM])
            async with limiter.acquire("e", "r", {"rpm": 1}, on_error="keep") as lease:
                task = asyncio.create_task(lease.adjust(rpm=9))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            assert await limiter.available("e", "r") == {"rpm": 50}
            assert lease.consumed == {"rpm": 10}

        drive(url, clock, scenario, **self.settings)

    def test_adjustment_cancelled_while_limits_are_read_still_lands(self, url: str, clock: ManualClock) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([RPM])
            for steps in range(1, 8):
                limiter.invalidate_config_cache()
                task = asyncio.create_task(limiter.adjust("e", "r", {"rpm": 1}))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert await limiter.available("e", "r") == {"rpm": 60 - steps}

        drive(url, clock, scenario, **self.settings)

    def test_adjustment_cancelled_while_its_namespace_is_registered_still_lands(
        self, url: str, clock: ManualClock
    ) -> None:
        async def adjust_and_cancel(namespace: str, steps: int) -> dict[str, int]:
            async with RateLimiter(url, clock=clock, **self.settings, namespace=namespace) as limiter:
                await limiter.available("e", "r", [RPM])  # which registers nothing
                task = asyncio.create_task(limiter.adjust("e", "r", {"rpm": 1}, [RPM]))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                return await limiter.available("e", "r", [RPM])

        for steps in range(1, 8):
            assert asyncio.run(adjust_and_cancel(f"new{steps}", steps)) == {"rpm": 59}, steps

    @pytest.mark.parametrize("coalesce", [True, False])
    def test_cancelled_acquire_raises_its_callers_own_cancellation(
        self, url: str, clock: ManualClock, coalesce: bool
    ) -> None:
        """Nothing else is recognized by asyncio.timeout, which then raises no TimeoutError, nor by anyio's scopes."""
        seen: set[tuple[Any, ...]] = set()

        async def take(limiter: RateLimiter) -> None:
            try:
                await limiter.try_acquire("e", "r", {"rpm": 1})
            except asyncio.CancelledError as cancelled:
                seen.add((type(cancelled), *cancelled.args))
                raise

        async def scenario(limiter: RateLimiter) -> None:
            await limiter.set_system_defaults([RPM])
            for steps in range(1, 40):
                await limiter.available("e", "r")  # alone: the next flies alone, too
                task = asyncio.create_task(take(limiter))
                for _ in range(steps):
                    await asyncio.sleep(0.0001 if steps % 4 == 3 else 0)
                task.cancel("time is up")
                await asyncio.wait([task])
                if not task.cancelled():
                    await limiter.reset("e", "r")
                assert await limiter.available("e", "r") == {"rpm": 60}, steps

        drive(url, clock, scenario, coalesce=coalesce, **self.settings)
        assert seen <= {(asyncio.CancelledError, "time is up")}

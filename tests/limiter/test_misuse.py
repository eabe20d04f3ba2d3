"""A forgotten `await` and the wrong `with` say so: neither lets a request pass."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter

TWO = [Limit.per_day("n", 2)]
WISH = ("e", "r", {"n": 1}, TWO)

QUESTIONS: dict[str, Callable[[RateLimiter], Any]] = {
    "try_acquire": lambda limiter: limiter.try_acquire(*WISH),
    "try_acquire_each": lambda limiter: limiter.try_acquire_each([]),
    "available": lambda limiter: limiter.available("e", "r", TWO),
    "delete_limits": lambda limiter: limiter.delete_limits("e"),
    "get_limits": lambda limiter: limiter.get_limits("e"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_condition_on_a_call_that_was_not_awaited_raises(name: str) -> None:
    async def main() -> None:
        async with RateLimiter("memory://") as limiter:
            with pytest.raises(TypeError, match=rf"{name}\(\) was not awaited.*write `await {name}\(\.\.\.\)`"):
                if QUESTIONS[name](limiter):
                    raise AssertionError("it passed")
            with pytest.raises(TypeError, match="was not awaited"):
                _ = not QUESTIONS[name](limiter)
            assert await limiter.available("e", "r", TWO) == {"n": 2}

    asyncio.run(main())


def test_condition_on_a_lease_method_that_was_not_awaited_raises() -> None:
    async def main() -> None:
        async with RateLimiter("memory://") as limiter, limiter.acquire(*WISH) as lease:
            with pytest.raises(TypeError, match=r"renew\(\) was not awaited"):
                bool(lease.renew())

    asyncio.run(main())


def test_calls_can_be_gathered_timed_out_and_made_tasks() -> None:
    async def main() -> None:
        async with RateLimiter("memory://") as limiter:
            one, other = await asyncio.gather(limiter.try_acquire(*WISH), limiter.try_acquire(*WISH))
            third = await asyncio.wait_for(asyncio.create_task(limiter.try_acquire(*WISH)), 10)
            assert [bool(one), bool(other), bool(third)] == [True, True, False]
            task = asyncio.ensure_future(limiter.try_acquire(*WISH))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            call = limiter.try_acquire(*WISH)
            call.close()

    asyncio.run(main())
    limiter = RateLimiter("memory://")
    assert asyncio.run(limiter.try_acquire(*WISH))  # type: ignore[arg-type]


def test_mocks_of_a_limiter_are_awaited_like_the_limiter() -> None:
    mocked = create_autospec(RateLimiter, instance=True)

    async def main() -> None:
        await mocked.try_acquire(*WISH)
        await mocked.available("e", "r")
        await mocked.set_limits("e", TWO)

    asyncio.run(main())
    mocked.try_acquire.assert_awaited_once()


def test_a_call_that_is_dropped_is_reported_by_python() -> None:
    async def main() -> None:
        limiter = RateLimiter("memory://")
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            limiter.try_acquire(*WISH)

    asyncio.run(main())


def test_with_where_async_with_belongs_says_so() -> None:
    limiter: Any = RateLimiter("memory://")

    async def main() -> None:
        with pytest.raises(TypeError, match=r"acquire\(\) needs `async with`.*SyncRateLimiter"), limiter.acquire(*WISH):
            raise AssertionError("it passed")
        many = {"e#r": {"n": 1}}
        with pytest.raises(TypeError, match=r"acquire_many\(\) needs `async with`"), limiter.acquire_many(many):
            raise AssertionError("it passed")
        with pytest.raises(TypeError, match="RateLimiter needs `async with`"), limiter:
            pass
        decision = await limiter.try_acquire(*WISH)
        with pytest.raises(TypeError, match="Lease needs `async with`"), decision.lease:
            pass

    asyncio.run(main())


def test_async_with_where_with_belongs_says_so() -> None:
    limiter: Any = SyncRateLimiter("memory://")

    async def main() -> None:
        with pytest.raises(TypeError, match=r"acquire\(\) needs `with`, not `async with`; .* use RateLimiter"):
            async with limiter.acquire(*WISH):
                raise AssertionError("it passed")
        with pytest.raises(TypeError, match="SyncRateLimiter needs `with`"):
            async with limiter:
                pass
        with pytest.raises(TypeError, match="SyncLease needs `with`"):
            async with limiter.try_acquire(*WISH).lease:
                pass

    asyncio.run(main())


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_acquire_outside_of_a_with_statement_is_no_decision(kind: type[Any]) -> None:
    limiter = kind("memory://")
    with pytest.raises(TypeError, match=r"takes nothing until it is entered.*with limiter\.acquire"):
        if limiter.acquire(*WISH):
            raise AssertionError("it passed")

    async def main() -> None:
        with pytest.raises(TypeError, match="takes nothing until it is entered"):
            await limiter.acquire(*WISH)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_unknown_option_of_a_limiter_names_the_class_and_the_option_that_was_meant(kind: type[Any]) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) has no option 'timeout'.*store_timeout"):
        kind("memory://", timeout=3)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) has no option 'zzz'; it has .*namespace"):
        kind("memory://", zzz=3)


def test_limit_cannot_be_changed_and_says_how_to_get_another() -> None:
    limit = Limit.per_day("n", 2)
    with pytest.raises(AttributeError, match=r"a Limit cannot be changed \(capacity\): make another one"):
        limit.capacity = 1  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del limit.name
    with pytest.raises(AttributeError):
        limit.other = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(limit)) == limit

"""`@limiter.limit(...)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter, ValidationError
from headgate.testing import ManualClock


def test_decorated_function_is_limited_by_its_key_and_keeps_its_name() -> None:
    limiter = SyncRateLimiter("memory://", clock=ManualClock())

    @limiter.limit("2/minute", key=lambda user, **_: user)
    def greet(user: str, *, polite: bool = True) -> str:
        """Say hello."""
        return f"hello {user}"

    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    assert [greet("ann"), greet("ann", polite=False)] == ["hello ann"] * 2
    with pytest.raises(RateLimitExceeded) as caught:
        greet("ann")
    assert caught.value.primary_violation.resource.endswith("keeps_its_name.locals.greet")
    assert greet("bob") == "hello bob"


def test_decorated_coroutine_is_limited_by_its_cost() -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://", clock=ManualClock()) as limiter:

            @limiter.limit(
                [Limit.per_minute("rpm", 2), Limit.per_minute("tpm", 100)], key="me", cost=cost, resource="llm"
            )
            async def ask(text: str) -> str:
                return text.upper()

            assert await ask("hi") == "HI"
            assert await limiter.available("me", "llm", [Limit.per_minute("tpm", 100)]) == {"tpm": 98}
            with pytest.raises(RateLimitExceeded):
                await ask("x" * 99)

    def cost(text: str) -> dict[str, int | float]:
        return {"rpm": 1, "tpm": len(text)}

    asyncio.run(scenario())


def test_a_failing_call_gives_back_unless_told_otherwise() -> None:
    limiter = SyncRateLimiter("memory://", clock=ManualClock())
    limit = Limit.per_minute("calls", 5)

    def fail() -> None:
        raise OSError

    for on_error, left in (("rollback", 5), ("keep", 4)):
        limited: Any = limiter.limit(limit, key="me", resource="r", on_error=on_error)(fail)
        with pytest.raises(OSError):
            limited()
        assert limiter.available("me", "r", [limit]) == {"calls": left}


def test_decorated_function_waits_for_max_wait() -> None:
    limiter = SyncRateLimiter("memory://")

    @limiter.limit("100/second burst 1", max_wait=5)
    def tick() -> None:
        pass

    for _ in range(3):
        tick()


def test_the_wrong_kind_of_function() -> None:
    async def coroutine() -> None: ...

    def function() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ValidationError, match="RateLimiter"):
        SyncRateLimiter("memory://").limit("1/minute")(coroutine)
    with pytest.raises(ValidationError, match="inside it"):
        SyncRateLimiter("memory://").limit("1/minute")(generator)
    limiter: Any = RateLimiter("memory://")
    with pytest.raises(ValidationError, match="SyncRateLimiter"):
        limiter.limit("1/minute")(function)


def test_bad_specs_are_refused_when_decorating() -> None:
    with pytest.raises(ValidationError, match="fortnight"):
        SyncRateLimiter("memory://").limit("1/fortnight")(lambda: None)

"""One way to drive both limiters, so that a behaviour is written down once and checked on both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..limiter import RateLimiter, SyncRateLimiter


class Blocking:
    """Something of RateLimiter's, with its coroutines run to the end."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def _wrapped(self, value: Any) -> Any:
        if asyncio.iscoroutine(value):
            value = self._loop.run_until_complete(value)
        if isinstance(value, dict):
            return {name: self._wrapped(of_name) for name, of_name in value.items()}
        if type(value) is list:
            return [self._wrapped(one) for one in value]
        kind = type(value)
        of_ours = kind.__module__.startswith("headgate.limiter")
        plain = hasattr(kind, "__dataclass_fields__") or isinstance(value, (list, tuple))
        return Blocking(value, self._loop) if of_ours and not plain else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.ismethod(value):
            return lambda *args, **kwargs: self._wrapped(value(*args, **kwargs))
        return self._wrapped(value)

    def __bool__(self) -> bool:
        return bool(self._target)

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        return self._wrapped(self._target.__aenter__())

    def __exit__(self, *error: Any) -> None:
        self._wrapped(self._target.__aexit__(*error))


class SyncDriver:
    """SyncRateLimiter as it is, plus `together`."""

    kind = "sync"

    def __init__(self, url: str, **settings: Any) -> None:
        self._limiter = SyncRateLimiter(url, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limiter, name)

    def together(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Make calls at the same time, each in a thread; answers in the order of the calls."""
        answers: list[Any] = [None] * len(calls)
        start = threading.Barrier(len(calls))

        def make(index: int) -> None:
            method, args = calls[index]
            start.wait()
            answers[index] = getattr(self._limiter, method)(*args)

        threads = [threading.Thread(target=make, args=(index,)) for index in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def shut(self) -> None:
        self._limiter.close()


class AsyncDriver(Blocking):
    """RateLimiter on an event loop of its own."""

    kind = "async"

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(RateLimiter(url, **settings), asyncio.new_event_loop())

    def together(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Make calls at the same time, each in a task, started in order; answers in the order of the calls."""

        async def make() -> list[Any]:
            return await asyncio.gather(*(getattr(self._target, method)(*args) for method, args in calls))

        return [self._wrapped(answer) for answer in self._loop.run_until_complete(make())]

    def run(self, scenario: Callable[[RateLimiter], Any]) -> Any:
        """Run a coroutine function on the limiter itself."""
        return self._loop.run_until_complete(scenario(self._target))

    def shut(self) -> None:
        self._loop.run_until_complete(self._target.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


DRIVERS: dict[str, Any] = {"sync": SyncDriver, "async": AsyncDriver}

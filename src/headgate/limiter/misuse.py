"""Mistakes that Python alone would let pass: a forgotten `await` is always true, and `with` is not `async with`.

Type checkers find them too, so the methods that only raise are hidden from them.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator
from difflib import get_close_matches
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Pending(Coroutine[Any, Any, T]):
    """What a method of a RateLimiter returns before it is awaited. It is neither true nor false."""

    __slots__ = ("_coroutine", "_what")

    def __init__(self, coroutine: Coroutine[Any, Any, T], what: str) -> None:
        self._coroutine = coroutine
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None) -> Any:
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine.close()

    def __bool__(self) -> bool:
        self._coroutine.close()
        raise TypeError(
            f"{self._what}() was not awaited, so there is no answer yet: write `await {self._what}(...)`, or use "
            "SyncRateLimiter where there is no event loop"
        )

    def __repr__(self) -> str:
        return f"<{self._what}() that was not awaited yet>"


def returns_coroutine(function: F) -> F:
    """Let `inspect.iscoroutinefunction`, and with it mocks, take a function for what its callers see."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function


class AsyncOnly:
    """Of what belongs into an `async with` statement."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise TypeError(
                f"{_what(self)} needs `async with`, not `with`; where there is no event loop use SyncRateLimiter"
            )

        def __exit__(self, kind: object, error: object, traceback: object) -> None: ...


class SyncOnly:
    """Of what belongs into a `with` statement."""

    __slots__ = ()

    if not TYPE_CHECKING:

        async def __aenter__(self) -> None:
            raise TypeError(f"{_what(self)} needs `with`, not `async with`; in an event loop use RateLimiter")

        async def __aexit__(self, kind: object, error: object, traceback: object) -> None: ...


class NotEntered:
    """Of an acquire, which takes nothing before its `with` statement."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __bool__(self) -> bool:
            raise TypeError(f"{_what(self)} takes nothing until {_statement(self)}: to ask, use try_acquire()")

        def __await__(self) -> Generator[Any, Any, Any]:
            raise TypeError(f"{_what(self)} takes nothing until {_statement(self)}: to ask, await try_acquire()")


def known_options(init: F) -> F:
    """Let a class's `__init__` name the class, and what was probably meant, if it is given an option it lacks."""
    names = inspect.signature(init).parameters
    options = [one.name for one in names.values() if one.kind is one.KEYWORD_ONLY]

    @wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for name in given.keys() - {*names}:
            meant = get_close_matches(name, options, 1)
            remedy = f"did you mean {meant[0]!r}?" if meant else f"it has {', '.join(options)}"
            raise TypeError(f"{type(self).__name__}() has no option {name!r}; {remedy}")
        init(self, *args, **given)

    return cast(F, checked)


def _statement(wrong: object) -> str:
    keyword = "async with" if isinstance(wrong, AsyncOnly) else "with"
    return f"it is entered, `{keyword} limiter.acquire(...) as lease:`"


def _what(wrong: object) -> str:
    """What the caller has written."""
    name: str = getattr(type(wrong), "written", type(wrong).__name__)
    return name

"""`@limiter.limit("10/minute", key=...)`: a function that takes from a bucket each time it is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypedDict, TypeVar

from ...core.errors import ValidationError
from ...core.limit import Limit
from .options import OnError

if TYPE_CHECKING:
    from ..asynchronous import RateLimiter
    from ..synchronous import SyncRateLimiter

P = ParamSpec("P")
T = TypeVar("T")
LimitSpec: TypeAlias = "str | Limit | Sequence[Limit]"
Key: TypeAlias = "str | Callable[..., str]"
Cost: TypeAlias = "int | float | Mapping[str, int | float] | Callable[..., int | float | Mapping[str, int | float]]"

DEFAULT_NAME = "calls"


class AcquireArguments(TypedDict):
    entity_id: str
    resource: str
    consume: Mapping[str, Any]
    limits: Sequence[Limit]


class Limited:
    """What one decorated function takes, worked out from the arguments of a call."""

    def __init__(
        self, function: Callable[..., Any], spec: LimitSpec, key: Key, cost: Cost, resource: str | None
    ) -> None:
        self._limits = _read(spec)
        self._key = key
        self._cost = cost
        self._resource = resource or _resource_of(function)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AcquireArguments:
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        consume = cost if isinstance(cost, Mapping) else dict.fromkeys((limit.name for limit in self._limits), cost)
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        return {"entity_id": key, "resource": self._resource, "consume": consume, "limits": self._limits}


def _read(spec: LimitSpec) -> Sequence[Limit]:
    if isinstance(spec, str):
        return [Limit.parse(DEFAULT_NAME, spec)]
    return [spec] if isinstance(spec, Limit) else list(spec)


def _resource_of(function: Callable[..., Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9_.]", "", f"{function.__module__}.{function.__qualname__}")
    return name.lstrip("_.")[-256:]


def _check_kind(function: Any, *, coroutine: bool) -> None:
    """Each limiter takes its own kind of function: the wrong one would block, or never wait."""
    name = getattr(function, "__qualname__", function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ValidationError(f"{name!r} is a generator, which runs after its call: acquire inside it instead")
    if inspect.iscoroutinefunction(function) is coroutine:
        return
    if coroutine:
        raise ValidationError(f"{name!r} is not a coroutine function: decorate it with a SyncRateLimiter")
    raise ValidationError(f"{name!r} is a coroutine function: decorate it with a RateLimiter")


def limited_coroutine(
    limiter: RateLimiter,
    spec: LimitSpec,
    key: Key,
    cost: Cost,
    resource: str | None,
    max_wait: float,
    on_error: OnError,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        _check_kind(function, coroutine=True)
        limited = Limited(function, spec, key, cost, resource)

        @wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            async with limiter.acquire(**limited.arguments(args, kwargs), max_wait=max_wait, on_error=on_error):
                return await function(*args, **kwargs)

        return wrapper

    return decorate


def limited_function(
    limiter: SyncRateLimiter,
    spec: LimitSpec,
    key: Key,
    cost: Cost,
    resource: str | None,
    max_wait: float,
    on_error: OnError,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _check_kind(function, coroutine=False)
        limited = Limited(function, spec, key, cost, resource)

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            with limiter.acquire(**limited.arguments(args, kwargs), max_wait=max_wait, on_error=on_error):
                return function(*args, **kwargs)

        return wrapper

    return decorate

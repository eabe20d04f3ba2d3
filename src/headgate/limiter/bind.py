"""A method from a plan. A plan is written once, with its signature and docstring; both limiters bind it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..plan import Plan, arun, run
from .misuse import Pending, returns_coroutine

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def blocking(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], T]:
    @wraps(plan)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(plan(self, *args, **kwargs), self._perform)  # type: ignore[attr-defined]

    return _named(method, plan)


def coroutine(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    @wraps(plan)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return Pending(arun(plan(self, *args, **kwargs), self._perform), method.__name__)  # type: ignore[attr-defined]

    return returns_coroutine(_named(method, plan))


def _named(method: Callable[P, T], plan: Callable[..., Any]) -> Callable[P, T]:
    method.__name__ = plan.__name__.removesuffix("_plan")
    return method

"""Methods from plans. A plan is written once, with its signature and docstring; both limiters have a method for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..plan import Plan, arun, run
from .misuse import AsyncOnly, Pending, SyncOnly, returns_coroutine

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def blocking(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[Any, P], T]:
    @wraps(plan)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(plan(self._subject, *args, **kwargs), self.engine.perform)

    return _named(method, plan)


def coroutine(plan: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    @wraps(plan)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return Pending(arun(plan(self._subject, *args, **kwargs), self.engine.perform), method.__name__)

    return returns_coroutine(_named(method, plan))


def _named(method: Callable[P, T], plan: Callable[..., Any]) -> Callable[P, T]:
    method.__name__ = plan.__name__.removesuffix("_plan").removeprefix("_")
    return method


class method(Generic[P, T]):  # it is used like a decorator
    """A plan as a method of a `PlanMethods` class."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[T]]) -> None:
        self.plan = plan

    @overload
    def __get__(self, instance: AsyncOnly, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: SyncOnly, owner: type) -> Callable[P, T]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        raise TypeError(f"{owner.__name__} is neither AsyncOnly nor SyncOnly")


class PlanMethods:
    """Its subclasses that are AsyncOnly or SyncOnly get the methods of their kind."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, (AsyncOnly, SyncOnly)):
            bind = coroutine if issubclass(cls, AsyncOnly) else blocking
            for base in reversed(cls.__mro__):
                for name, found in vars(base).copy().items():
                    if isinstance(found, method):
                        setattr(cls, name, bind(found.plan))

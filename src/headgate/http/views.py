"""Limits on single views: the common part of the frameworks' decorators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from .fields import REJECT, BadCostChoice, Cost, Per
from .rules import Match, Rule

View: TypeAlias = "Callable[..., Any]"

_STACK = "__headgate__"
_COUNTS = "headgate.counts"
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.]")
_LONGEST = 240


class ViewLimit:
    """The arguments of a decorator. Without an `id`, each view has its own buckets, named after the view."""

    def __init__(
        self,
        limits: Any = None,
        *,
        id: str | None = None,
        cost: Cost = 1,
        per: Per = "caller",
        shadow: bool = False,
        bad_cost: BadCostChoice = REJECT,
    ) -> None:
        self._id = id
        self._make = partial(Rule, limits=limits, cost=cost, per=per, shadow=shadow, bad_cost=bad_cost)
        self._rules: dict[str, Rule] = {}
        self.rule("view")  # raises now, and not at the first request, if an argument is wrong

    @property
    def named(self) -> bool:
        return self._id is not None

    def rule(self, name: str) -> Rule:
        id = self._id or name
        rule = self._rules.get(id)
        if rule is None:
            rule = self._rules[id] = self._make(id)
        return rule


def matches(
    limits: Sequence[ViewLimit], name: str, params: Mapping[str, Any], request: MutableMapping[str, Any]
) -> list[Match]:
    """The limits as matches for the engine. `request`: where to count the limits named after the view."""
    counts: dict[str, int] = request.setdefault(_COUNTS, {})
    texts = {key: str(value) for key, value in params.items()}
    found = []
    for limit in limits:
        number = counts.get(name, 0) + 1
        found.append(Match(limit.rule(name if number == 1 else f"{name}.{number}"), texts))
        counts[name] = number - limit.named
    return found


@lru_cache(4096)
def name_of(view: Any, view_class: type | None = None) -> str:
    """The resource of a view. `view_class`: the class whose method it is, perhaps an inherited one."""
    while isinstance(view, partial):
        view = view.func
    if not hasattr(view, "__qualname__"):
        view = type(view)
    name = f"{view.__module__}.{view.__qualname__}"
    if view_class is not None:
        name = f"{view_class.__module__}.{view_class.__qualname__}.{view.__name__}"
    return _NOT_IN_IDS.sub("", name).lstrip("_.")[-_LONGEST:].lstrip("_.") or "view"


def stacked(decorated: View, limit: ViewLimit) -> tuple[View, tuple[ViewLimit, ...]]:
    """The view itself, and all its limits: stacked decorators make one call to the store."""
    wrapper, view, limits = getattr(decorated, _STACK, (None, decorated, ()))
    # A decorator in between has copied the mark, and must still run.
    return (view, (*limits, limit)) if wrapper is decorated else (decorated, (limit,))


def mark(wrapper: Any, view: View, limits: tuple[ViewLimit, ...]) -> Any:
    setattr(wrapper, _STACK, (wrapper, view, limits))
    return wrapper

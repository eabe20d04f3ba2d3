"""A difference as a line that people read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_LONGEST = 100


def told_line(place: object, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """`+ entity acme: name "Acme"`, `~ limits of acme: rpm 10/minute -> 20/minute`, `- resource llm: rpm 5/second`."""
    old, new = _flat(before or {}), _flat(after or {})
    if before is None:
        sign, shown = "+", _listed(new)
    elif after is None:
        sign, shown = "-", _listed(old)
    else:
        sign, shown = "~", list(_compared(old, new))
    return f"{sign} {place}{': ' if shown else ''}{', '.join(shown)}"


def _listed(parts: Mapping[str, str], sign: str = "") -> list[str]:
    return [f"{sign}{name} {text}" for name, text in parts.items()]


def _compared(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, text in old.items():
        if new.get(name, text) != text:
            yield f"{name} {text} -> {new[name]}"
    yield from _listed({name: text for name, text in new.items() if name not in old}, "+")
    yield from _listed({name: text for name, text in old.items() if name not in new}, "-")


def _flat(value: Mapping[str, Any]) -> dict[str, str]:
    """What differs is shown by itself: each limit, each key of the metadata, each rule, each plan."""
    flat: dict[str, str] = {}
    for key, item in value.items():
        if item not in (None, False) or key == "inherit":
            flat |= _PARTS[key](item) if key in _PARTS else {key: _json(item)}
    return flat


def _rules(rules: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {rule["id"]: _json({key: item for key, item in rule.items() if key != "id"}) for rule in rules}


_PARTS: dict[str, Callable[[Any], dict[str, str]]] = {
    "limits": dict,
    "parent_id": lambda parent_id: {"parent": parent_id},
    "metadata": lambda metadata: {f"metadata.{key}": _json(item) for key, item in metadata.items()},
    "plans": lambda plans: {name: _json(plan) for name, plan in plans.items()},
    "rules": _rules,
}


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

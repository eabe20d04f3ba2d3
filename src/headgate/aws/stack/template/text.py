"""The template as YAML. Every text that could be taken for something else is quoted, as JSON quotes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_WORD = r"(?:[A-Za-z0-9/_.()+*,;'-]|:(?=[^ ]))+"
_PLAIN = re.compile(rf"(?=[A-Za-z/]){_WORD}(?: {_WORD})*(?<!:)")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def to_yaml(value: Any) -> str:
    return "\n".join(_slot_queues(value)) + "\n"


def _slot_queues(value: Any) -> Iterator[str]:
    entries = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in entries:
        mark = "-" if name is None else f"{_scalar(name)}:"
        if not isinstance(each, dict | list) or not each:
            yield f"{mark} {_scalar(each)}"
        elif name is None:
            first, *more = _slot_queues(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
        else:
            yield mark
            yield from (f"  {line}" for line in _slot_queues(each))


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)

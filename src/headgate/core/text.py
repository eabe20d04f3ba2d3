"""Text that can be written anywhere. JSON can hold half of a surrogate pair, and UTF-8 cannot: what has one could be
stored, and never be shown again."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import ValidationError

MAX_DEPTH = 32
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_TOO_DEEP = "\N{HORIZONTAL ELLIPSIS}"


def check_text(text: str, what: str) -> str:
    """The text, or ValidationError if it cannot be encoded."""
    lone = _SURROGATE.search(text)
    if lone is not None:
        raise ValidationError(
            f"{what} has the lone surrogate {lone[0]!r} in it, which is no character: send text that is valid UTF-8"
        )
    return text


def check_document(value: Any, what: str, max_bytes: int) -> dict[str, Any]:
    """A copy of a dict as JSON holds it, or ValidationError: it may be so large, so deep, and of text that is text."""
    try:
        if not isinstance(value, dict):
            raise TypeError(f"it is a {type(value).__name__}")
        written = json.dumps(value, allow_nan=False)
    except RecursionError:
        raise _too_deep(what) from None
    except (TypeError, ValueError) as error:
        raise ValidationError(f"{what} must be a dict that JSON can hold: {error}") from None
    if len(written) > max_bytes:
        raise ValidationError(f"{what} takes {len(written):,} bytes as JSON, and {max_bytes:,} are allowed: keep less")
    document: dict[str, Any] = json.loads(written)
    _check_parts(document, what)
    return document


def _check_parts(document: Any, what: str) -> None:
    parts = [(document, 0)]
    while parts:
        part, depth = parts.pop()
        if depth > MAX_DEPTH:
            raise _too_deep(what)
        if isinstance(part, str):
            check_text(part, what)
        elif isinstance(part, dict):
            parts += [(key, depth) for key in part]
            parts += [(inner, depth + 1) for inner in part.values()]
        elif isinstance(part, list):
            parts += [(inner, depth + 1) for inner in part]


def _too_deep(what: str) -> ValidationError:
    return ValidationError(f"{what} is nested more than {MAX_DEPTH} deep: flatten it")


def readable(value: Any, depth: int = 0) -> Any:
    """What was stored before it was checked, so that it can be shown: U+FFFD stands for what is no character."""
    if isinstance(value, str):
        return _SURROGATE.sub(_REPLACED, value)
    if depth > MAX_DEPTH + 2 and isinstance(value, (dict, list)):  # audit events have documents in them
        return _TOO_DEEP
    if isinstance(value, dict):
        return {readable(key): readable(inner, depth + 1) for key, inner in value.items()}
    return [readable(inner, depth + 1) for inner in value] if isinstance(value, list) else value

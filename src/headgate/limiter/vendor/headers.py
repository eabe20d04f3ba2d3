"""What a vendor says of its own limits, read from the headers of its response.

The headers are the vendor's, and a call that succeeded must not fail over them: what cannot be
read counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from ...core.errors import ValidationError
from ...core.units import MAX_PERIOD_MS, MAX_TOKENS, MILLI

T = TypeVar("T")

# Anthropic puts the kind first, OpenAI and its followers last. Who names none means the kind given here.
_NAMES = (
    (re.compile(r"x-rate-?limit-(?P<what>limit|remaining|reset)(?:-(?P<kind>.+))?"), "requests"),
    (re.compile(r"x-tokenlimit-(?P<what>limit|remaining|reset)(?P<kind>)"), "tokens"),
    (re.compile(r"anthropic-(?:ratelimit-)?(?P<kind>.+)-(?P<what>limit|remaining|reset)"), ""),
)

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
# Go writes a micro sign, in UTF-8; clients that take headers for Latin-1 make two characters of it.
_MICRO_SECONDS = dict.fromkeys(("us", "\u00b5s", "\u03bcs", "\u00c2\u00b5s"), 1e-6)
_UNIT_SECONDS = {"ms": 1e-3, "ns": 1e-9, **_MICRO_SECONDS, "d": 86400, "h": 3600, "m": 60, "s": 1}
_STEP = re.compile(rf"({_NUMBER.pattern})({'|'.join(_UNIT_SECONDS)})")
_DURATION = re.compile(rf"(?:{_STEP.pattern})+")
_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?")

# All of the above fits in this, and no number of as many digits is too large for a float.
_MOST_CHARACTERS = 64
# A plain number this large is no wait but a time since 1970: in seconds, or in milliseconds if it is larger still.
_EPOCH_SECONDS = 10**9
_EPOCH_MS = 10**11


@dataclass(frozen=True, slots=True)
class Reading:
    """What a vendor says of one of its limits. None: it did not say."""

    limit: int | None
    remaining: int | None
    reset_seconds: float | None  # from now until it is full again; never negative


_NOTHING = Reading(None, None, None)


@dataclass(frozen=True, slots=True)
class VendorHeaders:
    """Readings by kind: "requests", "tokens", "input_tokens", or as the vendor spells it, with underscores."""

    readings: dict[str, Reading]
    retry_after_seconds: float | None


def read_headers(response: Any, now_ms: int) -> VendorHeaders:
    """Read a response, an error that has one, or headers alone. Where two headers differ, the worse news counts."""
    headers = _headers(response)
    readings: dict[str, Reading] = {}
    for name, text in headers:
        for pattern, unnamed in _NAMES:
            if match := pattern.fullmatch(name):
                kind = (match["kind"] or unnamed).replace("-", "_")
                said = _reading(match["what"], text, now_ms)
                readings[kind] = _worse(readings.get(kind, _NOTHING), said)
    readings = {kind: reading for kind, reading in readings.items() if reading != _NOTHING}
    return VendorHeaders(readings, _retry_after(headers, now_ms))


def _headers(response: Any) -> list[tuple[str, str]]:
    inner = getattr(response, "response", None)
    for source in (response, getattr(response, "headers", None), getattr(inner, "headers", None)):
        pairs: Any = list(source.items()) if isinstance(source, (Mapping, Message)) else source
        if _are_pairs(pairs):
            texts = [(_text(name).lower(), _text(value)) for name, value in pairs]
            return [(name, text) for name, text in texts if len(text) <= _MOST_CHARACTERS]
    raise ValidationError(
        "response must be headers, a response with .headers or an error with .response.headers, "
        f"not {type(response).__name__}"
    )


def _are_pairs(pairs: Any) -> bool:
    if not isinstance(pairs, Sequence) or isinstance(pairs, (str, bytes, bytearray)):
        return False
    return all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value.strip() if isinstance(value, str) else ""


def _reading(what: str, text: str, now_ms: int) -> Reading:
    if what == "reset":
        return Reading(None, None, _seconds(text, now_ms))
    return Reading(_count(text), None, None) if what == "limit" else Reading(None, _count(text), None)


def _worse(one: Reading, other: Reading) -> Reading:
    return Reading(
        min(_known(one.limit, other.limit), default=None),
        min(_known(one.remaining, other.remaining), default=None),
        max(_known(one.reset_seconds, other.reset_seconds), default=None),
    )


def _retry_after(headers: list[tuple[str, str]], now_ms: int) -> float | None:
    exact_ms = _known(*(_number(text) for name, text in headers if name == "retry-after-ms"))
    if exact_ms:
        return _in_range(max(exact_ms) / MILLI)
    return max(_known(*(_seconds(text, now_ms) for name, text in headers if name == "retry-after")), default=None)


def _known(*values: T | None) -> list[T]:
    return [value for value in values if value is not None]


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _count(text: str) -> int | None:
    """A whole number. None for -1 and for more than any limit can be, which are ways to say unlimited."""
    number = _number(text)
    return None if number is None or number > MAX_TOKENS else int(number)


def _seconds(text: str, now_ms: int) -> float | None:
    """Seconds from now: of a wait, or until a time; what is past is zero."""
    wait = _wait(text)
    if wait is None:
        time_ms = _time_ms(text)
        wait = None if time_ms is None else (time_ms - now_ms) / MILLI
    return None if wait is None else _in_range(wait)


def _in_range(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_PERIOD_MS / MILLI)


def _wait(text: str) -> float | None:
    """Seconds of "12", "0.5", or the Go way of "1h2m3.5s"."""
    number = _number(text)
    if number is not None:
        return number if number < _EPOCH_SECONDS else None
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _STEP.findall(text))


def _time_ms(text: str) -> float | None:
    """Milliseconds since 1970 of a number of them or of seconds, of RFC 3339, or of an HTTP date."""
    number = _number(text)
    if number is not None:
        return number if number >= _EPOCH_MS else number * MILLI
    try:
        if match := _RFC_3339.fullmatch(text):
            day, clock, fraction, zone = match.groups("")
            # Before Python 3.11 it reads no Z, and no fraction but of three or six digits.
            time = datetime.fromisoformat(f"{day}T{clock}.{fraction:0<6.6}{zone.upper().replace('Z', '+00:00')}")
        else:
            time = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp() * MILLI

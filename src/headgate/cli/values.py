"""Parsing of arguments: NAME=AMOUNT, NAME=SPEC, KEY=VALUE, dates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation

from ..core.calendar import UTC
from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.schedule import Entry, Schedule


def read_amounts(texts: Iterable[str]) -> dict[str, int | Decimal]:
    """`rpm=1`, `usd=0.25`: whole numbers or decimals, by limit name."""
    return {name: _amount(name, text) for name, text in read_pairs(texts, "NAME=AMOUNT, like rpm=1").items()}


def read_limits(texts: Iterable[str]) -> list[Limit]:
    """`rpm=100/minute`, `tpm=10000/minute burst 15000`."""
    pairs = read_pairs(texts, "NAME=SPEC, like rpm=100/minute or 'tpm=10000/minute burst 15000'")
    return [Limit.parse(name, spec) for name, spec in pairs.items()]


def read_hours(limits: Iterable[Limit], hours: Iterable[str], tz: str | None) -> Schedule | None:
    """`mon-fri 08:00-18:00: rph=100/hour; rpm=10/minute`, `sat,sun: 0.5`."""
    entries = [_hours(text) for text in hours]
    if not entries and tz is not None:
        raise ValidationError(f"--tz {tz} is for --hours: give some, like --hours 'mon-fri 08:00-18:00: rph=100/hour'")
    return Schedule(entries, otherwise=limits, tz=tz or UTC) if entries else None


def _hours(text: str) -> Entry:
    hours, separator, what = text.partition(": ")
    if not separator:
        raise ValidationError(
            f"hours {text!r} cannot be read: write them like 'mon-fri 08:00-18:00: rph=100/hour' or 'sat,sun: 0.5'"
        )
    try:
        return hours.strip(), float(what)
    except ValueError:
        return hours.strip(), read_limits(what.split(";"))


def read_moment(text: str | None, what: str) -> datetime | None:
    """`2026-01-31`, `2026-01-31T14:00`, `2026-01-31T14:00+02:00`; UTC without an offset."""
    if text is None:
        return None
    try:
        # Python 3.10 does not parse the Z.
        moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise ValidationError(
            f"{what} {text!r} is not a date: write 2026-01-31, 2026-01-31T14:00 or 2026-01-31T14:00+02:00"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def read_pairs(texts: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.strip()
        if not separator or not name or not value.strip():
            raise ValidationError(f"{text!r} cannot be read: write {form}")
        if name in pairs:
            raise ValidationError(f"{name!r} is given twice")
        pairs[name] = value.strip()
    return pairs


def _amount(name: str, text: str) -> int | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValidationError(f"amount of {name!r} must be a number, not {text!r}") from None
    return int(number) if number.is_finite() and number == number.to_integral_value() else number

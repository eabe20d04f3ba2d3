"""The one file where numbers change unit: tokens and millitokens, seconds and milliseconds.

Inside, everything is a whole number of millitokens or milliseconds. A float that a person
typed is read as the decimal they typed (0.1 is one tenth), never as its binary neighbour.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from .errors import ValidationError

Number: TypeAlias = "int | float | Decimal | Fraction"

MILLI = 1000
_MOST_DIGITS = 40
MAX_TOKENS = 10**12
MAX_PERIOD_MS = 366 * 24 * 3600 * 1000
# The largest amount one call may move: what still is a whole number in a double (2**53) when counted in millitokens.
MAX_AMOUNT = 9 * 10**12
# No bucket owes more than this, so that every store can hold the number in 63 bits.
MAX_DEBT_MILLI = 10**18


def _thousandths(value: Any, what: str, unit: str) -> int:
    if type(value) is int:
        return value * MILLI
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, Fraction)):
        raise ValidationError(f"{what} must be a number, not {value!r}")
    if not _is_finite(value):
        raise ValidationError(f"{what} must be finite, not {shown(value)}")
    if isinstance(value, Decimal) and value and abs(value.adjusted()) > _MOST_DIGITS:  # 1e999999999 is no fraction here
        raise ValidationError(f"{what} is out of range: {shown(value)}")
    exact = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    thousandths = exact * MILLI
    if thousandths.denominator != 1:
        raise ValidationError(
            f"{what} must be a multiple of 0.001{unit}, not {shown(value)}; round it to three places first"
        )
    return int(thousandths)


def _is_finite(value: Number) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, (int, Fraction)) or math.isfinite(value)


def shown(value: Any) -> str:
    """A value in a message. Python refuses to write out a number of more than 4,300 digits."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def tokens_to_milli(value: Any, what: str, *, most: int = MAX_TOKENS) -> int:
    """Millitokens of a positive number of tokens."""
    milli = _thousandths(value, what, "")
    if milli <= 0:
        raise ValidationError(f"{what} must be more than zero, not {shown(value)}")
    if milli > most * MILLI:
        raise ValidationError(f"{what} must be at most {most:,}, not {shown(value)}")
    return milli


def amount_to_milli(value: Any, what: str) -> int:
    """Millitokens of what a call takes: zero or more."""
    milli = _thousandths(value, what, "")
    if not 0 <= milli <= MAX_AMOUNT * MILLI:
        raise ValidationError(f"{what} must be from 0 to {MAX_AMOUNT:,}, not {shown(value)}")
    return milli


def signed_tokens_to_milli(value: Any, what: str) -> int:
    """Millitokens of a correction, which may be zero or negative."""
    milli = _thousandths(value, what, "")
    if abs(milli) > MAX_AMOUNT * MILLI:
        raise ValidationError(f"{what} must be between -{MAX_AMOUNT:,} and {MAX_AMOUNT:,}, not {shown(value)}")
    return milli


def seconds_to_ms(value: Any, what: str, *, least_ms: int = 1) -> int:
    """Milliseconds of a duration, from `least_ms` to 366 days."""
    ms = _thousandths(value, what, " seconds")
    if not least_ms <= ms <= MAX_PERIOD_MS:
        longest = f"{MAX_PERIOD_MS // MILLI:,} seconds (366 days)"
        raise ValidationError(f"{what} must be from {least_ms / MILLI:g} to {longest}, not {shown(value)}")
    return ms


def wait_to_ms(value: Any, what: str) -> int:
    """Milliseconds that a caller is willing to wait: zero or more, finer fractions rounded down."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, Fraction)):
        raise ValidationError(f"{what} must be a number of seconds, not {shown(value)}")
    if not (_is_finite(value) and 0 <= value <= MAX_PERIOD_MS // MILLI):
        longest = f"{MAX_PERIOD_MS // MILLI:,} seconds (366 days)"
        raise ValidationError(f"{what} must be from 0 to {longest}, not {shown(value)}")
    return int(value * MILLI)


def from_milli(milli: int) -> int | float:
    """The number a person reads: whole where it is whole."""
    whole, rest = divmod(milli, MILLI)
    return milli / MILLI if rest else whole

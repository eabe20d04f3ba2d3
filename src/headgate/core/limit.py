"""`Limit`: how much, how fast. A value; it knows nothing about who is limited."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from .calendar import MIDNIGHT, PERIODS, UTC, WEEKDAYS, Calendar
from .errors import ValidationError
from .names import check_limit_name
from .units import MILLI, Number, from_milli, seconds_to_ms, tokens_to_milli

_UNITS_MS = {"ms": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_ALIASES = {
    "millisecond": "ms", "s": "second", "sec": "second", "m": "minute", "min": "minute",
    "h": "hour", "hr": "hour", "d": "day", "w": "week",
}  # fmt: skip
_NUMBER = r"\d[\d_]*(?:\.\d+)?"
_SPEC = re.compile(
    rf"\s*(?P<amount>{_NUMBER})\s*(?:/|\s+per\s+)\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)"
    rf"(?:\s+burst\s+(?P<burst>{_NUMBER}))?\s*",
    re.IGNORECASE,
)
_SLOTS_SPEC = re.compile(
    rf"\s*(?P<slots>\d[\d_]*)\s+concurrent(?:\s+ttl\s+(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+))?\s*", re.IGNORECASE
)
_QUOTA_SPEC = re.compile(
    rf"\s*(?P<amount>{_NUMBER})\s*(?:/|\s+per\s+)\s*(?:(?P<per>hour|day|week|month|year)|cron\s+(?P<cron>\S+(?:\s+\S+){{4}}))"
    r"\s+resets(?P<resets>(?:\s+\S+)*)\s*",
    re.IGNORECASE,
)
_FIRST_USE_SPEC = re.compile(
    rf"\s*(?P<amount>{_NUMBER})\s*(?:/|\s+per\s+)\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)\s+from\s+first\s+use\s*",
    re.IGNORECASE,
)
_ALERT_SPEC = re.compile(r"(?P<rest>.*\S)\s+alert(?P<percents>(?:\s+\d+(?:\.\d)?%)+)\s*", re.IGNORECASE)
_FIELDS = ("name", "capacity_milli", "refill_milli", "period_ms", "calendar", "alerts_milli")
_MOST_ALERTS = 8
DEFAULT_TTL_SECONDS = 60
AT_ONCE = -1  # as `refill_milli`: of a quota
OWN = "_"  # the names of headgate's own limits start with it, and no other name may


@dataclass(init=False, slots=True)
class Limit:
    """A token bucket's shape: `capacity` tokens at most, `refill_amount` more every `refill_period_seconds`.

    Numbers are whole or multiples of 0.001. The factories say the same in fewer words:

        Limit.per_minute("rpm", 100)                 # 100 a minute, a burst of 100
        Limit.per_minute("tpm", 10_000, burst=15_000)
        Limit.parse("rpm", "100/minute burst 150")

    `Limit.concurrent("parallel", 10, ttl=60)` is a limit of another kind (see slots.py). It has no refill; a slot is
    free again when its lease ends, or `ttl` seconds after its holder was last heard of.
    """

    name: str
    capacity_milli: int = field(repr=False)
    refill_milli: int = field(repr=False)
    period_ms: int = field(repr=False)
    calendar: Calendar | None = field(repr=False)
    alerts_milli: tuple[int, ...] = field(repr=False)
    _hash: int = field(repr=False, compare=False)

    def __init__(
        self,
        name: str,
        capacity: Number,
        refill_amount: Number,
        refill_period_seconds: Number,
        *,
        alert_at: Iterable[Number] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "name", check_limit_name(name))
        put(self, "capacity_milli", tokens_to_milli(capacity, f"capacity of limit {name!r}"))
        put(self, "refill_milli", tokens_to_milli(refill_amount, f"refill_amount of limit {name!r}"))
        put(self, "period_ms", seconds_to_ms(refill_period_seconds, f"refill_period_seconds of limit {name!r}"))
        put(self, "calendar", None)
        put(self, "alerts_milli", _thresholds(name, alert_at))
        put(
            self, "_hash", hash((name, self.capacity_milli, self.refill_milli, self.period_ms, None, self.alerts_milli))
        )

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Limit cannot be changed ({name}): make another one, and pass or store that")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @property
    def capacity(self) -> int | float:
        return from_milli(self.capacity_milli)

    @property
    def refill_amount(self) -> int | float:
        """Of a quota: all of it."""
        return from_milli(self.capacity_milli if self.is_quota else self.refill_milli)

    @property
    def refill_period_seconds(self) -> int | float:
        """Of a concurrent limit: its ttl. Of a quota: how long its window usually is."""
        return from_milli(self.calendar.usual_ms if self.calendar else self.period_ms)

    @property
    def is_concurrent(self) -> bool:
        return not self.refill_milli

    @property
    def is_quota(self) -> bool:
        return self.refill_milli == AT_ONCE

    @classmethod
    def custom(
        cls,
        name: str,
        capacity: Number,
        refill_amount: Number,
        refill_period_seconds: Number,
        *,
        alert_at: Iterable[Number] = (),
    ) -> Limit:
        return cls(name, capacity, refill_amount, refill_period_seconds, alert_at=alert_at)

    @classmethod
    def per_second(
        cls, name: str, amount: Number, burst: Number | None = None, *, alert_at: Iterable[Number] = ()
    ) -> Limit:
        return cls(name, amount if burst is None else burst, amount, 1, alert_at=alert_at)

    @classmethod
    def per_minute(
        cls, name: str, amount: Number, burst: Number | None = None, *, alert_at: Iterable[Number] = ()
    ) -> Limit:
        return cls(name, amount if burst is None else burst, amount, 60, alert_at=alert_at)

    @classmethod
    def per_hour(
        cls, name: str, amount: Number, burst: Number | None = None, *, alert_at: Iterable[Number] = ()
    ) -> Limit:
        return cls(name, amount if burst is None else burst, amount, 3_600, alert_at=alert_at)

    @classmethod
    def per_day(
        cls, name: str, amount: Number, burst: Number | None = None, *, alert_at: Iterable[Number] = ()
    ) -> Limit:
        return cls(name, amount if burst is None else burst, amount, 86_400, alert_at=alert_at)

    @classmethod
    def concurrent(
        cls, name: str, slots: int, ttl: Number = DEFAULT_TTL_SECONDS, *, alert_at: Iterable[Number] = ()
    ) -> Limit:
        """At most `slots` at once. A slot whose holder does not renew it for `ttl` seconds is lost."""
        capacity_milli = tokens_to_milli(slots, f"slots of limit {check_limit_name(name)!r}")
        if capacity_milli % MILLI:
            raise ValidationError(f"slots of limit {name!r} must be a whole number, not {slots!r}")
        ttl_ms = seconds_to_ms(ttl, f"ttl of limit {name!r}")
        return cls.from_stored(name, capacity_milli, 0, ttl_ms, None, _thresholds(name, alert_at))

    @classmethod
    def quota(
        cls,
        name: str,
        amount: Number,
        per: str | Number | None = None,
        *,
        tz: str = UTC,
        at: str = MIDNIGHT,
        on: str | int | None = None,
        cron: str | None = None,
        from_first_use: bool = False,
        alert_at: Iterable[Number] = (),
    ) -> Limit:
        """`amount` in a window, and all of it again in the next one.

        Limit.quota("usd", 25, "day", tz="Europe/Berlin", at="06:30")
        Limit.quota("calls", 5_000, "week", on="sunday")
        Limit.quota("exports", 9, cron="0 6 * * 1-5", tz="Europe/Berlin")
        Limit.quota("messages", 45, 5 * 3600, from_first_use=True)    # five hours from the first one on
        """
        amount_milli = tokens_to_milli(amount, f"amount of limit {check_limit_name(name)!r}")
        alerts = _thresholds(name, alert_at)
        if from_first_use:
            if (tz, at, on, cron) != (UTC, MIDNIGHT, None, None):
                raise ValidationError(f"limit {name!r}: tz, at, on and cron are for calendars, not for from_first_use")
            period_ms = seconds_to_ms(per, f"the window of limit {name!r}, in seconds,")
            return cls.from_stored(name, amount_milli, AT_ONCE, period_ms, None, alerts)
        if cron is not None:
            if per is not None or at != MIDNIGHT or on is not None:
                raise ValidationError(f"limit {name!r}: a cron expression says all of per, at and on: leave these out")
            return cls.from_stored(name, amount_milli, AT_ONCE, 0, Calendar.matching(cron, tz=tz), alerts)
        if per not in PERIODS and isinstance(per, (int, float, Decimal)):
            raise ValidationError(
                f"limit {name!r}: a window of {per!r} seconds needs from_first_use=True; one of the calendar is per "
                "'hour', 'day', 'week', 'month' or 'year'"
            )
        return cls.from_stored(name, amount_milli, AT_ONCE, 0, Calendar.every(per, tz=tz, at=at, on=on), alerts)

    @classmethod
    def at_most(
        cls,
        name: str,
        amount: Number,
        seconds: Number,
        burst: Number | None = None,
        *,
        alert_at: Iterable[Number] = (),
    ) -> Limit:
        """No more than `amount` in any window of so many seconds, wherever it begins: a bucket whose burst (a quarter,
        if it is not given) and refill are `amount` together."""
        amount_milli = tokens_to_milli(amount, f"amount of limit {check_limit_name(name)!r}")
        burst_milli = (amount_milli + 3) // 4 if burst is None else tokens_to_milli(burst, f"burst of limit {name!r}")
        if burst_milli >= amount_milli:
            raise ValidationError(f"burst of limit {name!r} must be less than the amount of {amount}, not {burst!r}")
        period_ms = seconds_to_ms(seconds, f"the window of limit {name!r}, in seconds,")
        refill_milli = amount_milli - burst_milli
        return cls.from_stored(name, burst_milli, refill_milli, period_ms, None, _thresholds(name, alert_at))

    @classmethod
    def parse(cls, name: str, spec: str) -> Limit:
        """Read `"100/minute"`, `"100/minute burst 150"`, `"5 per 10 seconds"`, `"1_000_000/day"`, `"10 concurrent"`,
        `"10 concurrent ttl 90s"`, `"1000/day resets 06:30 Europe/Berlin"`, `"50/month resets 15 UTC"`,
        `"9/cron 0 6 * * 1-5 resets UTC"`, `"45/5h from first use"`; and any with `" alert 80% 100%"`."""
        text = spec if isinstance(spec, str) else ""
        if alert := _ALERT_SPEC.fullmatch(text):
            percents = [Decimal(word.rstrip("%")) / 100 for word in alert["percents"].split()]
            return cls.parse(name, alert["rest"]).changed(alerts_milli=_thresholds(name, percents))
        if quota := _QUOTA_SPEC.fullmatch(text):
            return cls._quota_from(name, quota)
        slots = _SLOTS_SPEC.fullmatch(text)
        first_use = _FIRST_USE_SPEC.fullmatch(text)
        found = slots or first_use or _SPEC.fullmatch(text)
        unit = _unit(found["unit"] or "minute") if found else None
        if found is None or unit is None:
            raise ValidationError(
                f"limit {name!r} cannot be read from {spec!r}: write it like '100/minute', '5/10s', "
                "'100/minute burst 150' (units: ms, second, minute, hour, day, week), '1000/day resets 06:30 "
                "Europe/Berlin', '45/5h from first use' or '10 concurrent ttl 60s'"
            )
        seconds = Decimal(found["count"] or 1) * _UNITS_MS[unit] / MILLI
        if slots:
            return cls.concurrent(name, int(slots["slots"]), seconds)
        if first_use:
            return cls.quota(name, Decimal(found["amount"]), seconds, from_first_use=True)
        amount, burst = Decimal(found["amount"]), Decimal(found["burst"] or found["amount"])
        return cls(name, burst, amount, seconds)

    @classmethod
    def _quota_from(cls, name: str, found: re.Match[str]) -> Limit:
        """`resets` may name the day, the time and the zone, in this order."""
        amount, words, given = Decimal(found["amount"]), found["resets"].split(), dict[str, Any]()
        if words and "/" not in words[0] and _is_day(words[0]):
            day = words.pop(0).lower()
            given["on"] = int(day) if day.isdigit() else day
        if words and ":" in words[0]:
            given["at"] = words.pop(0)
        if len(words) > 1:
            raise ValidationError(
                f"limit {name!r}: {' '.join(words)!r} cannot be read in {found[0]!r}: after 'resets' comes a day, a "
                "time and a zone, like 'sunday 09:00 UTC'"
            )
        if words:
            given["tz"] = words[0]
        if found["cron"]:
            return cls.quota(name, amount, cron=found["cron"], **given)
        return cls.quota(name, amount, found["per"].lower(), **given)

    @classmethod
    def from_stored(
        cls,
        name: str,
        capacity_milli: int,
        refill_milli: int,
        period_ms: int,
        calendar: Calendar | None = None,
        alerts_milli: tuple[int, ...] = (),
    ) -> Limit:
        """Rebuild a limit from its own numbers, which were checked when it was made."""
        limit = object.__new__(cls)
        put = object.__setattr__
        put(limit, "name", name)
        put(limit, "capacity_milli", capacity_milli)
        put(limit, "refill_milli", refill_milli)
        put(limit, "period_ms", period_ms)
        put(limit, "calendar", calendar)
        put(limit, "alerts_milli", alerts_milli)
        put(limit, "_hash", hash(limit._value))
        return limit

    def changed(self, **fields: Any) -> Limit:
        """The same with other fields, which are checked already."""
        return Limit.from_stored(**dict(zip(_FIELDS, self._value)) | fields)

    @property
    def _value(self) -> tuple[Any, ...]:
        return self.name, self.capacity_milli, self.refill_milli, self.period_ms, self.calendar, self.alerts_milli

    def __reduce__(self) -> tuple[Any, ...]:
        # The hash of a string differs from process to process.
        return Limit.from_stored, self._value

    @property
    def alert_at(self) -> tuple[float, ...]:
        """The shares of the limit at whose use an event is sent: 0.8 when 80 % of it are used."""
        return tuple(milli / MILLI for milli in self.alerts_milli)

    def as_dict(self) -> dict[str, Any]:
        alerts = {"alert_at": list(self.alert_at)} if self.alerts_milli else {}
        return {"name": self.name, **self._numbers(), **alerts}

    def _numbers(self) -> dict[str, Any]:
        if self.is_concurrent:
            return {"slots": self.capacity, "ttl_seconds": self.refill_period_seconds}
        if self.calendar is not None:
            return {"amount": self.capacity, **self.calendar.as_dict()}
        if self.is_quota:
            return {"amount": self.capacity, "seconds_from_first_use": from_milli(self.period_ms)}
        return {
            "capacity": self.capacity,
            "refill_amount": self.refill_amount,
            "refill_period_seconds": self.refill_period_seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limit:
        try:
            limit = cls._from_numbers(data["name"], data)
        except KeyError as missing:
            raise ValidationError(f"limit {dict(data)!r} lacks {missing}") from None
        alert_at = data.get("alert_at")
        return limit.changed(alerts_milli=_thresholds(limit.name, alert_at)) if alert_at else limit

    @classmethod
    def _from_numbers(cls, name: str, data: Mapping[str, Any]) -> Limit:
        if "slots" in data:
            return cls.concurrent(name, data["slots"], data["ttl_seconds"])
        if "amount" not in data:
            return cls(name, data["capacity"], data["refill_amount"], data["refill_period_seconds"])
        if "seconds_from_first_use" in data:
            return cls.quota(name, data["amount"], data["seconds_from_first_use"], from_first_use=True)
        if "cron" in data:
            return cls.quota(name, data["amount"], cron=data["cron"], tz=data["tz"])
        return cls.quota(name, data["amount"], data["per"], tz=data["tz"], at=data["at"], on=data.get("on"))

    def __str__(self) -> str:
        """The spelling that `parse` reads back."""
        if not self.alerts_milli:
            return self.spelled
        return f"{self.spelled} alert {' '.join(f'{_plain(milli * 100)}%' for milli in self.alerts_milli)}"

    @property
    def spelled(self) -> str:
        """How much it allows, without its alerts."""
        if self.calendar is not None:
            per = f"cron {self.calendar.cron}" if self.calendar.cron else self.calendar.per
            return f"{_plain(self.capacity_milli)}/{per} resets {self.calendar.resets}"
        unit = next(unit for unit, unit_ms in reversed(_UNITS_MS.items()) if self.period_ms % unit_ms == 0)
        count = self.period_ms // _UNITS_MS[unit]
        if self.is_concurrent:
            return f"{_plain(self.capacity_milli)} concurrent ttl {count}{unit if unit == 'ms' else unit[0]}"
        if self.is_quota and not self.period_ms:
            return f"{_plain(self.capacity_milli)}/window"  # read from a store, which knows no calendars
        if self.is_quota:
            return f"{_plain(self.capacity_milli)}/{count}{unit if unit == 'ms' else unit[0]} from first use"
        burst = "" if self.capacity_milli == self.refill_milli else f" burst {_plain(self.capacity_milli)}"
        return f"{_plain(self.refill_milli)}/{unit if count == 1 else f'{count}{unit}'}{burst}"

    def __repr__(self) -> str:
        alerts = f", alert_at={self.alert_at}" if self.alerts_milli else ""
        if self.is_concurrent:
            return f"Limit.concurrent({self.name!r}, {self.capacity}, ttl={self.refill_period_seconds}{alerts})"
        if self.is_quota:
            return f"Limit.parse({self.name!r}, {str(self)!r})"
        return f"Limit({self.name!r}, {self.capacity}, {self.refill_amount}, {self.refill_period_seconds}{alerts})"


def _unit(word: str) -> str | None:
    word = word.lower()
    for name in (word, word.removesuffix("s")):
        name = _ALIASES.get(name, name)
        if name in _UNITS_MS:
            return name
    return None


def _thresholds(name: str, alert_at: Any) -> tuple[int, ...]:
    """In thousandths, in order."""
    if isinstance(alert_at, (str, bytes)) or not isinstance(alert_at, Iterable):
        raise ValidationError(f"alert_at of limit {name!r} must be a list of shares, like (0.8, 1.0), not {alert_at!r}")
    found = {tokens_to_milli(share, f"alert_at of limit {name!r}", most=1) for share in alert_at}
    if len(found) > _MOST_ALERTS:
        raise ValidationError(f"alert_at of limit {name!r} has {len(found)} shares; it may have {_MOST_ALERTS}")
    return tuple(sorted(found))


def _is_day(word: str) -> bool:
    return (word[0].isdigit() and ":" not in word) or word.lower() in WEEKDAYS


def _plain(milli: int) -> str:
    return f"{Decimal(milli) / MILLI:f}"


def by_name(limits: Iterable[Limit]) -> dict[str, Limit]:
    """Limits by their names; two of one name are refused."""
    if isinstance(limits, (str, bytes, Limit)) or not isinstance(limits, Iterable):
        raise ValidationError(f"limits must be a list of Limit, not {limits!r}")
    named: dict[str, Limit] = {}
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ValidationError(f"limits must be Limit objects, not {limit!r}")
        if limit.name in named:
            raise ValidationError(f"limit {limit.name!r} is given twice; names in one list must differ")
        named[limit.name] = limit
    return named

"""The result of a load test: counts, latencies, and each limit compared with what was admitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.limit import Limit
from ...core.units import from_milli
from ..output import TextTable, number
from .histogram import percentile
from .load import Load

_PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Sale:
    """One limit: what was admitted under it, and the most that it allows.

    The bound is exact: each entity's bucket is full at the start, and gains `refill` in every period. A quota is full
    in each of its `windows`.
    """

    limit: Limit
    admitted_milli: int
    allowed_milli: int
    oversold_milli: int
    windows: int = 0

    @classmethod
    def of(cls, limit: Limit, amount_milli: int, calls: Sequence[int], began_ms: int, ended_ms: int) -> Sale:
        """`calls`: how many were admitted, for each entity."""
        windows = _windows(limit, began_ms, ended_ms) if limit.is_quota else 0
        if limit.is_quota:
            most = limit.capacity_milli * windows
        else:
            most = limit.capacity_milli + (ended_ms - began_ms) * limit.refill_milli // limit.period_ms
        admitted = [count * amount_milli for count in calls]
        oversold = sum(max(0, taken - most) for taken in admitted)
        return cls(limit, sum(admitted), most * len(calls), oversold, windows)


def _windows(limit: Limit, began_ms: int, ended_ms: int) -> int:
    """How many windows a quota can have had: of its calendar, or each from the first use after the last."""
    if limit.calendar is None:
        return 1 + (ended_ms - began_ms) // limit.period_ms
    count, now_ms = 1, began_ms
    while (now_ms := limit.calendar.window(now_ms).ends_ms) <= ended_ms:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class LoadResult:
    load: Load
    elapsed_ms: int
    by_store_clock: bool
    admitted: int
    refused: int
    unavailable: int
    histogram: Sequence[int]
    slowest_us: int
    sales: Sequence[Sale]

    @property
    def decisions(self) -> int:
        return self.admitted + self.refused

    @property
    def per_second(self) -> int:
        return round(1000 * self.decisions / max(1, self.elapsed_ms))

    @property
    def passed(self) -> bool:
        return not any(sale.oversold_milli for sale in self.sales)

    @property
    def latencies_ms(self) -> dict[str, float]:
        """A percentile is rounded up by a 64th at most, so it is capped by the slowest."""
        found = {f"p{percent}": percentile(self.histogram, percent) for percent in _PERCENTS}
        return {name: min(us, self.slowest_us) / 1000 for name, us in {**found, "max": self.slowest_us}.items()}

    @property
    def _whose(self) -> str:
        return "the store's" if self.by_store_clock else "this machine's"

    def as_dict(self) -> dict[str, Any]:
        return {
            "workers": self.load.workers,
            "tasks": self.load.tasks,
            "entities": self.load.entities,
            "seconds": self.elapsed_ms / 1000,
            "clock": "store" if self.by_store_clock else "machine",
            "decisions": self.decisions,
            "decisions_per_second": self.per_second,
            "admitted": self.admitted,
            "refused": self.refused,
            "unavailable": self.unavailable,
            "latency_ms": self.latencies_ms,
            "limits": [self._sale_dict(sale) for sale in self.sales],
            "oversold": not self.passed,
        }

    def _sale_dict(self, sale: Sale) -> dict[str, Any]:
        return {
            "limit_name": sale.limit.name,
            "limit": str(sale.limit),
            "admitted": from_milli(sale.admitted_milli),
            "allowed": from_milli(sale.allowed_milli),
            "oversold": from_milli(sale.oversold_milli),
            "computed": self._computed(sale),
        }

    def _computed(self, sale: Sale) -> str:
        limit = sale.limit
        one = from_milli(sale.allowed_milli // self.load.entities)
        if limit.is_quota:
            windows = f"{number(sale.windows)} window{'s' * (sale.windows != 1)}"
            return f"{number(limit.capacity)} * {windows} = {number(one)}"
        return (
            f"{number(limit.capacity)} + {number(self.elapsed_ms)} ms * {number(limit.refill_amount)} / "
            f"{number(limit.period_ms)} ms = {number(one)}"
        )

    def told(self) -> Iterator[str | TextTable]:
        seconds = f"{self.elapsed_ms / 1000:.1f} s"
        yield (
            f"{number(self.decisions)} decisions in {seconds}: {number(self.per_second)} a second; "
            f"{number(self.admitted)} admitted, {number(self.refused)} refused"
        )
        if self.unavailable:
            yield f"{number(self.unavailable)} times the store did not answer"
        yield ""
        latencies = self.latencies_ms
        yield TextTable([f">{name}" for name in latencies], [[f"{ms:,.3f} ms" for ms in latencies.values()]])
        yield ""
        yield TextTable(
            ["limit", "allows", ">admitted", ">at most", ">oversold"], [self._row(sale) for sale in self.sales]
        )
        yield ""
        each = f", for each of {number(self.load.entities)} entities" if self.load.entities > 1 else ""
        kinds = {sale.limit.is_quota for sale in self.sales}
        full = {False: "a full bucket, and its refill", True: "a full quota in each window"}
        yield f"at most{each}: {'; '.join(full[kind] for kind in sorted(kinds))}, from before"
        yield f"the first decision to after the last one, by {self._whose} clock"
        for sale in self.sales:
            yield f"  {sale.limit.name}: {self._computed(sale)}"
        yield ""
        yield "Nothing was oversold." if self.passed else "OVERSOLD: more was admitted than the limit allows."

    def _row(self, sale: Sale) -> list[str]:
        counts = (sale.admitted_milli, sale.allowed_milli, sale.oversold_milli)
        return [sale.limit.name, str(sale.limit), *(number(from_milli(milli)) for milli in counts)]

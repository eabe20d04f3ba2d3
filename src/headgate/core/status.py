"""What a limit said about a request, for people and for 429 bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .limit import Limit
from .units import MILLI


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit of one entity, as a request found it.

    `available` counts whole tokens after the request. `retry_after_seconds` is 0.0 where the limit
    allowed it, and None where it never will because the amount is larger than the capacity.
    `resets_at_ms`, which is `resets_after_ms` from now, is when the limit is full again if nothing more is taken. It is
    None if that is not known.
    """

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int | float
    exceeded: bool
    retry_after_ms: int | None
    resets_after_ms: int | None = None
    resets_at_ms: int | None = None

    @property
    def never(self) -> bool:
        return self.retry_after_ms is None

    @property
    def retry_after_seconds(self) -> float | None:
        return None if self.retry_after_ms is None else self.retry_after_ms / MILLI

    def explain(self) -> str:
        asked = (
            f"{self.limit_name} allows {self.limit.spelled}; {self.requested:,} requested, {self.available:,} available"
        )
        if self.never:
            return f"{asked}; this never passes: it is more than the capacity of {self.limit.capacity:,}"
        if self.limit.is_concurrent:
            return f"{asked}; free when a lease ends, or in {self.retry_after_seconds:,.3f} s if its holder has died"
        return f"{asked}; retry after {self.retry_after_seconds:,.3f} s"

    def as_dict(self) -> dict[str, Any]:
        limit = self.limit
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "limit_name": self.limit_name,
            "capacity": limit.capacity,
            "refill_amount": limit.refill_amount,
            "refill_period_seconds": limit.refill_period_seconds,
            "available": self.available,
            "requested": self.requested,
            "exceeded": self.exceeded,
            "retry_after_seconds": self.retry_after_seconds,
        } | ({"resets_at_ms": self.resets_at_ms} if limit.is_quota else {})

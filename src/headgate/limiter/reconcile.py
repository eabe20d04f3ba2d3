"""Putting right what was left behind."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..plan import Plan, Sweep
from .base import BaseLimiter


@dataclass(frozen=True, slots=True)
class Reconciled:
    """How much a `reconcile` has found: buckets that are full again, and records that have expired."""

    buckets: int
    records: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def reconcile_plan(limiter: BaseLimiter) -> Plan[Reconciled]:
    """Clear away what nobody needs any more, in the limiter's namespace. Any number of processes may do it at once."""
    swept = yield from Sweep(limiter.namespace)
    return Reconciled(swept.buckets, swept.records)

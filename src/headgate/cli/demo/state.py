"""The counts of the workers at a moment, compared with the limits; and the result of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.limit import Limit

RPM = Limit.per_minute("rpm", 3_000, burst=100)
TPM = Limit.per_minute("tpm", 600_000, burst=20_000)
# Refuses nothing, and its refill is negligible: what is missing from it is what the store has granted.
CALLS = Limit.custom("calls", 10**9, 0.001, 366 * 24 * 3_600)

COSTS = (100, 200, 300)
"""What a call may cost, in tokens. Calls of each cost are counted separately, so one number gives calls and tokens."""

# The numbers in the slot of a worker
REFUSED, FIRST_MS, LAST_MS, ASKING, ADMITTED = range(5)
WIDTH = ADMITTED + len(COSTS)


@dataclass(frozen=True, slots=True)
class WorkerState:
    number: int
    pid: int
    killed: bool
    admitted: int
    tokens: int
    refused: int
    asking: int
    first_ms: int
    last_ms: int

    @classmethod
    def read(cls, number: int, pid: int, killed: bool, slot: memoryview) -> WorkerState:
        numbers = slot.tolist()
        calls = numbers[ADMITTED:]
        return cls(
            number=number,
            pid=pid,
            killed=killed,
            admitted=sum(calls),
            tokens=sum(count * cost for count, cost in zip(calls, COSTS)),
            refused=numbers[REFUSED],
            asking=numbers[ASKING],
            first_ms=numbers[FIRST_MS],
            last_ms=numbers[LAST_MS],
        )

    @property
    def decisions(self) -> int:
        return self.admitted + self.refused

    def as_dict(self) -> dict[str, Any]:
        return {
            "worker": self.number,
            "pid": self.pid,
            "killed": self.killed,
            "admitted": self.admitted,
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True)
class LimitState:
    """`allowed` is exact: a full bucket at the start, plus the refill since."""

    limit: Limit
    admitted: int
    allowed: int

    @classmethod
    def at(cls, limit: Limit, admitted: int, elapsed_ms: int) -> LimitState:
        gained_milli = elapsed_ms * limit.refill_milli // limit.period_ms
        return cls(limit, admitted, (limit.capacity_milli + gained_milli) // 1000)

    @property
    def oversold(self) -> int:
        return max(0, self.admitted - self.allowed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "limit_name": self.limit.name,
            "limit": str(self.limit),
            "capacity": self.limit.capacity,
            "admitted": self.admitted,
            "allowed": self.allowed,
            "oversold": self.oversold,
        }


@dataclass(frozen=True, slots=True)
class DemoState:
    """All workers, and the limits they share. `elapsed_ms` starts just before the first acquire."""

    elapsed_ms: int
    workers: Sequence[WorkerState]
    limits: Sequence[LimitState]

    @classmethod
    def at(cls, workers: Sequence[WorkerState], now_ms: int, extra_calls: int = 0, extra_tokens: int = 0) -> DemoState:
        first_ms = min((worker.first_ms for worker in workers if worker.first_ms), default=now_ms)
        elapsed_ms = max(0, now_ms - first_ms)
        calls = sum(worker.admitted for worker in workers) + extra_calls
        tokens = sum(worker.tokens for worker in workers) + extra_tokens
        limits = (LimitState.at(RPM, calls, elapsed_ms), LimitState.at(TPM, tokens, elapsed_ms))
        return cls(elapsed_ms, workers, limits)

    @property
    def seconds(self) -> float:
        return self.elapsed_ms / 1000

    @property
    def admitted(self) -> int:
        return self.limits[0].admitted

    @property
    def refused(self) -> int:
        return sum(worker.refused for worker in self.workers)

    @property
    def decisions(self) -> int:
        return self.admitted + self.refused

    @property
    def oversold(self) -> int:
        return sum(limit.oversold for limit in self.limits)


@dataclass(frozen=True, slots=True)
class Kill:
    number: int
    seconds: float

    def __str__(self) -> str:
        return f"worker {self.number} was killed with kill -9 after {self.seconds:.1f} s and replaced"


@dataclass(frozen=True, slots=True)
class DemoResult:
    state: DemoState
    kill: Kill | None
    counted_by_store: int
    counted_by_workers: int
    unheard: int

    @property
    def lost(self) -> int:
        """Calls that only one side has counted."""
        return abs(self.counted_by_store - self.counted_by_workers - self.unheard)

    @property
    def passed(self) -> bool:
        return self.state.oversold == 0 and self.lost == 0

    def as_dict(self) -> dict[str, Any]:
        state = self.state
        return {
            "seconds": state.seconds,
            "decisions": state.decisions,
            "decisions_per_second": round(state.decisions / max(state.seconds, 0.001)),
            "admitted": state.admitted,
            "refused": state.refused,
            "limit": state.limits[0].allowed,
            "oversold": state.oversold,
            "lost": self.lost,
            "counted_by_store": self.counted_by_store,
            "counted_by_workers": self.counted_by_workers,
            "killed": self.kill and self.kill.number,
            "limits": [limit.as_dict() for limit in state.limits],
            "workers": [worker.as_dict() for worker in state.workers],
        }

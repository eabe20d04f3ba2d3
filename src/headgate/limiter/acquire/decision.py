"""The answer to an acquire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ...core.decide import Answer, Parts
from ...core.errors import CorruptState
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...core.schedule import past_edge
from ...core.status import LimitStatus
from ...core.units import MILLI, from_milli
from ..leases.held_slots import RECORDED
from .chain import Chain
from .group import AskOutcome

if TYPE_CHECKING:
    from ..engine import Engine
    from ..leases.lease import BaseLease
    from .options import OnError
    from .slice import Slice

L = TypeVar("L", bound="BaseLease")


class Decision(Generic[L]):
    """Truthy if the request passed. Then `lease` holds what it took; otherwise `lease` is None."""

    __slots__ = ("_answer", "_chain", "_engine", "_lease", "_outcome", "_parts", "_slice", "allowed")

    def __init__(
        self,
        engine: Engine,
        chain: Chain,
        parts: Parts | None,
        answer: Answer | None,
        outcome: AskOutcome | None = None,
        given_by: Slice | None = None,
    ) -> None:
        self.allowed = answer.allowed if answer is not None else outcome is not None and outcome.error is None
        self._engine = engine
        self._chain = chain
        self._parts = parts
        self._answer = answer if self.allowed else looking_ahead(engine, chain, parts, answer)
        self._outcome = outcome
        self._slice = given_by
        self._lease: L | None = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def degraded(self) -> bool:
        """The store was unavailable. Under the policy "allow" it passed and nothing was counted; under "local" it was
        decided in this process."""
        return self._outcome is not None and self._outcome.degraded

    @property
    def local(self) -> bool:
        """It was decided in this process, out of tokens that were taken from the store before (`prefetch`)."""
        return self._slice is not None

    def mark_degraded(self) -> None:
        """It was decided by a limiter that stands in for another one, whose store is unavailable."""
        outcome = self._outcome or AskOutcome(self._chain, self._parts, self._answer)
        self._outcome = replace(outcome, degraded=True)

    @property
    def waited(self) -> bool:
        """Whether it had to wait for its turn."""
        return self._outcome is not None and self._outcome.waited

    @property
    def error(self) -> CorruptState | None:
        """Among the decisions of `try_acquire_each`: the state stored for this one is corrupt, and it did not pass."""
        return None if self._outcome is None else self._outcome.error

    @property
    def lease(self) -> L | None:
        return self._take_lease("rollback")

    def _take_lease(self, on_error: OnError) -> L | None:
        if self._lease is not None:
            self._lease._on_error = on_error
        elif self.allowed:
            hold = None if self._outcome is None else self._outcome.hold
            self._lease = self._engine.make_lease(self._chain, self._parts, on_error, hold, degraded=self.degraded)
            self._lease._slice = self._slice
        return self._lease

    @property
    def leases(self) -> list[L]:
        """One for each ask of `try_acquire_each`; none if it did not pass."""
        return [lease] if (lease := self.lease) is not None else []

    @property
    def statuses_by_ask(self) -> list[list[LimitStatus]]:
        """The same for each ask of `try_acquire_each`."""
        return [self.statuses]

    def _parts_by_ask(self) -> list[Parts]:
        return [self._parts or ()]

    @property
    def holds_slots(self) -> bool:
        """Whether it has leases that have to be ended, so that others get the slots."""
        return self.allowed and self._answer is not None and self._chain.shape.has_slots

    @property
    def retry_after_ms(self) -> int | None:
        """0 if it passed; otherwise the milliseconds until the same request would, None if it never will."""
        if self.allowed:
            return 0
        return None if self._answer is None else self._answer.wait_ms

    @property
    def retry_after_seconds(self) -> float | None:
        return None if self.retry_after_ms is None else self.retry_after_ms / MILLI

    @property
    def statuses(self) -> list[LimitStatus]:
        """Every limit that was checked, the entity's first, then its ancestors'."""
        if self._parts is None or self._answer is None:
            return []
        max_wait_ms = 0 if self._outcome is None else self._outcome.max_wait_ms
        return statuses(self._chain, self._parts, self._answer, self._engine.clock_ms(), max_wait_ms)

    def __repr__(self) -> str:
        if self.allowed:
            return f"Decision(allowed=True{', degraded=True' if self.degraded else ''})"
        if self.error is not None:
            return f"Decision(allowed=False, error={self.error!r})"
        return f"Decision(allowed=False, retry_after_seconds={self.retry_after_seconds})"


class JointDecision(Decision[L]):
    """On several asks that pass or fail together. `lease` is that of the first."""

    __slots__ = ("_leases", "_members")

    def __init__(self, engine: Engine, whole: AskOutcome) -> None:
        super().__init__(engine, whole.chain, whole.parts, whole.answer, whole)
        self._members = whole.members
        self._leases: list[L] = [
            engine.make_lease(member.chain, member.parts, "rollback", member.hold, degraded=member.degraded)
            for member in (self._members if self.allowed else ())
        ]
        self._lease = self._leases[0] if self._leases else None

    @property
    def leases(self) -> list[L]:
        return self._leases

    def _parts_by_ask(self) -> list[Parts]:
        return [member.parts or () for member in self._members]

    @property
    def statuses_by_ask(self) -> list[list[LimitStatus]]:
        of = {(self._chain.keys[part.level], part.limit.name): at for at, part in enumerate(self._parts or ())}
        found = self.statuses
        return [
            [found[of[member.chain.keys[part.level], part.limit.name]] for part in (member.parts or ())]
            for member in self._members
        ]


def looking_ahead(engine: Engine, chain: Chain, parts: Parts | None, answer: Answer | None) -> Answer | None:
    """A refusal whose wait looks past the next edge of a schedule."""
    shape = chain.shape
    if shape.until_ms is None or answer is None or parts is None:
        return answer
    return past_edge(parts, answer, shape.following, engine.clock_ms(), shape.until_ms)


def statuses(chain: Chain, parts: Parts, answer: Answer, now_ms: int, max_wait_ms: int = 0) -> list[LimitStatus]:
    found = []
    for (level, limit, amount_milli, _), (available_milli, wait_ms) in zip(parts, answer.levels):
        _, entity_id, resource = parse_bucket_key(chain.keys[level])
        if limit.name == RECORDED:
            continue
        resets_ms = _resets_after_ms(limit, available_milli, wait_ms, now_ms)
        patience_ms = max_wait_ms if limit.refill_milli > 0 else 0  # tokens of a bucket can be reserved
        exceeded = not answer.allowed and (wait_ms is None or wait_ms > patience_ms)
        found.append(
            LimitStatus(
                entity_id=entity_id,
                resource=resource,
                limit_name=limit.name,
                limit=limit,
                available=available_milli // MILLI,
                requested=from_milli(amount_milli),
                exceeded=exceeded,
                retry_after_ms=wait_ms if exceeded else 0,
                resets_after_ms=resets_ms,
                resets_at_ms=None if resets_ms is None else now_ms + resets_ms,
            )
        )
    return found


def _resets_after_ms(limit: Limit, available_milli: int, wait_ms: int | None, now_ms: int) -> int | None:
    if limit.calendar is not None:
        return limit.calendar.window(now_ms).ends_ms - now_ms
    missing_milli = max(0, limit.capacity_milli - available_milli)
    if limit.refill_milli > 0:
        return -(-missing_milli * limit.period_ms // limit.refill_milli)
    return wait_ms or None if limit.is_quota and missing_milli else None

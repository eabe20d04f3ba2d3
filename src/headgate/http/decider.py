"""Asking the limiter for all rules of a request at once, and for the rest of them if some cannot be obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core.errors import CorruptState, HeadgateError, RateLimiterUnavailable
from ..limiter import Ask, Decision, OnUnavailable, RateLimiter, SyncRateLimiter
from ..limiter.acquire.fallback import share
from ..plan import Plan
from .failures import Failure
from .rules import Rule
from .steps import Decide, DecideEach, Look

NOT_COUNTED = "the shadow is not counted"


class Charge(NamedTuple):
    rule: Rule
    ask: Ask

    def failed(self, error: Exception) -> Failure:
        return Failure(self.rule.id, error, NOT_COUNTED if self.rule.shadow else "", self.ask)


class Decider:
    def __init__(self, limiter: RateLimiter | SyncRateLimiter, on_unavailable: OnUnavailable | None) -> None:
        self._limiter = limiter
        self._on_unavailable = on_unavailable
        self._here: RateLimiter | SyncRateLimiter | None = None

    @property
    def policy(self) -> str:
        """What to do when the store is away, or a rule cannot be obeyed."""
        return self._on_unavailable or self._limiter.outage_policy

    def decide_plan(self, charges: Sequence[Charge], failures: list[Failure]) -> Plan[Decision[Any] | None]:
        """The decision of all rules that can be obeyed; the others are added to the failures."""
        try:
            return (yield from self._ask_plan(charges, failures))
        except RateLimiterUnavailable as away:
            charges = self._after_outage(charges, away, failures)
        except HeadgateError as error:
            charges = yield from self._sound_plan(charges, error, failures)
        try:
            return (yield from self._ask_plan(charges, failures))
        except HeadgateError as error:
            failures += [charge.failed(error) for charge in charges]
            return None

    def _after_outage(
        self, charges: Sequence[Charge], away: RateLimiterUnavailable, failures: list[Failure]
    ) -> list[Charge]:
        """Under "local" it may be for a shadow that there is no decision: no limits of it are known."""
        others = [charge for charge in charges if not charge.rule.shadow] if self.policy == "local" else []
        if len(others) == len(charges):
            others = []
        failures += [charge.failed(away) for charge in charges if charge not in others]
        return others

    def _sound_plan(self, charges: Sequence[Charge], error: Exception, failures: list[Failure]) -> Plan[list[Charge]]:
        """Those with which nothing is wrong. They were asked for together, and nothing was taken if one is wrong."""
        wrong: dict[str, Failure] = {}
        for charge in charges if len(charges) > 1 else ():
            try:
                yield from Look(charge.ask)
            except HeadgateError as found:
                wrong[charge.rule.id] = charge.failed(found)
        if str(error) not in {str(failure.error) for failure in wrong.values()}:
            # It was not for one of them, so perhaps something was taken: to ask again might take it twice.
            wrong = {charge.rule.id: charge.failed(error) for charge in charges}
        failures += wrong.values()
        return [charge for charge in charges if charge.rule.id not in wrong]

    def _ask_plan(self, charges: Sequence[Charge], failures: list[Failure]) -> Plan[Decision[Any] | None]:
        if not charges:
            return None
        if len(charges) == 1 and not charges[0].rule.shadow:
            return (yield from Decide(charges[0].ask, self._on_unavailable))
        shadows = [charge for charge in charges if charge.rule.shadow]
        together = [charge for charge in charges if not charge.rule.shadow]
        groups = [[charge.ask for charge in together]] if together else []
        decisions = yield from DecideEach([*(charge.ask for charge in shadows), *groups], self._on_unavailable)
        self._tell_refusals(shadows, decisions, failures)
        if not together:
            return None
        if decisions[-1].error is None:
            return decisions[-1]
        return (yield from self._ask_plan(_sound(together, decisions[-1].error, failures), failures))

    def _tell_refusals(
        self, shadows: Sequence[Charge], decisions: Sequence[Decision[Any]], failures: list[Failure]
    ) -> None:
        for charge, decision in zip(shadows, decisions):
            if decision.error is not None:
                failures.append(charge.failed(decision.error))
            elif not decision.allowed:
                self._limiter.observers.tell(
                    "shadow.refused",
                    rule=charge.rule.id,
                    entity_id=decision.statuses[0].entity_id,
                    retry_after_ms=decision.retry_after_ms,
                )

    def here_plan(self, failures: Sequence[Failure]) -> Plan[Decision[Any] | None]:
        """The decision of this process alone, on its share of the limits, as under "local". None if some has none."""
        asks = [failure.ask for failure in failures if failure.ask is not None and failure.has_limits]
        if len(asks) < len(failures):
            return None
        if self._here is None:
            self._here = type(self._limiter)("memory://", clock=self._limiter.clock)
        instances = self._limiter.known_instances
        shares = [ask._replace(limits=[share(limit, instances) for limit in ask.limits or ()]) for ask in asks]
        (decision,) = yield from DecideEach([shares], None, self._here)
        decision.mark_degraded()
        return decision


def _sound(charges: Sequence[Charge], error: CorruptState, failures: list[Failure]) -> list[Charge]:
    """Without those whose stored state is corrupt. They were asked for together, and nothing was taken for any."""
    corrupt = [charge for charge in charges if charge.ask.resource == error.resource] or charges
    failures += [charge.failed(error) for charge in corrupt]
    return [charge for charge in charges if charge not in corrupt]

"""Price tiers, which users call plans: the limits of a rule for callers with that tier."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

from ..core.errors import ValidationError
from ..plan import Plan
from .call import HttpCall
from .failures import Minutely
from .flights import Flights, NoAnswer
from .limits import RuleLimits, read_rule_limits
from .rules import Rules
from .steps import AWAY, Await, CallApart, FindOut, ReadMetadata

log = logging.getLogger("headgate")

Provider: TypeAlias = "Mapping[str, str] | Callable[[HttpCall], Any] | Literal['stored']"
ANY_RULE = "*"  # in a tier: every rule that it does not name
_CAPACITY = 100_000
_AGAIN_SECONDS = 1.0  # while one call looks the tier up, the others use the previous one


class Tiers:
    """`plans`: for each plan, limits by rule id (`"*"` for the rules it does not name), or limits for all rules.

    `of` gives the plan of a caller: a mapping by caller, a function of the call (`call.caller` is the caller), which
    may be a coroutine function, or `"stored"`: the `metadata["plan"]` of the caller's entity. Answers are cached for
    `ttl` seconds. A caller without a plan has the `default` plan. If there is none, or it does not name the rule, the
    rule's own limits apply.

    A request waits for an answer for at most `timeout` seconds, and `of` is called once at a time for each caller.
    After a timeout the previous plan of the caller is used, or none. An ordinary function is called in a separate
    thread, so that a request can stop waiting for it; with `timeout=None` it is called in the request's thread.
    """

    def __init__(
        self,
        plans: Mapping[str, Any],
        of: Provider,
        *,
        default: str | None = None,
        ttl: float = 60.0,
        timeout: float | None = 1.0,
    ) -> None:
        self._limits = {name: _by_rule(name, limits) for name, limits in plans.items()}
        if not (callable(of) or isinstance(of, Mapping) or of == "stored"):
            raise ValidationError(f"of must be a mapping, a function of the call or 'stored', not {of!r}")
        if default is not None and default not in self._limits:
            raise ValidationError(f"unknown default plan {default!r}: plans has {', '.join(self._limits) or 'none'}")
        _check_times(ttl, timeout)
        self._of = of
        self.waits = inspect.iscoroutinefunction(of)
        self._default = default
        self._ttl = ttl
        self._known: dict[str, tuple[float, str | None]] = {}
        self._told: set[Any] = set()
        self._flights = Flights(timeout)
        self._minutely = Minutely()
        self._generation = 0

    def check(self, rules: Rules) -> None:
        """Raise ValidationError if the limits of a plan do not fit the cost of a rule."""
        for name, by_rule in self._limits.items():
            for rule in rules:
                limits = by_rule.get(rule.id, by_rule.get(ANY_RULE))
                if limits is not None:
                    try:
                        rule.check_limits(limits)
                    except ValidationError as error:
                        raise ValidationError(f"plan {name!r}: {error}") from None

    def limits_plan(self, call: HttpCall, rule_id: str) -> Plan[RuleLimits | None]:
        """The limits of the caller's tier for a rule; None if it has none."""
        name = yield from self._tier_plan(call)
        limits = self._limits.get(name) if name is not None else None
        if limits is None:
            if name is not None and name not in self._told and len(self._told) < _CAPACITY:
                self._told.add(name)
                log.warning("a caller has the unknown plan %.80r: the default applies", name)
            limits = self._limits.get(self._default) if self._default is not None else None
        return limits.get(rule_id, limits.get(ANY_RULE)) if limits else None

    def forget(self, caller: str | None = None) -> None:
        """Look up the plan of a caller, or of all callers, again: it has changed."""
        self._generation += 1  # an answer in progress may be older than the change
        if caller is None:
            self._known.clear()
        else:
            self._known.pop(caller, None)

    def _tier_plan(self, call: HttpCall) -> Plan[str | None]:
        caller = call.caller or ""
        if isinstance(self._of, Mapping):
            return self._of.get(caller)
        now = time.monotonic()
        until, name = self._known.get(caller, (0.0, None))
        if now < until:
            return name
        self._keep(caller, now + _AGAIN_SECONDS, name) if until else None
        try:
            ask = partial(self._find_plan, call, caller, self._generation)
            found: str | None = yield from FindOut(self._flights, (self._generation, caller), ask, callable(self._of))
        except GeneratorExit:
            raise
        except Exception as error:
            self._complain(error)
            self._keep(caller, time.monotonic() + _AGAIN_SECONDS, name)
            return name
        return found

    def _complain(self, error: Exception) -> None:
        """Log the error, once a minute for all callers."""
        times = self._minutely.times(type(error).__name__)
        if times:
            unexpected = not isinstance(error, (*AWAY, NoAnswer))
            log.warning("plans could not be looked up (%d times): %s", times, error, exc_info=unexpected)

    def _find_plan(self, call: HttpCall, caller: str, generation: int) -> Plan[str | None]:
        """Ask for the tier of a caller. The answer is cached, however late it is."""
        if self._of == "stored":
            found = (yield from ReadMetadata(caller)).get("plan")
        else:
            assert callable(self._of)
            found = self._of(call) if self._flights.timeout is None else (yield from CallApart(self._of, call))
            if inspect.isawaitable(found):
                found = yield from Await(found)
        name = None if found is None else str(found)
        if generation == self._generation:
            self._keep(caller, time.monotonic() + self._ttl, name)
        return name

    def _keep(self, caller: str, until: float, name: str | None) -> None:
        """Cache a tier, unless a newer one is known."""
        if self._known.get(caller, (0.0, None))[0] >= until:
            return
        if len(self._known) >= _CAPACITY:
            self._known.clear()
        self._known[caller] = (until, name)


Plans = Tiers  # the public name: users know tiers as plans


def _check_times(ttl: Any, timeout: Any) -> None:
    if not _is_number(ttl) or not ttl >= 0:
        raise ValidationError(f"ttl must be a number of seconds, not {ttl!r}")
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < float("inf")):
        raise ValidationError(f"timeout must be a number of seconds above zero, or None, not {timeout!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _by_rule(name: str, limits: Any) -> dict[str, RuleLimits]:
    if not isinstance(limits, Mapping):
        return {ANY_RULE: read_rule_limits(limits)}
    try:
        return {rule_id: read_rule_limits(spec) for rule_id, spec in limits.items()}
    except ValidationError as error:
        raise ValidationError(f"plan {name!r}: {error}") from None

"""The engine of all adapters: from a call to a verdict, with one call to the store."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..core.errors import HeadgateError, RateLimitExceeded, ValidationError
from ..core.limit import Limit
from ..core.schedule import Schedule
from ..limiter import Ask, Decision, OnUnavailable, RateLimiter, SyncRateLimiter
from ..plan import Plan, arun, run
from .answer import DEFAULT_HEADERS, HeaderKind, Headers, HttpRefusal, problem, too_many, unavailable
from .call import HttpCall, literal
from .costs import cost_plan
from .decider import NOT_COUNTED, Charge, Decider
from .failures import BadCost, Failure, Reports
from .fields import REJECT
from .identity import Identity
from .limits import RuleLimits
from .pattern import Pattern, PatternTree, split
from .rule_set import STORED, RuleSet, RulesSpec, StoredRuleSet, read_rule_set
from .rules import Match, Rule, Rules
from .steps import AsyncSteps, Await, End, ReadLimits, SyncSteps
from .tiers import Plans, Provider

Exempt: TypeAlias = "Callable[[HttpCall], Any]"
OnRefused: TypeAlias = "Callable[[HttpCall, HttpRefusal], HttpRefusal]"
L = TypeVar("L", RateLimiter, SyncRateLimiter)


class Passed(NamedTuple):
    """Headers to add to the application's response, and leases to end after it."""

    headers: Sequence[tuple[str, str]] = ()
    leases: Sequence[Any] = ()
    decision: Decision[Any] | None = None

    def and_also(self, other: Passed) -> Passed:
        leases = [*self.leases, *other.leases]
        return Passed(self.headers or other.headers, leases, self.decision or other.decision)


Verdict: TypeAlias = "Passed | HttpRefusal"
PASS = Passed()


class RuleEngine(Generic[L]):
    """Rules, plans and identities over a limiter.

    `rules`: a list, the path of a file, or `"stored"`: the rules that `headgate apply` has stored.
    `plans`: `Plans`, or, if the file or the store has the plans, only what says which caller has which.
    `exempt_paths`: patterns of paths without limits; they are compared with paths exactly as sent.
    `exempt`: a function of the call; if it returns true, the call is not limited.
    `headers`: which headers are sent.
    `on_refused`: a function of the call and the refusal; it returns the response to send instead.
    `on_unavailable`: what to do when the store is unavailable or a rule cannot be applied. Default: the stored policy,
    then the limiter's.
    """

    def __init__(
        self,
        limiter: L,
        rules: RulesSpec = (),
        *,
        plans: Plans | Provider | None = None,
        identity: Identity | None = None,
        exempt_paths: Iterable[str] = (),
        exempt: Exempt | None = None,
        headers: Iterable[HeaderKind] = DEFAULT_HEADERS,
        on_refused: OnRefused | None = None,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        self.limiter: L = limiter
        self._stored = StoredRuleSet(limiter, plans) if rules == STORED else None
        self._rule_set = self._stored.rule_set if self._stored is not None else read_rule_set(rules, plans)
        self._identity = identity or Identity()
        self._exempt_paths = _tree(exempt_paths)
        self._exempt = exempt
        self._plain = exempt is None and not self._identity.waits
        self._headers = Headers(headers)
        self._on_refused = on_refused
        self.on_unavailable = on_unavailable
        self._reports = Reports(limiter)
        self._decider = Decider(limiter, on_unavailable)

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._rule_set.rules

    def coroutine_functions(self) -> list[str]:
        """The settings that are coroutine functions."""
        given = {"identity": self._identity.waits, "exempt": inspect.iscoroutinefunction(self._exempt)}
        given["plans"] = self._rule_set.tiers is not None and self._rule_set.tiers.waits
        given |= {f"cost of rule {rule.id!r}": inspect.iscoroutinefunction(rule.cost) for rule in self.rules}
        return [what for what, waits in given.items() if waits]

    def simple(self, call: HttpCall) -> Charge | None:
        """The fast path for the most common call: one rule applies, and no plan or stored rule must be read."""
        rule_set = self._rule_set
        if rule_set.tiers is not None or not self._plain or (self._stored is not None and self._stored.is_due):
            return None
        matches = rules_for(rule_set, call)
        if len(matches) != 1:
            return None
        rule = matches[0].rule
        if rule.limits is None or rule.shadow or callable(rule.cost) or self._is_exempt_path(call):
            return None
        call.params = matches[0].params
        limits = self._now(rule.limits)
        consume = rule_set.consumed(rule, limits, rule.cost)
        return Charge(rule, Ask(self._identity.of(rule.per, call), rule.id, consume, limits))

    def _now(self, limits: RuleLimits) -> tuple[Limit, ...]:
        return limits.now(self.limiter.clock.now_ms()) if isinstance(limits, Schedule) else limits

    def check_plan(self, call: HttpCall, matches: Sequence[Match] | None = None) -> Plan[Verdict]:
        """`matches`: the rules to apply instead of those that match the path."""
        if self._stored is not None and self._stored.is_due:
            unknown = yield from self._read_rules_plan(self._stored)
            if unknown is not None:
                return self._without_rules(call, unknown)
        rule_set = self._rule_set
        if matches is None:
            matches = rules_for(rule_set, call)
            if not matches or self._is_exempt_path(call):
                return PASS
        yield from self._identity.know_plan(call)
        if self._exempt is not None and (yield from self._is_exempt_plan(call)):
            return PASS
        failures: list[Failure] = []
        charges = yield from self._charges_plan(call, matches, rule_set, failures)
        decision = yield from self._decider.decide_plan(charges, failures)
        return (yield from self.verdict_plan(call, decision, failures))

    def _read_rules_plan(self, stored: StoredRuleSet) -> Plan[Exception | None]:
        """The error, if rules were never read."""
        try:
            yield from stored.read_plan()
        except HeadgateError as error:
            return error
        if stored.trouble is not None:
            self._reports.tell(Failure(STORED, stored.trouble, "the previous rules apply"), self._decider.policy)
        self._rule_set = stored.rule_set
        return None

    def _without_rules(self, call: HttpCall, error: Exception) -> Verdict:
        """The verdict if stored rules were never read."""
        failure = Failure(STORED, error)
        policy = self._policy_of([failure])
        blocks = policy == "block"
        self._reports.tell(failure if blocks else failure._replace(instead="requests pass"), policy)
        return self._replaced(call, unavailable()) if blocks else PASS

    def _is_exempt_path(self, call: HttpCall) -> bool:
        exempt = self._exempt_paths
        return exempt is not None and call.sent_path == call.path and bool(exempt.find(split(call.path)))

    def _is_exempt_plan(self, call: HttpCall) -> Plan[bool]:
        assert self._exempt is not None
        self._identity.caller(call)
        answer = self._exempt(call)
        return bool((yield from Await(answer)) if inspect.isawaitable(answer) else answer)

    def _charges_plan(
        self, call: HttpCall, matches: Sequence[Match], rule_set: RuleSet, failures: list[Failure]
    ) -> Plan[list[Charge]]:
        charges: list[Charge] = []
        for match in matches:
            try:
                charges.append((yield from self._charge_plan(call, match, rule_set, failures)))
            except HeadgateError as error:
                failures.append(Failure(match.rule.id, error, NOT_COUNTED if match.rule.shadow else ""))
        return charges

    def _charge_plan(self, call: HttpCall, match: Match, rule_set: RuleSet, failures: list[Failure]) -> Plan[Charge]:
        """What a rule asks for. If `bad_cost` is charged instead of its cost, the failures say so."""
        rule = match.rule
        call.params = match.params
        entity_id = self._identity.of(rule.per, call)
        given = rule.limits
        if rule_set.tiers is not None:
            self._identity.caller(call)
            given = (yield from rule_set.tiers.limits_plan(call, rule.id)) or given
        limits = None if given is None else self._now(given)
        try:
            cost = yield from cost_plan(call, rule.cost)
            ask = yield from self._ask_plan(rule, rule_set, Ask(entity_id, rule.id, None, limits), cost)
        except BadCost as error:
            if rule.bad_cost == REJECT:
                raise
            failures.append(Failure(rule.id, error, "bad_cost is charged"))
            ask = yield from self._ask_plan(rule, rule_set, Ask(entity_id, rule.id, None, limits), rule.bad_cost)
        return Charge(rule, ask)

    def _ask_plan(self, rule: Rule, rule_set: RuleSet, ask: Ask, cost: Any) -> Plan[Ask]:
        limits: Any = ask.limits
        if limits is None:
            if cost == 1 or isinstance(cost, Mapping):  # the limiter reads the limits, and checks their names
                return ask._replace(consume=None if cost == 1 else dict(cost))
            limits = tuple((yield from ReadLimits(ask.entity_id, ask.resource)))
            if not limits:
                return ask  # the limiter raises LimitNotFound
        return ask._replace(consume=rule_set.consumed(rule, limits, cost))

    def verdict_plan(
        self, call: HttpCall, decision: Decision[Any] | None, failures: Sequence[Failure] = ()
    ) -> Plan[Verdict]:
        """The verdict of a decision and of the rules that could not be applied: nothing passes by accident."""
        verdict = PASS if decision is None else self.verdict(call, decision)
        if not failures:
            return verdict
        for failure in failures:
            self._reports.tell(failure, self._policy_of([failure]))
        if isinstance(verdict, HttpRefusal):
            return verdict
        other = yield from self._instead_plan(call, [failure for failure in failures if not failure.instead])
        if isinstance(other, HttpRefusal):
            yield from End(verdict.leases)
            return other
        return verdict.and_also(other)

    def _instead_plan(self, call: HttpCall, failures: Sequence[Failure]) -> Plan[Verdict]:
        """The verdict in place of rules that could not be applied."""
        for failure in failures:
            if failure.is_bad_cost:
                return self._replaced(call, bad_cost(failure))
        policy = self._policy_of(failures)
        if not failures or policy == "allow":
            return PASS
        decision = None if policy == "block" else (yield from self._decider.here_plan(failures))
        return self._replaced(call, unavailable()) if decision is None else self.verdict(call, decision)

    def _policy_of(self, failures: Sequence[Failure]) -> str:
        refused = any(failure.is_store_refused for failure in failures)
        return "block" if refused else self._decider.policy

    def verdict(self, call: HttpCall, decision: Decision[Any]) -> Verdict:
        """Headers and leases if the decision allows the call, otherwise the refusal."""
        statuses, clock = decision.statuses, self.limiter.clock
        if decision.allowed:
            leases = decision.leases if decision.holds_slots else ()
            return Passed(self._headers.of(statuses, clock), leases, decision)
        refused = RateLimitExceeded(statuses)
        return self._replaced(call, too_many(refused, self._headers.of_refusal(refused, clock)))

    def _replaced(self, call: HttpCall, refusal: HttpRefusal) -> HttpRefusal:
        return refusal if self._on_refused is None else self._on_refused(call, refusal)


def _tree(paths: Iterable[str]) -> PatternTree[None] | None:
    tree: PatternTree[None] | None = None
    for path in paths:
        tree = tree or PatternTree()
        tree.add(Pattern(path), None)
    return tree


def rules_for(rule_set: RuleSet, call: HttpCall) -> Sequence[Match]:
    """The rules for a path, however the server interprets it: with and without the parts that it may ignore."""
    found = rule_set.rules.match(call.method, call.path)
    segments = None if call.path is call.sent_path else literal(call.sent_path)
    if segments is None:
        return found
    known = {match.rule.id for match in found}
    more = rule_set.rules.match_segments(call.method, segments)
    return (*found, *(match for match in more if match.rule.id not in known))


def bad_path(error: Exception) -> HttpRefusal:
    return problem(400, "", "Bad Request", str(error), [])


def bad_cost(failure: Failure) -> HttpRefusal:
    detail = f"rule {failure.rule_id!r} cannot count this request: {failure.error}"
    return problem(400, "", "Bad Request", detail, [], rule=failure.rule_id)


class SyncGate:
    """The engine, run by threads. `apart`: whether functions that may hang are called in separate threads."""

    end = staticmethod(SyncSteps.end)

    def __init__(self, engine: RuleEngine[SyncRateLimiter], *, apart: bool = True) -> None:
        self.engine = engine
        self._steps = SyncSteps(engine.limiter, apart=apart)
        for what in engine.coroutine_functions():
            raise ValidationError(
                f"{what} is a coroutine function: pass an ordinary one here, where threads are served"
            )

    def check(self, call: HttpCall, matches: Sequence[Match] | None = None) -> Verdict:
        engine = self.engine
        charge = engine.simple(call) if matches is None else None
        if charge is None:
            return run(engine.check_plan(call, matches), self._steps.perform)
        try:
            decision = self._steps.decide(charge.ask, engine.on_unavailable)
        except HeadgateError as error:
            return run(engine.verdict_plan(call, None, [charge.failed(error)]), self._steps.perform)
        return engine.verdict(call, decision)


class AsyncGate:
    """The engine, run by asyncio tasks."""

    end = staticmethod(AsyncSteps.end)

    def __init__(self, engine: RuleEngine[RateLimiter]) -> None:
        self.engine = engine
        self._steps = AsyncSteps(engine.limiter)

    async def check(self, call: HttpCall, matches: Sequence[Match] | None = None) -> Verdict:
        engine = self.engine
        charge = engine.simple(call) if matches is None else None
        if charge is None:
            return await arun(engine.check_plan(call, matches), self._steps.perform)
        try:
            decision = await self._steps.decide(charge.ask, engine.on_unavailable)
        except HeadgateError as error:
            return await arun(engine.verdict_plan(call, None, [charge.failed(error)]), self._steps.perform)
        return engine.verdict(call, decision)

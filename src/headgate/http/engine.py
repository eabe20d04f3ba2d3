"""The engine of all adapters: from a call to a verdict, in one call to the store."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..core.errors import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from ..limiter import Ask, Decision, OnUnavailable, RateLimiter, SyncRateLimiter
from ..plan import Plan, arun, run
from .answer import DEFAULT_HEADERS, HeaderKind, Headers, Refusal, problem, too_many, unavailable
from .book import STORED, Book, RulesSpec, StoredBook, read_book
from .call import Call
from .identity import Identity
from .pattern import Pattern, PatternTree, split
from .plans import Plans, Provider
from .rules import Match, Rule, Rules
from .steps import AWAY, AsyncSteps, Await, Decide, DecideEach, ReadLimits, SyncSteps

log = logging.getLogger("headgate")

Exempt: TypeAlias = "Callable[[Call], Any]"
OnRefused: TypeAlias = "Callable[[Call, Refusal], Refusal]"
L = TypeVar("L", RateLimiter, SyncRateLimiter)

_NOT_TOLD_AGAIN = 1024
_FAILURES = (*AWAY, ValidationError)


class Passed(NamedTuple):
    """Headers for the application's answer, and leases to end after it."""

    headers: Sequence[tuple[str, str]] = ()
    leases: Sequence[Any] = ()
    decision: Decision[Any] | None = None


Verdict: TypeAlias = "Passed | Refusal"
PASS = Passed()


class _Charge(NamedTuple):
    rule: Rule
    ask: Ask


class Engine(Generic[L]):
    """Rules, plans and identities over a limiter.

    `rules`: a list, the path of a file, or `"stored"`: those that `headgate apply` has put into the store.
    `plans`: `Plans`, or if they are in the file or in the store, just who has which.
    `exempt_paths`: patterns; they hold for paths exactly as sent.
    `exempt`: a function of the call; whom it says yes to is not limited. `headers`: which are sent.
    `on_refused`: a function of the call and the refusal, which gives the answer that is sent instead.
    `on_unavailable`: what to do when the store is away, if not what is stored or the limiter says.
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
        self._stored = StoredBook(limiter, plans) if rules == STORED else None
        self._book = self._stored.book if self._stored is not None else read_book(rules, plans)
        self._identity = identity or Identity()
        self._exempt_paths = _tree(exempt_paths)
        self._exempt = exempt
        self._plain = exempt is None and not self._identity.waits
        self._headers = Headers(headers)
        self._on_refused = on_refused
        self.on_unavailable = on_unavailable
        self._told: set[str] = set()

    @property
    def rules(self) -> Rules:
        return self._book.rules

    def coroutine_functions(self) -> list[str]:
        """What was given that has to be awaited."""
        given = {"identity": self._identity.waits, "exempt": inspect.iscoroutinefunction(self._exempt)}
        given["plans"] = self._book.plans is not None and self._book.plans.waits
        given |= {f"cost of rule {rule.id!r}": inspect.iscoroutinefunction(rule.cost) for rule in self.rules}
        return [what for what, waits in given.items() if waits]

    def simple(self, call: Call) -> Ask | None:
        """The short cut past the plan, for the call that most calls are: under one rule, and nobody has to be asked."""
        book = self._book
        if book.plans is not None or not self._plain or (self._stored is not None and self._stored.is_due):
            return None
        matches = book.rules.match(call.method, call.path)
        if len(matches) != 1:
            return None
        rule = matches[0].rule
        if rule.limits is None or rule.shadow or callable(rule.cost) or self._is_exempt_path(call):
            return None
        call.params = matches[0].params
        return Ask(self._identity.of(rule.per, call), rule.id, book.consumed(rule, rule.limits, rule.cost), rule.limits)

    def check_plan(self, call: Call, matches: Sequence[Match] | None = None) -> Plan[Verdict]:
        """`matches`: the rules to obey, if not those that the path leads to."""
        if self._stored is not None and self._stored.is_due:
            try:
                yield from self._stored.read_plan()
            except _FAILURES as error:
                return self._without_rules(call, error)
            self._book = self._stored.book
        book = self._book
        if matches is None:
            matches = book.rules.match(call.method, call.path)
            if not matches or self._is_exempt_path(call):
                return PASS
        yield from self._identity.know_plan(call)
        if self._exempt is not None and (yield from self._is_exempt_plan(call)):
            return PASS
        charges: list[_Charge] = []
        shadows: list[_Charge] = []
        try:
            for match in matches:
                charge = yield from self._charge_plan(call, match, book)
                if charge is not None:
                    (shadows if match.rule.shadow else charges).append(charge)
        except AWAY as error:
            return self.failed(call, error)
        try:
            decision = yield from self._decide_plan(charges, shadows)
        except _FAILURES as error:
            return self.failed(call, error, *(charge.rule.id for charge in (*charges, *shadows)))
        return PASS if decision is None else self.verdict(call, decision)

    def failed(self, call: Call, error: Exception, *rule_ids: str) -> Verdict:
        policy = self.limiter._policy(None, self.on_unavailable)
        if isinstance(error, RateLimiterUnavailable):
            # A decision knows the policy itself; what is read for it does not.
            return PASS if policy == "allow" else self._replaced(call, unavailable())
        # The application has to go on, and its operators to hear of it.
        if isinstance(error, ValidationError):
            self._tell_once(", ".join(rule_ids), "rule %s cannot be obeyed, and lets everything pass: %s", error)
            return PASS
        self._tell_once(type(error).__name__, "%s: no rule can be obeyed: %s", error)
        return self._replaced(call, unavailable()) if policy == "block" else PASS

    def _without_rules(self, call: Call, error: Exception) -> Verdict:
        """There are stored ones, and they were never read."""
        blocks = self.limiter._policy(None, self.on_unavailable) == "block"
        return PASS if isinstance(error, RateLimiterUnavailable) and not blocks else self.failed(call, error, STORED)

    def _is_exempt_path(self, call: Call) -> bool:
        exempt = self._exempt_paths
        return exempt is not None and call.sent_path == call.path and bool(exempt.find(split(call.path)))

    def _is_exempt_plan(self, call: Call) -> Plan[bool]:
        assert self._exempt is not None
        self._identity.caller(call)
        answer = self._exempt(call)
        return bool((yield from Await(answer)) if inspect.isawaitable(answer) else answer)

    def _charge_plan(self, call: Call, match: Match, book: Book) -> Plan[_Charge | None]:
        rule = match.rule
        call.params = match.params
        entity_id = self._identity.of(rule.per, call)
        limits = rule.limits
        if book.plans is not None:
            self._identity.caller(call)
            limits = (yield from book.plans.limits_plan(call, rule.id)) or limits
        cost = rule.cost
        if callable(cost):
            cost = cost(call)
            if inspect.isawaitable(cost):
                cost = yield from Await(cost)
        if limits is not None or isinstance(cost, Mapping):
            consume = book.consumed(rule, limits or (), cost)
        elif cost == 1:
            return _Charge(rule, Ask(entity_id, rule.id))
        else:
            consume = dict.fromkeys((yield from ReadLimits(entity_id, rule.id)), cost) if cost else {}
        return _Charge(rule, Ask(entity_id, rule.id, consume, limits)) if consume else None

    def _decide_plan(self, charges: Sequence[_Charge], shadows: Sequence[_Charge]) -> Plan[Decision[Any] | None]:
        if len(charges) == 1 and not shadows:
            return (yield from Decide(charges[0].ask, self.on_unavailable))
        asks: list[Ask | list[Ask]] = [charge.ask for charge in shadows]
        if charges:
            asks.append([charge.ask for charge in charges])
        if not asks:
            return None
        decisions = yield from DecideEach(asks, self.on_unavailable)
        for charge, decision in zip(shadows, decisions):
            if not decision.allowed:
                self.limiter.events.tell(
                    "shadow.refused",
                    rule=charge.rule.id,
                    entity_id=decision.statuses[0].entity_id,
                    retry_after_ms=decision.retry_after_ms,
                )
        return decisions[-1] if charges else None

    def verdict(self, call: Call, decision: Decision[Any]) -> Verdict:
        statuses, clock = decision.statuses, self.limiter.clock
        if decision.allowed:
            leases = decision.leases if decision.holds_slots else ()
            return Passed(self._headers.of(statuses, clock), leases, decision)
        refused = RateLimitExceeded(statuses)
        return self._replaced(call, too_many(refused, self._headers.of_refusal(refused, clock)))

    def _replaced(self, call: Call, refusal: Refusal) -> Refusal:
        return refusal if self._on_refused is None else self._on_refused(call, refusal)

    def _tell_once(self, what: str, message: str, error: Exception) -> None:
        if what not in self._told and len(self._told) < _NOT_TOLD_AGAIN:
            self._told.add(what)
            log.error(message, what, error)


def _tree(paths: Iterable[str]) -> PatternTree[None] | None:
    tree: PatternTree[None] | None = None
    for path in paths:
        tree = tree or PatternTree()
        tree.add(Pattern(path), None)
    return tree


def bad_path(error: Exception) -> Refusal:
    return problem(400, "", "Bad Request", str(error), [])


class SyncGate:
    """The engine, run by threads."""

    def __init__(self, engine: Engine[SyncRateLimiter]) -> None:
        self.engine = engine
        self._steps = SyncSteps(engine.limiter)
        for what in engine.coroutine_functions():
            raise ValidationError(f"{what} is a coroutine function, which nobody awaits where threads are served")

    def check(self, call: Call, matches: Sequence[Match] | None = None) -> Verdict:
        engine = self.engine
        ask = engine.simple(call) if matches is None else None
        if ask is None:
            return run(engine.check_plan(call, matches), self._steps.perform)
        try:
            decision = self._steps.decide(ask, engine.on_unavailable)
        except _FAILURES as error:
            return engine.failed(call, error, ask.resource)
        return engine.verdict(call, decision)

    @staticmethod
    def end(leases: Iterable[Any]) -> None:
        for lease in leases:
            lease.__exit__(None, None, None)


class AsyncGate:
    """The engine, run by tasks."""

    def __init__(self, engine: Engine[RateLimiter]) -> None:
        self.engine = engine
        self._steps = AsyncSteps(engine.limiter)

    async def check(self, call: Call, matches: Sequence[Match] | None = None) -> Verdict:
        engine = self.engine
        ask = engine.simple(call) if matches is None else None
        if ask is None:
            return await arun(engine.check_plan(call, matches), self._steps.perform)
        try:
            decision = await self._steps.decide(ask, engine.on_unavailable)
        except _FAILURES as error:
            return engine.failed(call, error, ask.resource)
        return engine.verdict(call, decision)

    @staticmethod
    async def end(leases: Iterable[Any]) -> None:
        for lease in leases:
            await lease.__aexit__(None, None, None)

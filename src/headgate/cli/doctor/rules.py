"""Whether every rule can be obeyed, as a middleware would find out with the first requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice

from ...core.errors import NamespaceNotFound, ValidationError
from ...http.rule_set import stored_rules_plan
from ...http.rules import Rule, Rules
from ...http.rules_file import load_rules
from ...limiter import SyncRateLimiter
from ...limiter.bind import blocking
from ...stores.health import Finding, Verdict
from ..output import all_pages, number
from .checks import own_limits_page

_LOOKED_AT = 200  # entities of a rule
_SHOWN = 3
_OTHER_SECTIONS = ("namespace", "system", "resources", "entities", "descriptors")
_ANYONE = "doctor:anyone"  # has no limits of its own

_stored_book = blocking(stored_rules_plan)


def rules_findings(limiter: SyncRateLimiter, file: str | None) -> Iterator[Finding]:
    """Of a file, or of the stored rules."""
    stored = StoredConfig(limiter)
    try:
        rules = load_rules(file, _OTHER_SECTIONS).rules if file else stored.rules()
    except ValidationError as error:
        advice = "correct the file" if file else "correct the rules, and apply them again: headgate apply -f FILE"
        yield Finding("rules", "fail", str(error), advice)
        return
    wrong = list(chain.from_iterable(_rule_findings(stored, rule) for rule in rules))
    yield from wrong
    if len(rules) and not wrong:
        where = f"in {file}" if file else "stored"
        yield Finding("rules", "ok", f"{number(len(rules))} {where}, all can be obeyed")


class StoredConfig:
    """The rules and limits of a namespace. An unused namespace is not read, because that would register it."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        self._limiter: SyncRateLimiter | None = limiter
        try:
            limiter.get_namespace(limiter.namespace)
        except NamespaceNotFound:
            self._limiter = None

    def rules(self) -> Rules:
        return _stored_book(self._limiter).rules if self._limiter else Rules([])

    def names(self, entity_id: str, resource: str) -> set[str]:
        found = self._limiter.resolve_limits(entity_id, resource)[0] if self._limiter else []
        return {limit.name for limit in found}

    def entities(self, resource: str) -> Iterator[str]:
        """Entities with limits of their own."""
        if self._limiter is not None:
            pages = (all_pages(partial(own_limits_page, self._limiter, place)) for place in (resource, None))
            yield from dict.fromkeys(islice(chain.from_iterable(pages), _LOOKED_AT))


def _rule_findings(stored: StoredConfig, rule: Rule) -> Iterator[Finding]:
    """Of a rule that uses stored limits."""
    if rule.limits is not None:
        return
    verdict: Verdict = "warn" if rule.shadow else "fail"
    what = "not counted" if rule.shadow else "answered by the outage policy"
    if not stored.names(_ANYONE, rule.id):
        found = f"no limits are stored for rule {rule.id}: requests of entities without their own limits are {what}"
        yield Finding("rules", verdict, found, f"store limits: headgate resource set {rule.id} rpm=100/minute")
    for missing, whose in _lacking(stored, rule).items():
        found = f"rule {rule.id} costs {', '.join(missing)}, but {_shown(whose)} no such limit"
        yield Finding(
            "rules", verdict, found, f"store that limit too, or change the cost: until then requests are {what}"
        )


def _shown(whose: Sequence[str]) -> str:
    more = len(whose) - _SHOWN
    names = ", ".join(whose[:_SHOWN]) + (f" and {number(more)} more" if more > 0 else "")
    return f"{names} {'have' if len(whose) > 1 else 'has'}"


def _lacking(stored: StoredConfig, rule: Rule) -> dict[tuple[str, ...], list[str]]:
    """The entities that have limits, but not those that the rule's cost names; by the missing names."""
    costs = [cost for cost in (rule.cost, rule.bad_cost) if isinstance(cost, Mapping)]
    needed = list(dict.fromkeys(chain.from_iterable(costs)))
    lacking: dict[tuple[str, ...], list[str]] = {}
    for entity_id in (_ANYONE, *stored.entities(rule.id)) if needed else ():
        names = stored.names(entity_id, rule.id)
        missing = tuple(name for name in needed if name not in names)
        if names and missing:
            lacking.setdefault(missing, []).append("everyone" if entity_id == _ANYONE else entity_id)
    return lacking

"""The rules and tiers of an engine: given once, or stored, and read again when they may have changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.records import Record
from ..limiter import keys
from ..limiter.base import BaseLimiter
from ..plan import GetRecords, Plan
from .costs import amounts
from .failures import BadRules
from .rules import Rule, Rules
from .rules_file import load_rules
from .steps import AWAY, ReadRecords
from .tiers import Plans, Provider, Tiers

log = logging.getLogger("headgate")

RulesSpec: TypeAlias = "Rules | Iterable[Rule] | str | Path"
STORED: Literal["stored"] = "stored"
_AGAIN_SECONDS = 1.0  # while one call reads them, the others use the previous ones


class RuleSet:
    """Rules, and the tiers that go with them."""

    def __init__(self, rules: Rules, tiers: Tiers | None = None) -> None:
        self.rules = rules
        self.tiers = tiers
        self._amounts: dict[tuple[str, tuple[Limit, ...]], Mapping[str, Any]] = {}

    def consumed(self, rule: Rule, limits: tuple[Limit, ...], cost: Any) -> Mapping[str, Any]:
        """The amounts that a request takes under these limits. They are cached for a fixed cost."""
        if cost is not rule.cost:
            return amounts(rule.id, cost, limits)
        found = self._amounts.get((rule.id, limits))
        if found is None:
            found = self._amounts[rule.id, limits] = amounts(rule.id, cost, limits)
        return found


def read_rule_set(rules: RulesSpec, plans: Plans | Provider | None) -> RuleSet:
    """Rules and tiers as they were given. If a file has the tiers, `plans` only says which caller has which."""
    found: Mapping[str, Any] = {}
    if isinstance(rules, (str, Path)):
        file = load_rules(rules)
        rules, found = file.rules, file.plans
        if found and plans is None:
            raise ValidationError(f"the file has plans ({', '.join(found)}): pass plans= to say which caller has which")
        if found and isinstance(plans, Tiers):
            raise ValidationError("the file has plans, and so has plans=: pass only what says which caller has which")
    rules = rules if isinstance(rules, Rules) else Rules(rules)
    tiers = Tiers(found, plans) if plans is not None and not isinstance(plans, Tiers) else plans
    if tiers is not None:
        tiers.check(rules)
    return RuleSet(rules, tiers)


class StoredRuleSet:
    """The rules and tiers of a limiter's namespace, as `headgate apply` stores them.

    They are read before their first use, after the limiter's `config_cache_ttl`, and when its cache was emptied. If
    they cannot be read or understood, the previous ones stay in force.
    """

    def __init__(self, limiter: BaseLimiter, plans: Plans | Provider | None) -> None:
        if isinstance(plans, Tiers):
            raise ValidationError("plans are stored with the rules: pass only what says which caller has which")
        self._limiter = limiter
        self._of: Provider = STORED if plans is None else plans
        self._ttl = limiter.get_cache_stats().ttl_seconds
        self._keys = _keys(limiter)
        self._until = 0.0
        self._generation = -1
        self._records: list[Record | None] = []
        self.trouble: Exception | None = None  # why the previous ones are in force
        self.rule_set = RuleSet(Rules([]), Tiers({}, self._of))  # until they are read

    @property
    def is_due(self) -> bool:
        return self._generation != self._limiter.engine.cache.generation or time.monotonic() >= self._until

    def read_plan(self) -> Plan[None]:
        generation, known = self._limiter.engine.cache.generation, bool(self._records)
        if known:
            self._know(generation, _AGAIN_SECONDS)
        try:
            records = yield from ReadRecords(self._keys)
            self._take(records)
        except (*AWAY, ValidationError) as error:
            if not known:
                raise
            self.trouble = error
        else:
            self.trouble = None
            self._know(generation, self._ttl)

    def _know(self, generation: int, seconds: float) -> None:
        self._generation, self._until = generation, time.monotonic() + seconds

    def _take(self, records: list[Record | None]) -> None:
        if records == self._records:  # with what they say: one that was deleted and made anew has its first version
            return
        found = _rule_set_of(records, self._of)
        if not len(found.rules):
            log.warning("no rules are stored in %r: everything passes", self._limiter.namespace)
        self.rule_set, self._records = found, records


def stored_rules_plan(limiter: BaseLimiter) -> Plan[RuleSet]:
    """The rules and tiers of a limiter's namespace, read now. BadRules if they cannot be used."""
    return _rule_set_of((yield from GetRecords(_keys(limiter))), STORED)


def _keys(limiter: BaseLimiter) -> tuple[str, str]:
    return keys.rules_key(limiter.namespace), keys.plans_key(limiter.namespace)


def _rule_set_of(records: Iterable[Record | None], of: Provider) -> RuleSet:
    rules, plans = (record.value if record else {} for record in records)
    try:
        found = RuleSet(
            Rules([Rule(**fields) for fields in rules.get("rules", [])]), Tiers(plans["plans"], of) if plans else None
        )
        if found.tiers is not None:
            found.tiers.check(found.rules)
    except (TypeError, KeyError, AttributeError) as error:
        raise BadRules(f"the stored rules were written by another version of headgate: {error}") from None
    except ValidationError as error:
        raise BadRules(f"the stored rules cannot be used: {error}") from None
    return found

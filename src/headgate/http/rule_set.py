"""The rules and plans that an engine goes by: given once, or kept in the store and read again now and then."""

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
from .files import load_rules
from .plans import Plans, Provider
from .rules import Rule, Rules
from .steps import AWAY, ReadRecords

log = logging.getLogger("headgate")

RulesSpec: TypeAlias = "Rules | Iterable[Rule] | str | Path"
STORED: Literal["stored"] = "stored"
_AGAIN_SECONDS = 1.0  # while one reads them anew, the others go on with those that are known


class RuleSet:
    """Rules, and the plans that go with them."""

    def __init__(self, rules: Rules, plans: Plans | None = None) -> None:
        self.rules = rules
        self.plans = plans
        self._amounts: dict[tuple[str, tuple[Limit, ...]], Mapping[str, Any]] = {}

    def consumed(self, rule: Rule, limits: tuple[Limit, ...], cost: Any) -> Mapping[str, Any]:
        """What a request takes under these limits. It is worked out once for a cost that is always the same."""
        if cost is not rule.cost:
            return amounts(rule.id, cost, limits)
        found = self._amounts.get((rule.id, limits))
        if found is None:
            found = self._amounts[rule.id, limits] = amounts(rule.id, cost, limits)
        return found


def read_book(rules: RulesSpec, plans: Plans | Provider | None) -> RuleSet:
    """A file has plans too, and all that is missing is whose is whose."""
    found: Mapping[str, Any] = {}
    if isinstance(rules, (str, Path)):
        file = load_rules(rules)
        rules, found = file.rules, file.plans
        if found and plans is None:
            raise ValidationError(f"the file has plans ({', '.join(found)}): plans= has to say who has which")
        if found and isinstance(plans, Plans):
            raise ValidationError("there are plans in the file and in plans=: give only what says who has which")
    rules = rules if isinstance(rules, Rules) else Rules(rules)
    if plans is not None and not isinstance(plans, Plans):
        plans = Plans(found, plans)
    if plans is not None:
        plans.check(rules)
    return RuleSet(rules, plans)


class StoredBook:
    """The rules and plans of a limiter's namespace, as `headgate apply` has put them there.

    They are read before they are first used, again after the limiter's `config_cache_ttl`, and when its cache was
    emptied. While they cannot be read, or not be understood, those hold that were known before.
    """

    def __init__(self, limiter: BaseLimiter, plans: Plans | Provider | None) -> None:
        if isinstance(plans, Plans):
            raise ValidationError("plans are stored with the rules: give only what says who has which")
        self._limiter = limiter
        self._of: Provider = STORED if plans is None else plans
        self._ttl = limiter.get_cache_stats().ttl_seconds
        self._keys = _keys(limiter)
        self._until = 0.0
        self._generation = -1
        self._records: list[Record | None] = []
        self.trouble: Exception | None = None  # why those known before hold
        self.book = RuleSet(Rules([]), Plans({}, self._of))  # until they are read

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
        book = _book_of(records, self._of)
        if not len(book.rules):
            log.warning("no rules are stored in %r: everything passes", self._limiter.namespace)
        self.book, self._records = book, records


def stored_book_plan(limiter: BaseLimiter) -> Plan[RuleSet]:
    """The rules and plans of a limiter's namespace, read now. BadRules if they cannot be used."""
    return _book_of((yield from GetRecords(_keys(limiter))), STORED)


def _keys(limiter: BaseLimiter) -> tuple[str, str]:
    return keys.rules_key(limiter.namespace), keys.plans_key(limiter.namespace)


def _book_of(records: Iterable[Record | None], of: Provider) -> RuleSet:
    rules, plans = (record.value if record else {} for record in records)
    try:
        book = RuleSet(
            Rules([Rule(**fields) for fields in rules.get("rules", [])]), Plans(plans["plans"], of) if plans else None
        )
        if book.plans is not None:
            book.plans.check(book.rules)
    except (TypeError, KeyError, AttributeError) as error:
        raise BadRules(f"the stored rules are of another version of headgate: {error}") from None
    except ValidationError as error:
        raise BadRules(f"the stored rules cannot be used: {error}") from None
    return book

"""Rules: which limits apply to which requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core.errors import ValidationError
from .fields import (
    REJECT,
    BadCostChoice,
    Cost,
    Per,
    check_affordable,
    check_bad_cost,
    check_cost,
    check_flag,
    check_id,
    check_per,
    check_priority,
    read_method,
)
from .limits import RuleLimits, read_rule_limits, variants
from .pattern import Pattern, PatternTree, split

# How many matches are cached, and up to which length of path: invented paths cannot fill the memory.
_RECENT = 1024
_LONGEST = 256
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, init=False, slots=True)
class Rule:
    """Which requests are limited, and how.

    `id` names the rule, and is the resource of its buckets.
    `path` is a pattern: `*` and `{name}` are one segment, `**` is any number of them. `method` is one, several
    (`"GET|POST"` or a list), or None for all; GET means HEAD too.
    `limits` is what `read_limits` reads, like `"10/minute burst 20"`, or a `Schedule`. None: the limits stored for the
    caller.
    `cost` is an amount for every limit, amounts by limit name, or a function of the call. `bad_cost` applies if that
    function raises or returns what cannot be charged: "reject" answers 400, an amount is charged instead.
    `shadow`: count and report, but never refuse. `also`: count in addition to the rule that decides.
    `per`: whose bucket is used. By default each caller has its own; it can be the organisation's, or everyone's.
    """

    id: str
    path: str
    method: tuple[str, ...] | None
    limits: RuleLimits | None
    priority: int
    cost: Cost
    shadow: bool
    per: Per
    also: bool
    bad_cost: BadCostChoice
    pattern: Pattern = field(repr=False, compare=False)

    def __init__(
        self,
        id: str,
        path: str = "/**",
        *,
        method: str | Sequence[str] | None = None,
        limits: Any = None,
        priority: int = 0,
        cost: Cost = 1,
        shadow: bool = False,
        per: Per = "caller",
        also: bool = False,
        bad_cost: BadCostChoice = REJECT,
    ) -> None:
        put = object.__setattr__
        put(self, "id", check_id(id))
        put(self, "path", path)
        put(self, "pattern", Pattern(path))
        put(self, "method", read_method(method))
        put(self, "limits", None if limits is None else read_rule_limits(limits))
        put(self, "priority", check_priority(priority))
        put(self, "cost", check_cost(cost))
        put(self, "shadow", check_flag("shadow", shadow))
        put(self, "per", check_per(per))
        put(self, "also", check_flag("also", also))
        put(self, "bad_cost", check_bad_cost(bad_cost))
        if self.limits:
            self.check_limits(self.limits)

    def check_limits(self, limits: RuleLimits) -> None:
        """Raise ValidationError if its cost never fits these limits. In some hours it need not: nothing passes then."""
        for cost in (self.cost, self.bad_cost):
            problems = []
            for some in (every := variants(limits)):
                try:
                    check_affordable(self.id, cost, some)
                except ValidationError as error:
                    problems.append(error)
            if len(problems) == len(every):
                raise problems[0]

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def decides(self) -> bool:
        """Whether the search for a rule ends here: it is neither `also` nor `shadow`."""
        return not (self.also or self.shadow)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place in the order: the rule with the smallest rank is tried first."""
        return -self.priority, self.pattern.specificity, self.method is None


class Match(NamedTuple):
    """A rule that counts a request, and the parameters of its path."""

    rule: Rule
    params: Mapping[str, str]


class Rules:
    """Rules, compiled once.

    They are tried in this order: the highest `priority` first; then the most specific path, compared segment by segment
    (a literal before `*` and `{name}`, these before the end of the path, the end before `**`); then rules that name a
    method; then in the order given. Iteration has the same order.

    The first rule that matches and is neither `also` nor `shadow` decides. Every matching `also` rule counts the
    request too, and so does every matching `shadow` rule before the one that decides.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        given = tuple(rules)
        for _, clash in clashes(given):
            raise ValidationError(clash)
        self._rules = [(rule, _answered(rule.method)) for rule in sorted(given, key=lambda rule: rule.rank)]
        self._by_id = {rule.id: rule for rule, _ in self._rules}
        self._tree: PatternTree[int] = PatternTree()  # of places in the list
        for place, (rule, _) in enumerate(self._rules):
            self._tree.add(rule.pattern, place)
        self._recent: dict[tuple[str, str], tuple[Match, ...]] = {}

    def match(self, method: str, path: str) -> tuple[Match, ...]:
        """The rules that count a request: `also` and `shadow` rules in their order, then the one that decides, if any.

        `path` is decoded and clean: no `//`, no dot segments. A slash at its end has no meaning.
        """
        matches = self._recent.get((method, path))
        if matches is None:
            matches = self._find(method.upper(), split(path))
            if len(path) + len(method) <= _LONGEST:
                if len(self._recent) >= _RECENT:
                    self._recent.clear()
                self._recent[method, path] = matches
        return matches

    def match_segments(self, method: str, segments: Sequence[str]) -> tuple[Match, ...]:
        """The same for segments, of which some may be empty."""
        return self._find(method.upper(), segments)

    def _find(self, method: str, segments: Sequence[str]) -> tuple[Match, ...]:
        matches: list[Match] = []
        decides: list[Match] = []
        for place, params in sorted(self._tree.find(segments)):
            rule, methods = self._rules[place]
            if (methods is None or method in methods) and (rule.also or not decides):
                match = Match(rule, MappingProxyType(params) if params else _NOTHING)
                (decides if rule.decides else matches).append(match)
        return (*matches, *decides)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __getitem__(self, id: str) -> Rule:
        return self._by_id[id]


def _answered(methods: tuple[str, ...] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    return frozenset((*methods, "HEAD")) if "GET" in methods else frozenset(methods)


def clashes(rules: Sequence[Rule]) -> Iterator[tuple[int, str]]:
    """The rules that clash with an earlier one, by their position in the list, and the reason."""
    ids: dict[str, int] = {}
    deciding: dict[Any, Rule] = {}
    for at, rule in enumerate(rules):
        if not isinstance(rule, Rule):
            raise ValidationError(f"rules must be Rule objects, not {rule!r}")
        if ids.setdefault(rule.id, at) != at:
            yield at, f"rule {rule.id!r} is repeated: each rule needs its own id"
        elif rule.decides:
            same = rule.priority, _answered(rule.method), rule.pattern.segments
            other = deciding.setdefault(same, rule)
            if other is not rule:
                why = f"{other.id!r} matches the same requests at the same priority"
                yield at, f"rule {rule.id!r} would never decide: {why}; join them, or change a priority, or use `also`"

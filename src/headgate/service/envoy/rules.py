"""Rules for descriptors, from code or from the section `descriptors:` of a rules file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.names import check_entity_id
from ...core.units import Number, tokens_to_milli
from ...files import Node
from ...http.fields import check_affordable, check_flag, check_priority
from ...http.limits import read_limits
from .names import entity_of

ANY = "*"
SECTION = "descriptors"
Entries: TypeAlias = "Sequence[tuple[str, bytes]]"


@dataclass(frozen=True, init=False, slots=True)
class DescriptorRule:
    """Which descriptors are limited, and how.

    `id` names the rule, and is the resource of its buckets.
    `match` has all entries of a descriptor, in order: a value, or `*` for any value, each with its own bucket. It is a
    mapping, or a list of mappings if a key is repeated.
    `limits` is what `read_limits` reads, like `"10/minute burst 20"`. Each hit takes `cost` from each limit.
    `shadow`: count and report, but never refuse.
    `debt`: hits report what was used already; they are counted, and never refused. Requests without hits are refused
    while the limit is exceeded.
    `secret`: keys whose values are never stored in plain text, in the whole domain.
    """

    id: str
    domain: str
    match: tuple[tuple[str, str], ...]
    limits: tuple[Limit, ...]
    cost: Number
    shadow: bool
    debt: bool
    priority: int
    secret: frozenset[str]
    cost_milli: int = field(repr=False)
    fixed: tuple[int, ...] = field(repr=False)
    free: tuple[int, ...] = field(repr=False)

    def __init__(
        self,
        id: str,
        domain: str,
        match: Any,
        limits: Any,
        *,
        cost: Number = 1,
        shadow: bool = False,
        debt: bool = False,
        priority: int = 0,
        secret: Iterable[str] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "id", check_id(id))
        put(self, "domain", check_domain(domain))
        put(self, "match", read_match(match))
        put(self, "limits", read_tokens(limits))
        put(self, "cost", cost)
        put(self, "cost_milli", tokens_to_milli(cost, "cost"))
        put(self, "shadow", check_flag("shadow", shadow))
        put(self, "debt", check_flag("debt", debt))
        put(self, "priority", check_priority(priority))
        put(self, "secret", read_keys(secret))
        put(self, "fixed", tuple(at for at, (_, value) in enumerate(self.match) if value != ANY))
        put(self, "free", tuple(at for at, (_, value) in enumerate(self.match) if value == ANY))
        for key in self.secret.difference(self.keys):
            raise ValidationError(f"secret names {key!r}, which is not a key of match: use {', '.join(self.keys)}")
        check_affordable(id, cost, self.limits)  # type: ignore[arg-type]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.match)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The rule with the smallest is tried first."""
        return -self.priority, len(self.free), self.fixed


class _Group(NamedTuple):
    """Rules with the same rank and keys, by their fixed values."""

    rank: tuple[Any, ...]
    fixed: tuple[int, ...]
    rules: dict[tuple[bytes, ...], list[DescriptorRule]]


class DescriptorRules:
    """Rules for descriptors, compiled once.

    Among the rules with the keys of a descriptor, the highest `priority` is tried first, then the one with the most
    fixed values, then the one whose fixed values come first, then in the order given. The first that matches and is not
    a `shadow` decides; matching shadows before it count too.
    """

    def __init__(self, rules: Iterable[DescriptorRule] = ()) -> None:
        self.rules = tuple(rules)
        for _, clash in clashes(self.rules):
            raise ValidationError(clash)
        self._groups: dict[tuple[str, tuple[str, ...]], list[_Group]] = {}
        self._secret: dict[str, set[str]] = {}
        for rule in sorted(self.rules, key=lambda rule: rule.rank):
            self._secret.setdefault(rule.domain, set()).update(rule.secret)
            groups = self._groups.setdefault((rule.domain, rule.keys), [])
            if not groups or groups[-1].rank != rule.rank:
                groups.append(_Group(rule.rank, rule.fixed, {}))
            groups[-1].rules.setdefault(_fixed_values(rule), []).append(rule)

    def find(self, domain: str, entries: Entries) -> list[DescriptorRule]:
        """The shadows, then the rule that decides, if there is one."""
        found: list[DescriptorRule] = []
        for _, fixed, rules in self._groups.get((domain, tuple(key for key, _ in entries)), ()):
            for rule in rules.get(tuple(entries[at][1] for at in fixed), ()):
                found.append(rule)
                if not rule.shadow:
                    return found
        return found

    def entity(self, domain: str, entries: Entries) -> str:
        return entity_of(entries, self._secret.get(domain, ()))

    def __len__(self) -> int:
        return len(self.rules)


def clashes(rules: Sequence[DescriptorRule]) -> Iterator[tuple[int, str]]:
    """The rules that clash with an earlier one, by their position in the list, and the reason."""
    ids: set[str] = set()
    deciding: dict[Any, DescriptorRule] = {}
    for at, rule in enumerate(rules):
        if not isinstance(rule, DescriptorRule):
            raise ValidationError(f"descriptors must be DescriptorRule objects, not {rule!r}")
        other = rule if rule.shadow else deciding.setdefault((rule.domain, rule.match, rule.priority), rule)
        if rule.id in ids:
            yield at, f"descriptor {rule.id!r} is repeated: each needs its own id"
        elif other is not rule:
            why = f"{other.id!r} matches the same at the same priority"
            yield at, f"descriptor {rule.id!r} would never decide: {why}; join them, or change a priority"
        ids.add(rule.id)


def _fixed_values(rule: DescriptorRule) -> tuple[bytes, ...]:
    return tuple(rule.match[at][1].encode() for at in rule.fixed)


def check_id(value: Any) -> str:
    return check_entity_id(value, "id")


def check_domain(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValidationError(f"domain must be a string, the domain of Envoy's filter, not {value!r}")
    return value


def read_match(match: Any) -> tuple[tuple[str, str], ...]:
    parts = [match] if isinstance(match, Mapping) else match
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Mapping) for part in parts):
        raise ValidationError(f"match must be like {{'remote_address': '*'}}, or a list of mappings, not {match!r}")
    pairs = tuple(pair for part in parts for pair in part.items())
    if not pairs:
        raise ValidationError("match must name a key, like {'remote_address': '*'}: a descriptor has at least one")
    for pair in pairs:
        _check_pair(*pair)
    return pairs


def _check_pair(key: Any, value: Any) -> None:
    if not (isinstance(key, str) and key and isinstance(value, str)):
        raise ValidationError(f"match must have strings, not {key!r}: {value!r}: write it in quotes")


def read_tokens(limits: Any) -> tuple[Limit, ...]:
    """What `read_limits` reads, without slots."""
    found = read_limits(limits)
    for limit in found:
        if limit.is_concurrent:
            raise ValidationError(f"limit '{limit}' counts slots, and Envoy never releases one: use a limit on tokens")
    return found


def read_keys(keys: Any) -> frozenset[str]:
    if isinstance(keys, (str, Mapping)) or not isinstance(keys, Iterable):
        raise ValidationError(f"secret must be a list of keys, like ['api_key'], not {keys!r}")
    return frozenset(map(str, keys))


_REQUIRED = ("id", "domain", "match", "limits")
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "id": check_id,
    "domain": check_domain,
    "match": read_match,
    "limits": read_tokens,
    "cost": lambda cost: tokens_to_milli(cost, "cost"),
    "shadow": partial(check_flag, "shadow"),
    "debt": partial(check_flag, "debt"),
    "priority": check_priority,
    "secret": read_keys,
}


def read_descriptors(section: Node | None) -> DescriptorRules:
    """Read the section that `load_rules(path, sections=["descriptors"])` returned, or raise DocumentError."""
    if section is None:
        return DescriptorRules()
    read = [(node, _rule(node)) for node in section.items()]
    rules = [(node, rule) for node, rule in read if rule is not None]
    for at, why in clashes([rule for _, rule in rules]):
        rules[at][0].wrong(why)
    section.document.check()
    return DescriptorRules(rule for _, rule in rules)


def _rule(node: Node) -> DescriptorRule | None:
    fields = node.fields(_FIELDS, _REQUIRED)
    good = [field.read(_FIELDS[key]) is not None for key, field in fields.items()]
    if not all(good) or not fields.keys() >= set(_REQUIRED):
        return None
    # What can still be wrong is their combination.
    return node.attempt(DescriptorRule, **{key: field.plain() for key, field in fields.items()})

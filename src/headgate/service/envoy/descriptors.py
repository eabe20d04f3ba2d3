"""The descriptors of a request from Envoy, and what each takes from which bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.units import MAX_TOKENS, MILLI, from_milli
from ...limiter import Ask
from .names import resource_of
from .ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest
from .rules import DescriptorRule, DescriptorRules, Entries

MAX_DESCRIPTORS = 64
MAX_ENTRIES = 32
MAX_NAME_BYTES = 1024
# More than Envoy allows in all headers of a request: a client must not be able to cause an error, which Envoy may let
# pass.
MAX_VALUE_BYTES = 64 * 1024

_DAY_MS = 86_400_000
UNITS_MS = {
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": _DAY_MS,
    "WEEK": 7 * _DAY_MS,
    "MONTH": 30 * _DAY_MS,
    "YEAR": 365 * _DAY_MS,
}
UNITS = {"SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "WEEK": 7, "MONTH": 5, "YEAR": 6}
_NAMES = {number: name for name, number in UNITS.items()}
_NEVER_MILLI = (MAX_TOKENS + 1) * MILLI  # more than any bucket holds


Kind = Literal["look", "enforced", "shadow", "used"]


class MatchedDescriptor(NamedTuple):
    """What a descriptor takes under one rule. Without hits, it only checks whether one would pass."""

    entity_id: str
    resource: str
    limits: tuple[Limit, ...]
    cost_milli: int
    hits: int
    shadow: bool = False
    debt: bool = False

    @property
    def kind(self) -> Kind:
        if not self.hits:
            return "look"
        if self.debt:
            return "used"
        return "shadow" if self.shadow else "enforced"

    @property
    def never_refuses(self) -> bool:
        return self.shadow or self.kind == "used"

    @property
    def amounts(self) -> dict[str, int | float]:
        amount = from_milli(min(self.hits * self.cost_milli, _NEVER_MILLI))
        return {limit.name: amount for limit in self.limits}

    @property
    def ask(self) -> Ask:
        return Ask(self.entity_id, self.resource, self.amounts, self.limits)


def match_descriptors(request: RateLimitRequest, rules: DescriptorRules) -> list[list[MatchedDescriptor]]:
    """For each descriptor the shadows, then the rule that decides. A descriptor without matches is not limited."""
    _check(request.domain, "domain")
    if not 0 < len(request.descriptors) <= MAX_DESCRIPTORS:
        raise ValidationError(f"a request must have 1 to {MAX_DESCRIPTORS} descriptors, not {len(request.descriptors)}")
    return [list(_matches(request, at, descriptor, rules)) for at, descriptor in enumerate(request.descriptors)]


def _matches(
    request: RateLimitRequest, at: int, descriptor: RateLimitDescriptor, rules: DescriptorRules
) -> Iterator[MatchedDescriptor]:
    entries = _entries(descriptor, f"descriptors[{at}]")
    own = _own_limit(descriptor, f"descriptors[{at}].limit")
    # Zero in the descriptor is a look. Zero in the request means that it was not set.
    hits = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else request.hits_addend or 1
    found = rules.find(request.domain, entries)
    for rule in found:
        yield _under_rule(rule, own, hits, request.domain, entries, rules)
    if own is not None and not found:
        entity_id = rules.entity(request.domain, entries)
        resource = resource_of(request.domain, (key for key, _ in entries))
        yield MatchedDescriptor(entity_id, resource, (own,), MILLI, hits)


def _under_rule(
    rule: DescriptorRule, own: Limit | None, hits: int, domain: str, entries: Entries, rules: DescriptorRules
) -> MatchedDescriptor:
    entity_id = rules.entity(domain, [entries[at] for at in rule.free])
    limits, cost_milli = rule.limits, rule.cost_milli
    if own is not None:
        limits, cost_milli = (own,), max(cost_milli, MILLI) if own.capacity_milli < MILLI else cost_milli
    return MatchedDescriptor(entity_id, rule.id, limits, cost_milli, hits, rule.shadow, rule.debt)


def _entries(descriptor: RateLimitDescriptor, what: str) -> Entries:
    entries = [(entry.key, entry.value) for entry in descriptor.entries]
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise ValidationError(f"{what} must have 1 to {MAX_ENTRIES} entries, not {len(entries)}")
    for at, (key, value) in enumerate(entries):
        _check(key, f"{what}.entries[{at}].key")
        if len(value) > MAX_VALUE_BYTES:
            raise ValidationError(
                f"{what}.entries[{at}].value has {len(value)} bytes, and the maximum is {MAX_VALUE_BYTES}"
            )
    return entries


def _own_limit(descriptor: RateLimitDescriptor, what: str) -> Limit | None:
    """The limit in a descriptor. It is named after its numbers, so that limits with other numbers count separately."""
    if not descriptor.HasField("limit"):
        return None
    amount, unit = descriptor.limit.requests_per_unit, _NAMES.get(descriptor.limit.unit)
    if unit is None:
        raise ValidationError(f"{what}.unit must be {', '.join(UNITS)}, not {descriptor.limit.unit}")
    # Zero means that nothing may pass: one thousandth is less than a hit.
    milli = amount * MILLI or 1
    return Limit.from_stored(f"own-{amount}-{unit.lower()}", milli, milli, UNITS_MS[unit])


def _check(name: str, what: str) -> None:
    if not name:
        raise ValidationError(f"{what} must not be empty")
    if 4 * len(name) <= MAX_NAME_BYTES:  # whatever its characters are
        return
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValidationError(f"{what} has {len(name.encode())} bytes, and the maximum is {MAX_NAME_BYTES}")

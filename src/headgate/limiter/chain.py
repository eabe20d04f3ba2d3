"""Whom an acquire charges, under which limits: the entity, and above it every ancestor it cascades to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.decide import TAKE, Charge, Request
from ..core.errors import ValidationError
from ..core.limit import Limit, by_name
from ..core.names import parse_bucket_key
from ..core.units import MAX_AMOUNT, tokens_to_milli

_KEPT = 64
# A request is made for every acquire of every new caller; this makes named tuples in half the time.
_new = tuple.__new__
_TAKE_DEFAULTS = Request(TAKE, ())[2:]


class Shape:
    """The limits along a chain, the entity's first, whoever they belong to. A million entities may share one.

    What callers ask of a shape again and again is worked out once and kept.
    """

    __slots__ = ("_parts", "_variants", "levels", "on_unavailable", "revisions", "source")

    def __init__(
        self,
        levels: Sequence[Mapping[str, Limit]],
        revisions: Sequence[int],
        source: str | None = None,
        on_unavailable: str | None = None,
    ) -> None:
        self.levels = tuple(levels)
        self.revisions = tuple(revisions)
        self.source = source
        self.on_unavailable = on_unavailable
        self._parts: dict[tuple[tuple[str, Any], ...], tuple[tuple[int, Limit, int], ...]] = {}
        self._variants: dict[tuple[Limit, ...], Shape] = {}

    def parts(self, amounts: Mapping[str, int]) -> tuple[tuple[int, Limit, int], ...]:
        """Level, limit and amount for every level that has the limit. The entity has them all, an ancestor may not."""
        return tuple(
            (level, limits[name], amount)
            for level, limits in enumerate(self.levels)
            for name, amount in amounts.items()
            if name in limits
        )

    def under(self, limits: Iterable[Limit]) -> Shape:
        """The caller's own limits instead of the entity's. An ancestor keeps those stored for it, if there are any."""
        try:
            place = tuple(limits)
            known = self._variants.get(place)
        except TypeError:
            place, known = (), None  # no limits: by_name() says so
        if known is None:
            named = by_name(limits if isinstance(limits, str) else place or limits)
            ancestors = self.levels[1:]
            revisions = [0, *(revision if level else 0 for level, revision in zip(ancestors, self.revisions[1:]))]
            known = Shape([named, *(level or named for level in ancestors)], revisions, None, self.on_unavailable)
            if len(self._variants) < _KEPT:
                self._variants[place] = known
        return known


class Chain:
    """Bucket keys, the entity's first, and the shape they have."""

    __slots__ = ("_latest", "keys", "shape")

    def __init__(self, keys: tuple[str, ...], shape: Shape) -> None:
        self.keys = keys
        self.shape = shape
        self._latest: tuple[tuple[tuple[str, Any], ...], Request] | None = None

    def under(self, limits: Iterable[Limit]) -> Chain:
        return Chain(self.keys, self.shape.under(limits))

    def limits(self) -> Mapping[str, Limit]:
        """The entity's limits. An acquire with none is an error, not a pass."""
        for key, limits in zip(self.keys, self.shape.levels):
            if not limits:
                _, entity_id, resource = parse_bucket_key(key)
                raise ValidationError(
                    f"no limits are configured for {entity_id!r} on {resource!r}: pass limits=, or store some "
                    "with set_limits(), set_resource_defaults() or set_system_defaults()"
                )
        return self.shape.levels[0]

    def take(self, consume: Mapping[str, Any]) -> Request:
        """The request that takes `consume` from every link."""
        try:
            place = tuple(consume.items())
        except AttributeError:
            place = ()  # not a mapping: amounts() says so
        if self._latest is not None and self._latest[0] == place:
            return self._latest[1]
        try:
            parts = self.shape._parts.get(place)
        except TypeError:
            parts = None  # an amount that is no number: amounts() says so
        if parts is None:
            parts = self.shape.parts(self.amounts(consume))
            if len(self.shape._parts) < _KEPT:
                self.shape._parts[place] = parts
        request = _new(Request, (TAKE, self._charges(parts), *_TAKE_DEFAULTS))
        self._latest = (place, request)
        return request

    def amounts(self, consume: Mapping[str, Any]) -> dict[str, int]:
        """Millitokens by limit name, checked."""
        if not isinstance(consume, Mapping) or not consume:
            raise ValidationError(
                f"consume must name at least one limit and its amount, like {{'rpm': 1}}, not {consume!r}"
            )
        self.check_names(consume)
        return {
            name: tokens_to_milli(amount, f"amount of {name!r}", most=MAX_AMOUNT) for name, amount in consume.items()
        }

    def check_names(self, names: Mapping[str, Any]) -> None:
        limits = self.limits()
        for name in names:
            if name not in limits:
                _, entity_id, resource = parse_bucket_key(self.keys[0])
                known = ", ".join(sorted(limits))
                raise ValidationError(f"there is no limit {name!r} for {entity_id!r} on {resource!r}; it has: {known}")

    def charges(self, amounts: Mapping[str, int]) -> tuple[Charge, ...]:
        return self._charges(self.shape.parts(amounts))

    def _charges(self, parts: Sequence[tuple[int, Limit, int]]) -> tuple[Charge, ...]:
        keys, revisions = self.keys, self.shape.revisions
        if len(parts) == 1:
            ((level, limit, amount),) = parts
            return (_new(Charge, (keys[level], limit, amount, revisions[level])),)
        return tuple([Charge(keys[level], limit, amount, revisions[level]) for level, limit, amount in parts])

    def own_amounts(self, request: Request) -> dict[str, int]:
        """What a request of this chain moves on the entity itself, by limit name."""
        own = self.keys[0]
        return {limit.name: amount for key, limit, amount, _ in request.charges if key == own}

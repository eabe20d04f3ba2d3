"""Whom an acquire charges, under which limits: the entity, and above it every ancestor it cascades to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.decide import Charge, Mode, Request
from ..core.errors import ValidationError
from ..core.limit import Limit, by_name
from ..core.units import MAX_AMOUNT, tokens_to_milli

_KEPT = 32


class Link(NamedTuple):
    entity_id: str
    key: str
    limits: Mapping[str, Limit]


class Chain:
    """The links, the entity's first, and where its limits came from."""

    __slots__ = ("_requests", "_variants", "links", "on_unavailable", "resource", "source")

    def __init__(
        self, links: Sequence[Link], resource: str, source: str | None = None, on_unavailable: str | None = None
    ) -> None:
        self.links = tuple(links)
        self.resource = resource
        self.source = source
        self.on_unavailable = on_unavailable
        # What callers ask for again and again is made once.
        self._requests: dict[tuple[tuple[str, Any], ...], Request] = {}
        self._variants: dict[tuple[Limit, ...], Chain] = {}

    def under(self, limits: Iterable[Limit]) -> Chain:
        """The same chain with the caller's own limits. An ancestor keeps the ones stored for it, if there are any."""
        try:
            place = tuple(limits)
            known = self._variants.get(place)
        except TypeError:
            place, known = (), None  # no limits: by_name() says so
        if known is None:
            named = by_name(limits if isinstance(limits, str) else place or limits)
            first, *ancestors = self.links
            links = [first._replace(limits=named)]
            links += [link if link.limits else link._replace(limits=named) for link in ancestors]
            known = Chain(links, self.resource, self.source, self.on_unavailable)
            if len(self._variants) < _KEPT:
                self._variants[place] = known
        return known

    def limits(self) -> Mapping[str, Limit]:
        """The entity's limits. An acquire with none is an error, not a pass."""
        for entity_id, _, limits in self.links:
            if not limits:
                raise ValidationError(
                    f"no limits are configured for {entity_id!r} on {self.resource!r}: pass limits=, or store some "
                    "with set_limits(), set_resource_defaults() or set_system_defaults()"
                )
        return self.links[0].limits

    def take(self, consume: Mapping[str, Any]) -> Request:
        """The request that takes `consume` from every link."""
        try:
            place = tuple(consume.items())
            known = self._requests.get(place)
        except (TypeError, AttributeError):
            place, known = (), None  # not a mapping, or no numbers: amounts() says so
        if known is None:
            known = Request(Mode.TAKE, self.charges(self.amounts(consume)))
            if len(self._requests) < _KEPT:
                self._requests[place] = known
        return known

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
                known = ", ".join(sorted(limits))
                raise ValidationError(
                    f"there is no limit {name!r} for {self.links[0].entity_id!r} on {self.resource!r}; it has: {known}"
                )

    def charges(self, amounts: Mapping[str, int]) -> tuple[Charge, ...]:
        """A charge for every link that has the limit. The entity has them all, an ancestor may not."""
        return tuple(
            Charge(link.key, link.limits[name], amount)
            for link in self.links
            for name, amount in amounts.items()
            if name in link.limits
        )

    def own_amounts(self, request: Request) -> dict[str, int]:
        """What a request of this chain moves on the entity itself, by limit name."""
        own = self.links[0].key
        return {limit.name: amount for key, limit, amount in request.charges if key == own}

"""The entities that an acquire charges, and their limits: the entity itself, then every ancestor it cascades to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ...core.decide import TAKE, Part, Parts, Request
from ...core.errors import LimitNotFound, SlotsNotWhole, ValidationError
from ...core.limit import Limit, by_name
from ...core.names import parse_bucket_key
from ...core.schedule import LimitsNow
from ...core.units import MILLI, amount_to_milli, from_milli, signed_tokens_to_milli
from ..leases.held_slots import RECORDED

if TYPE_CHECKING:
    from ..config.levels import Source
    from .options import OnUnavailable

_KEPT = 64
_NEVER = object()  # equal to nothing that a caller passes
_NO_LIMITS_YET: Any = (_NEVER, None)
ONE_OF_EACH: Mapping[str, Any] = {}  # as what to consume: one of every limit there is


class Shape:
    """The limits along a chain, the entity's first, without the entities. A million entities may share one.

    `sources`: the levels that the entity's limits are from, in their order; none if they came with the call.
    `own`: the limits that the limiter was made with. `until_ms`: when a schedule changes the limits (None: never), and
    `following`: the limits of the levels from then on.
    What every acquire needs of a shape is computed once and kept.
    """

    __slots__ = (
        "_parts", "_variants", "following", "has_quotas", "has_slots", "is_plain", "last", "levels", "on_unavailable",
        "own", "revisions", "sources", "until_ms",
    )  # fmt: skip

    def __init__(
        self,
        levels: Sequence[Mapping[str, Limit]],
        revisions: Sequence[int],
        sources: tuple[Source, ...] = (),
        on_unavailable: OnUnavailable | None = None,
        own: Mapping[str, Limit] | None = None,
    ) -> None:
        self.levels = tuple(levels)
        self.revisions = tuple(revisions)
        self.sources = sources
        self.on_unavailable = on_unavailable
        self.own = own
        self.until_ms: int | None = None
        self.following: tuple[Mapping[str, Limit], ...] = ()
        self.has_slots = any(limit.is_concurrent for limits in levels for limit in limits.values())
        self.has_quotas = any(limit.is_quota for limits in levels for limit in limits.values())
        self.is_plain = not self.has_slots and not any(limit.alerts_milli for of in levels for limit in of.values())
        self._parts: dict[tuple[Any, ...], Parts] = {}
        self.last: tuple[Any, Parts] = (_NEVER, ())  # what was consumed last, and its parts; threads share it
        self._variants: dict[tuple[Limit, ...], Shape] = {}

    def spread(self, amounts: Mapping[str, int]) -> Parts:
        """The parts of all levels that have the limits. The entity has them all, an ancestor may not."""
        return tuple(
            Part(level, limits[name], amount, revision)
            for level, (limits, revision) in enumerate(zip(self.levels, self.revisions))
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
        until_ms = limits.until_ms if isinstance(limits, LimitsNow) else None
        if known is None or known.until_ms != until_ms:
            named = by_name(limits if isinstance(limits, str) else place or limits)
            ancestors = self.levels[1:]
            revisions = [0, *(revision if level else 0 for level, revision in zip(ancestors, self.revisions[1:]))]
            levels = [named, *(level or named for level in ancestors)]
            known = Shape(levels, revisions, (), self.on_unavailable, self.own)
            if isinstance(limits, LimitsNow):
                known.until_ms, known.following = until_ms, (by_name(limits.following), *levels[1:])
            if len(self._variants) < _KEPT:
                self._variants[place] = known
        return known


class Chain:
    """Bucket keys, the entity's first, and the shape they have."""

    __slots__ = ("_last", "_request", "keys", "shape")

    def __init__(self, keys: tuple[str, ...], shape: Shape) -> None:
        self.keys = keys
        self.shape = shape
        # The limits that the last call brought, and the chain under them: one value, since threads share it.
        self._last: tuple[Any, Chain] = _NO_LIMITS_YET
        self._request: Request | None = None  # the last plain take

    def under(self, limits: Iterable[Limit]) -> Chain:
        """Under limits that came with the call: mostly the same as the time before."""
        given, under = self._last
        if limits.__class__ is given.__class__ and limits == given:  # a class of its own may have its own `==`
            return under
        under = Chain(self.keys, self.shape.under(limits))
        if limits.__class__ is list or limits.__class__ is tuple:
            self._last = (copy(limits), under)
        return under

    def limits(self) -> Mapping[str, Limit]:
        """The entity's limits. An acquire with none is an error, not a pass."""
        for key, limits in zip(self.keys, self.shape.levels):
            if not limits:
                _, entity_id, resource = parse_bucket_key(key)
                raise LimitNotFound(
                    f"no limits are configured for {entity_id!r} on {resource!r}: pass limits=, or store some "
                    "with set_limits(), set_resource_defaults() or set_system_defaults(), or give the limiter its own"
                )
        return self.shape.levels[0]

    def parts(self, consume: Mapping[str, Any]) -> Parts:
        """What `consume` takes from which level. Checked once for all chains of this shape."""
        given, parts = self.shape.last
        if consume.__class__ is dict and consume == given:
            for amount in consume.values():
                if amount.__class__ is not int:  # True equals 1, and is no amount
                    break
            else:
                return parts
        return self._parts(consume)

    def _parts(self, consume: Mapping[str, Any]) -> Parts:
        kept = self.shape._parts
        if consume is ONE_OF_EACH:
            consume = dict.fromkeys(self.limits(), 1)
        try:
            place: tuple[Any, ...] = tuple(consume.items())
            for amount in consume.values():
                if amount.__class__ is not int:  # True equals 1, and is no amount
                    place = (*place, *map(type, consume.values()))
                    break
            parts = kept.get(place)
        except (AttributeError, TypeError):
            place, parts = (), None  # not a mapping, or not of numbers: amounts() says so
        if parts is None:
            parts = self.shape.spread(self.amounts(consume))
            if len(kept) < _KEPT:
                kept[place] = parts
        if consume.__class__ is dict:
            self.shape.last = (consume.copy(), parts)
        return parts

    def plain_request(self, parts: Parts) -> Request:
        """The request that takes the parts, without waiting and without slots: mostly the same as the time before."""
        request = self._request
        if request is None or request.parts is not parts:
            request = self._request = Request(TAKE, self.keys, parts)
        return request

    def request(self, parts: Parts, max_wait_ms: int = 0, lease_id: str = "") -> Request:
        """The request that takes the parts."""
        return Request(TAKE, self.keys, parts, max_wait_ms, lease_id=lease_id)

    def amounts(self, consume: Mapping[str, Any]) -> dict[str, int]:
        """Millitokens by limit name, checked."""
        if not isinstance(consume, Mapping) or not consume:
            raise ValidationError(
                f"consume must name at least one limit and its amount, like {{'rpm': 1}}, not {consume!r}"
            )
        self.check_names(consume)
        return {name: self._amount(name, amount) for name, amount in consume.items()}

    def _amount(self, name: str, amount: Any) -> int:
        return self.check_whole(name, amount_to_milli(amount, f"amount of {name!r}"), amount)

    def check_whole(self, name: str, milli: int, amount: Any) -> int:
        """Slots are not divided."""
        if milli % MILLI and self.shape.levels[0][name].is_concurrent:
            raise SlotsNotWhole(f"amount of {name!r} must be a whole number of slots, not {amount!r}")
        return milli

    def check_release(self, amounts: Mapping[str, Any], taken_milli: Mapping[str, int]) -> dict[str, int]:
        """Millitokens by limit name: no more of each than was taken."""
        self.check_names(amounts)
        released = {}
        for name, amount in amounts.items():
            milli = self.check_whole(name, signed_tokens_to_milli(amount, f"amount of {name!r}"), amount)
            taken = taken_milli.get(name, 0)
            if not 0 <= milli <= taken:
                raise ValidationError(f"cannot release {amount!r} of {name!r}: the lease holds {from_milli(taken)}")
            released[name] = milli
        return released

    def check_tokens(self, names: Mapping[str, Any]) -> None:
        """Names of limits that can be corrected. What is held as slots cannot."""
        self.check_names(names)
        for name in names:
            if self.shape.levels[0][name].is_concurrent:
                raise ValidationError(
                    f"{name!r} is a concurrent limit, and its slots are held by leases: acquire(), lease.consume() and "
                    "lease.release() are for slots, adjust() is for tokens"
                )

    def check_names(self, names: Mapping[str, Any]) -> None:
        limits = self.limits()
        for name in names:
            if name not in limits:
                _, entity_id, resource = parse_bucket_key(self.keys[0])
                known = ", ".join(sorted(limits))
                raise LimitNotFound(
                    f"there is no limit {name!r} for {entity_id!r} on {resource!r}; it has: {known}", name
                )


def own_amounts(parts: Parts) -> dict[str, int]:
    """What the parts take from the entity itself, by limit name."""
    return {limit.name: amount for level, limit, amount, _ in parts if level == 0 and limit.name != RECORDED}

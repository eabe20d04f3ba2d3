"""Sharing a vendor's quota: dimensions by name, several at once, and what the vendor's own headers say.

A dimension is `vendor#metric`, or `vendor#model`: the entity before the `#`, the resource after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...plan import Plan
from ..acquire.chain import ONE_OF_EACH
from ..acquire.group import Ask
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..engine import Engine
from ..leases.lease import BaseLease
from .sync import VendorSync, learn_plan

Dimensions: TypeAlias = "Mapping[str, Mapping[str, Any] | None] | Iterable[str]"


_FORM = "write it like 'openai#gpt-4o' or 'openai#rpm'"


class Dimension(NamedTuple):
    entity_id: str
    resource: str

    @classmethod
    def parse(cls, text: str) -> Dimension:
        """`"openai#gpt-4o"` is the entity `openai` and the resource `gpt-4o`."""
        entity_id, separator, resource = text.rpartition("#") if isinstance(text, str) else ("", "", "")
        if not (entity_id and separator and resource):
            raise ValidationError(f"dimension {text!r} cannot be read: {_FORM}")
        return cls(entity_id, resource)


def dimension_of(engine: Engine, text: str) -> Dimension:
    """The same, without a word of an id that is a secret."""
    try:
        return Dimension.parse(text)
    except ValidationError:
        if not engine.hashes_ids:
            raise
    raise ValidationError(f"the dimension cannot be read: {_FORM}")


# Several at once


def asks_of(engine: Engine, consume: Dimensions, limits: Mapping[str, Iterable[Limit]] | None) -> dict[str, Ask]:
    """The ask of each dimension."""
    amounts = _checked(consume, limits)
    return {
        dimension: Ask(
            *dimension_of(engine, dimension),
            ONE_OF_EACH if wanted is None else wanted,
            None if limits is None else limits.get(dimension),
        )
        for dimension, wanted in amounts.items()
    }


def _checked(
    consume: Dimensions, limits: Mapping[str, Iterable[Limit]] | None
) -> Mapping[str, Mapping[str, Any] | None]:
    amounts = _by_dimension(consume)
    if not amounts:
        raise ValidationError(
            f"acquire_many needs what to consume by dimension, like {{'openai#gpt-4o': {{'rpm': 1}}}}, not "
            f"{'an empty ' if isinstance(consume, Mapping) else ''}{type(consume).__name__}"
        )
    if limits is not None and not isinstance(limits, Mapping):
        raise ValidationError(f"limits of acquire_many must be lists by dimension, not {type(limits).__name__}")
    if any(dimension not in amounts for dimension in limits or {}):
        raise ValidationError("there are limits for a dimension of which nothing is to be consumed")
    return amounts


def _by_dimension(consume: Dimensions) -> Mapping[str, Mapping[str, Any] | None]:
    if isinstance(consume, Mapping):
        return consume
    named = isinstance(consume, Iterable) and not isinstance(consume, (str, bytes))
    return dict.fromkeys(consume) if named else {}


def leave_all_plan(leases: Iterable[BaseLease], error: BaseException | None) -> Plan[None]:
    """End them all, whatever ends the ending of one."""
    failure: BaseException | None = None
    for lease in leases:
        if lease._nothing_to_do(error):
            continue
        try:
            yield from lease._leave_plan(error)
        except GeneratorExit:
            raise
        except BaseException as its:
            failure = failure or its
    if failure is not None:
        raise failure


# What the vendor says


def sync_from_headers_plan(
    engine: Engine,
    dimension: str,
    response: Any,
    *,
    names: Mapping[str, str] | None = None,
    limits: Iterable[Limit] | None = None,
) -> Plan[VendorSync]:
    """Learn from a vendor's response, or its headers: no bucket has more tokens than the vendor says are left.

    It only lowers: what is under way elsewhere was taken here and not counted there yet. After a 429 nothing passes for
    as long as `Retry-After` says. `names`: what a limit on "requests", "tokens", "input_tokens", "output_tokens" is
    called here, if not rpm, tpm, itpm, otpm or that.
    """
    chain = yield from chain_plan(engine, *dimension_of(engine, dimension), limits)
    yield from register_plan(engine)
    return (yield from learn_plan(engine, chain, response, names))

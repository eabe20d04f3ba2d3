"""Sharing a vendor's quota: dimensions by name, several at once, and what the vendor's own headers say.

A dimension is `vendor#metric`, or `vendor#model`: the entity before the `#`, the resource after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ...plan import Plan
from ..acquire.chain import ONE_OF_EACH, Chain, Shape
from ..acquire.decision import statuses
from ..acquire.funnel import Options, Outcome, last_known, take_chain_plan, tell
from ..acquire.joint import Member, joint, own_outcome
from ..base import BaseLimiter
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..leases.lease import BaseLease
from ..observe.watchers import deciding, outcome_of
from .sync import VendorSync, learn_plan

Wishes: TypeAlias = "Mapping[str, Mapping[str, Any] | None] | Iterable[str]"


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


def dimension_of(limiter: BaseLimiter, text: str) -> Dimension:
    """The same, without a word of an id that is a secret."""
    try:
        return Dimension.parse(text)
    except ValidationError:
        if not limiter._hashes_ids:
            raise
    raise ValidationError(f"the dimension cannot be read: {_FORM}")


# Several at once


def take_many_plan(
    limiter: BaseLimiter,
    consume: Wishes,
    limits: Mapping[str, Iterable[Limit]] | None,
    options: Options,
) -> Plan[dict[str, Outcome]]:
    """All of the dimensions or none, in one request. Raises RateLimitExceeded with the limits of all of them."""
    wishes = _checked(consume, limits)
    with deciding(limiter._watchers, _named(limiter, wishes)) as under_way:
        outcomes = yield from _take_all_plan(limiter, wishes, limits, options)
        under_way.over(outcome_of(True, outcome.degraded) for outcome in outcomes.values())
        return outcomes


def _take_all_plan(
    limiter: BaseLimiter,
    wishes: Mapping[str, Mapping[str, Any] | None],
    limits: Mapping[str, Iterable[Limit]] | None,
    options: Options,
) -> Plan[dict[str, Outcome]]:
    began = time.monotonic()
    chains: dict[str, Chain] = {}
    try:
        for dimension in wishes:
            own = None if limits is None else limits.get(dimension)
            chains[dimension] = yield from chain_plan(limiter, *dimension_of(limiter, dimension), own)
        members = _members(chains, wishes)
        yield from register_plan(limiter)
        if any(limiter._policy(chain, options.on_unavailable) == "local" for chain in chains.values()):
            limiter._count_instances()
        outcome = yield from take_chain_plan(limiter, *joint(list(members.values())), options)
    except RateLimiterUnavailable:
        policy = limiter._policy(next(iter(chains.values()), None), options.on_unavailable)
        if policy == "allow":
            return dict.fromkeys(wishes, Outcome(Chain((), Shape([], [])), degraded=True))
        for dimension in wishes.keys() - chains.keys() if policy == "local" else ():
            consume, own = wishes[dimension] or ONE_OF_EACH, limits.get(dimension) if limits else None
            known = last_known(limiter, *Dimension.parse(dimension), consume, own)
            if known is not None:
                chains[dimension] = known
        if policy == "block" or len(chains) < len(wishes):
            raise
        members = _members(chains, wishes)
        outcome = yield from take_chain_plan(limiter, *joint(list(members.values())), options, here=True)
    assert outcome.parts is not None
    assert outcome.answer is not None
    outcomes = {dimension: own_outcome(limiter, member, outcome) for dimension, member in members.items()}
    if limiter.events.watched():
        for dimension, of_member in outcomes.items():
            entity_id, resource = Dimension.parse(dimension)
            tell(limiter, limiter._stored_id(entity_id), resource, of_member, time.monotonic() - began)
    if not outcome.answer.allowed:
        raise RateLimitExceeded(statuses(outcome.chain, outcome.parts, outcome.answer, outcome.max_wait_ms))
    return outcomes


def _named(limiter: BaseLimiter, wishes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The stored id and the resource of each, for those who watch."""
    for entity_id, resource in (dimension_of(limiter, dimension) for dimension in wishes):
        yield limiter._stored_id(entity_id), resource


def _members(chains: Mapping[str, Chain], wishes: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Member]:
    return {
        dimension: Member(chains[dimension], chains[dimension].parts(ONE_OF_EACH if amounts is None else amounts))
        for dimension, amounts in wishes.items()
    }


def _checked(consume: Wishes, limits: Mapping[str, Iterable[Limit]] | None) -> Mapping[str, Mapping[str, Any] | None]:
    if isinstance(consume, Mapping):
        wishes = consume
    else:
        named = isinstance(consume, Iterable) and not isinstance(consume, (str, bytes))
        wishes = dict.fromkeys(consume) if named else {}
    if not wishes:
        raise ValidationError(
            f"acquire_many needs what to consume by dimension, like {{'openai#gpt-4o': {{'rpm': 1}}}}, not "
            f"{'an empty ' if isinstance(consume, Mapping) else ''}{type(consume).__name__}"
        )
    if limits is not None and not isinstance(limits, Mapping):
        raise ValidationError(f"limits of acquire_many must be lists by dimension, not {type(limits).__name__}")
    for dimension in limits or {}:
        if dimension not in wishes:
            raise ValidationError("there are limits for a dimension of which nothing is to be consumed")
    return wishes


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
    limiter: BaseLimiter,
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
    chain = yield from chain_plan(limiter, *dimension_of(limiter, dimension), limits)
    yield from register_plan(limiter)
    return (yield from learn_plan(limiter, chain, response, names))

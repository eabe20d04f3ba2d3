"""Several acquires as one: all of them or none, in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...core.decide import Answer, Part, Parts
from ...core.limit import Limit
from ..base import BaseLimiter
from ..leases.held_slots import HeldSlots
from .chain import Chain, Shape
from .funnel import Outcome


class Member(NamedTuple):
    chain: Chain
    parts: Parts


def joint(members: Sequence[Member]) -> tuple[Chain, Parts]:
    """One chain of all. Where two of them meet, at an ancestor, what they take adds up."""
    places: dict[str, int] = {}
    parts: dict[tuple[int, str], Part] = {}
    levels: list[Mapping[str, Limit]] = []
    for member in members:
        for key, limits in zip(member.chain.keys, member.chain.shape.levels):
            if key not in places:
                places[key] = len(places)
                levels.append(limits)
        for part in member.parts:
            level = places[member.chain.keys[part.level]]
            before = parts.get((level, part.limit.name))
            amount_milli = part.amount_milli + (before.amount_milli if before else 0)
            parts[level, part.limit.name] = part._replace(level=level, amount_milli=amount_milli)
    shape = Shape(levels, [0] * len(levels), (), members[0].chain.shape.on_unavailable)
    return Chain(tuple(places), shape), tuple(parts.values())


def own_outcome(limiter: BaseLimiter, member: Member, joint: Outcome) -> Outcome:
    hold = None
    if joint.hold is not None:
        limiter._let_go(joint.hold)  # from now on each holds its own
        request = member.chain.request(member.parts, lease_id=joint.hold.lease_id)
        if any(part.limit.is_concurrent for part in member.parts):
            own = HeldSlots(request, joint.hold.asked_at, joint.hold.on_lost, here=joint.degraded)
            hold = limiter._keep(own)
            if joint.hold.lost:
                hold.lose()
    assert joint.answer is not None
    answer = Answer(joint.answer.allowed, joint.answer.wait_ms, ())
    return Outcome(member.chain, member.parts, answer, 0, hold, joint.degraded, joint.waited)

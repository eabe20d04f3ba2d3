"""Asks, and groups of asks that pass or fail as a whole, in one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ...core.decide import Answer, Part, Parts, Request
from ...core.errors import CorruptState, Unanswered, ValidationError
from ...core.limit import Limit
from ..leases.held_slots import HeldSlots, mark, new_lease_id
from .chain import ONE_OF_EACH, Chain, Shape

if TYPE_CHECKING:
    from ..engine import Engine
    from .options import Options


class Ask(NamedTuple):
    """The arguments of one `try_acquire`. Without `consume`: one of every limit there is."""

    entity_id: str
    resource: str
    consume: Mapping[str, Any] | None = None
    limits: Iterable[Limit] | None = None


Asks: TypeAlias = "Iterable[Ask | Sequence[Ask]]"
NOTHING = Chain((), Shape([], []))  # of what passed without being counted


class Member(NamedTuple):
    """One ask of a group, resolved: what it takes from which buckets."""

    chain: Chain
    parts: Parts


class Settled(NamedTuple):
    """The store's answer. `max_wait_ms`: what was left of it when the store was asked."""

    answer: Answer
    asked_at: float
    max_wait_ms: int = 0
    queued: bool = False


class Group:
    """`result`: what the store has answered, or why it has not, if it was asked before with other groups."""

    __slots__ = ("asks", "chain", "members", "request", "result")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks
        self.members: list[Member] = []
        self.chain = NOTHING
        self.request: Request
        self.result: Settled | Unanswered | None = None

    def add(self, chain: Chain, ask: Ask) -> None:
        self.members.append(Member(chain, chain.parts(cast("Mapping[str, Any]", ask.consume))))  # None: an error

    def complete(self, options: Options, *, here: bool = False) -> Request:
        """All members are known by now. `here`: for this process alone, which keeps no records."""
        self.chain, parts = self.members[0] if len(self.members) == 1 else _joint(self.members)
        if options.record_lease and not here:
            parts = (*parts, mark(options.ttl_ms))
        lease_id = new_lease_id() if any(part.limit.is_concurrent for part in parts) else ""
        self.request = self.chain.request(parts, options.max_wait_ms, lease_id)
        return self.request


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """What became of a group, or of one ask of it.

    Without an answer: the store was unavailable and the policy is "allow", or there is an error.
    """

    chain: Chain
    parts: Parts | None = None
    answer: Answer | None = None
    max_wait_ms: int = 0
    hold: HeldSlots | None = None
    degraded: bool = False
    waited: bool = False
    error: CorruptState | None = None
    members: Sequence[AskOutcome] = ()  # of a group of several

    def by_ask(self, engine: Engine, group: Group) -> AskOutcome:
        """With the outcome of each ask, if the group has several: each has its own lease."""
        if len(group.asks) == 1:
            return self
        if self.answer is None:
            members: Sequence[AskOutcome] = (self,) * len(group.asks)
        else:
            members = [_own(engine, member, self) for member in group.members]
        return AskOutcome(
            self.chain, self.parts, self.answer, self.max_wait_ms, None, self.degraded, self.waited, self.error, members
        )


def check_asks(asks: Any) -> list[Ask | Sequence[Ask]]:
    if isinstance(asks, (str, bytes, Ask)) or not isinstance(asks, Iterable):
        raise ValidationError(f"asks must be a list of Ask, or of lists of Ask, not {type(asks).__name__}")
    return list(asks)


def as_groups(asks: Sequence[Any]) -> list[list[Ask]]:
    """Every element as a list of asks that say what they consume."""
    groups = []
    for element in asks:
        group = [element] if isinstance(element, Ask) else element
        if not (isinstance(group, (list, tuple)) and group and all(isinstance(ask, Ask) for ask in group)):
            raise ValidationError(f"an element of asks must be an Ask, or a list of some, not {type(element).__name__}")
        groups.append([ask._replace(consume=ONE_OF_EACH) if ask.consume is None else ask for ask in group])
    return groups


def named(engine: Engine, asks: Iterable[Ask | Sequence[Ask]]) -> Iterator[tuple[str, str]]:
    """The stored id and the resource of each ask, for observers."""
    for element in asks:
        for ask in (element,) if isinstance(element, Ask) else element:
            yield engine.stored_id(ask.entity_id), ask.resource


def _joint(members: Sequence[Member]) -> Member:
    """One chain of all. Where two of them meet, at an ancestor, what they take adds up."""
    places: dict[str, int] = {}
    parts: dict[tuple[int, str], Part] = {}
    levels: list[Mapping[str, Limit]] = []
    following: list[Mapping[str, Limit]] = []
    shapes = [member.chain.shape for member in members]
    until_ms = min((shape.until_ms for shape in shapes if shape.until_ms is not None), default=None)
    for member, shape in zip(members, shapes):
        later = shape.following if shape.until_ms is not None and shape.until_ms == until_ms else shape.levels
        for key, limits, then in zip(member.chain.keys, shape.levels, later):
            if key not in places:
                places[key] = len(places)
                levels.append(limits)
                following.append(then)
        for part in member.parts:
            level = places[member.chain.keys[part.level]]
            before = parts.get((level, part.limit.name))
            amount_milli = part.amount_milli + (before.amount_milli if before else 0)
            parts[level, part.limit.name] = part._replace(level=level, amount_milli=amount_milli)
    joint = Shape(levels, [0] * len(levels), (), members[0].chain.shape.on_unavailable)
    joint.until_ms, joint.following = until_ms, tuple(following)
    return Member(Chain(tuple(places), joint), tuple(parts.values()))


def _own(engine: Engine, member: Member, joint: AskOutcome) -> AskOutcome:
    hold = None
    if joint.hold is not None:
        engine.let_go(joint.hold)  # from now on each holds its own
        request = member.chain.request(member.parts, lease_id=joint.hold.lease_id)
        if any(part.limit.is_concurrent for part in member.parts):
            own = HeldSlots(request, joint.hold.asked_at, joint.hold.on_lost, here=joint.degraded)
            hold = engine.keep(own)
            if joint.hold.lost:
                hold.lose()
    assert joint.answer is not None
    answer = Answer(joint.answer.allowed, joint.answer.wait_ms, ())
    return AskOutcome(member.chain, member.parts, answer, 0, hold, joint.degraded, joint.waited)

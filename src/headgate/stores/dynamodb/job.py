"""A request on its way through the rounds: the items it is about, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request
from ...core.errors import HeadgateError
from .conditional_writes import Place
from .cross_shard import longest_wait
from .ledger import Ledger

_NO_SLOTS: Mapping[int, Ledger] = MappingProxyType({})


class Job:
    """`buckets`, `slots`: the items of its tokens and of its slots, by level. `ledgers`: those that it has parts for.

    `levels`: of the parts that have been written, while others are still to come.
    """

    __slots__ = (
        "answer",
        "applied",
        "buckets",
        "decided",
        "error",
        "ledgers",
        "levels",
        "raced",
        "request",
        "slots",
        "slow",
        "wide",
    )

    def __init__(self, request: Request, buckets: Sequence[Ledger], slots: Mapping[int, Ledger] = _NO_SLOTS) -> None:
        self.request = request
        self.buckets = buckets
        self.slots = slots
        self.ledgers = list(dict.fromkeys(map(self.of, request.parts)))
        self.levels: dict[Part, Level] = {}
        self.decided = self.applied = False  # in this round
        self.slow = False  # it is read first, and then written in a transaction
        self.raced = False  # which was in vain: others are faster
        self.wide = False  # all shards are asked, when the rounds are over
        self.answer: Answer | None = None
        self.error: HeadgateError | None = None

    @property
    def over(self) -> bool:
        return self.answer is not None or self.error is not None

    @property
    def is_refused(self) -> bool:
        return self.answer is not None and not self.answer.allowed

    @property
    def is_in_vain(self) -> bool:
        """Something was taken, and the rest cannot be had."""
        return bool(self.levels) and self.request.mode is TAKE and (self.error is not None or not self.applied)

    @property
    def result(self) -> Answer | HeadgateError:
        result = self.error or self.answer
        assert result is not None, "the rounds end with an answer or an error"
        return result

    @property
    def places(self) -> list[Place]:
        """Of its buckets, by level."""
        return [ledger.place for ledger in self.buckets]

    @property
    def concerns_all_shards(self) -> bool:
        """Whether one shard of a bucket is not enough to decide it on."""
        if self.wide:
            return True
        if self.levels or all(ledger.shards == 1 for ledger in self.ledgers):
            return False
        return self.request.mode in (PEEK, PENALIZE, LOWER) or any(
            abs(part.amount_milli) * self.of(part).shards > part.limit.capacity_milli for part in self.request.parts
        )

    def of(self, part: Part) -> Ledger:
        """The item that a part is about."""
        return (self.slots if self.slots and part.limit.is_concurrent else self.buckets)[part.level]

    def left(self) -> dict[Ledger, list[Part]]:
        """The parts that are still to be written, by item."""
        found: dict[Ledger, list[Part]] = {}
        for part in self.request.parts:
            if part not in self.levels:
                found.setdefault(self.of(part), []).append(part)
        return found

    def rest(self) -> Request:
        """What is still to be written."""
        if not self.levels:
            return self.request
        return self.request._replace(parts=tuple(part for part in self.request.parts if part not in self.levels))

    def done(self, ledger: Ledger, parts: list[Part]) -> None:
        """They have been written. Once all are, there is the answer."""
        self._found(parts, ledger.apply(self.request, parts).levels)

    def _found(self, parts: Sequence[Part], levels: Sequence[Level]) -> None:
        self.levels |= zip(parts, levels)
        if len(self.levels) == len(self.request.parts):
            levels = [self.levels[part] for part in self.request.parts]
            longest = longest_wait(levels)
            self.answer = Answer(self.request.mode is not RENEW or longest is not None, longest, levels)

    def answered(self, rest: Request, answer: Answer) -> None:
        """The rest of it has an answer, or if nothing was written before, the whole."""
        if self.levels:
            self._found(rest.parts, answer.levels)
        else:
            self.answer = answer

    def refunds(self) -> list[Job]:
        """What gives back what was written so far."""
        taken: dict[Ledger, list[Part]] = {}
        for part in self.levels:
            taken.setdefault(self.of(part), []).append(part._replace(level=0, amount_milli=-part.amount_milli))
        self.levels.clear()
        return [self._refund(ledger, parts) for ledger, parts in taken.items()]

    def _refund(self, ledger: Ledger, parts: Sequence[Part]) -> Job:
        return Job(Request(FORCE, ("",), tuple(parts), lease_id=self.request.lease_id), [ledger], {0: ledger})

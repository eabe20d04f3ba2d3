"""Settling a batch in which there are slots.

They are one more item of a request, and the rounds are the same: what passes is written to all its items at once, and
given back where it was written if another item refuses. Whoever dies in between leaves tokens that refill, and slots
that run out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...core.decide import PEEK, TAKE, Answer, Part, Request, refund
from ...core.errors import UNANSWERED, Contended, CorruptState, HeadgateError
from ...core.names import parse_bucket_key
from ...plan import Plan
from .cross_shard import CrossShard, longest_of
from .exchange import MoreTime
from .ledger import Ledger
from .namespaces import Namespaces
from .settle import Job, Settler, answers_of, written_keys
from .shards import Shards
from .slot_items import SlotPlace
from .slots import SlotShelf
from .usage_counters import UsageCounters
from .writer import Writer


class MixedJob(Job):
    """One with tokens and slots."""

    __slots__ = ("buckets", "slots")

    def __init__(self, request: Request, buckets: Sequence[Ledger], slots: Sequence[Ledger]) -> None:
        super().__init__(request, [*buckets, *slots])
        self.buckets = buckets  # both by level
        self.slots = slots

    def of(self, part: Part) -> Ledger:
        return (self.slots if part.limit.is_concurrent else self.buckets)[part.level]


class MixedSettler(Settler):
    def __init__(
        self,
        writer: Writer,
        namespaces: Namespaces,
        shards: Shards,
        across: CrossShard,
        hours: UsageCounters,
        slots: SlotShelf,
    ) -> None:
        super().__init__(writer, namespaces, shards, across, hours)
        self._slots = slots

    def settle_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Answer]]:
        jobs: list[Job] = []
        for piece in _of_one_kind(batch):
            jobs += yield from self._piece_plan(piece, now_ms)
        return answers_of(jobs)

    def _piece_plan(self, piece: Sequence[Request], now_ms: int) -> Plan[list[Job]]:
        try:
            jobs = yield from self._jobs_plan(piece, now_ms)
        except UNANSWERED as error:
            if len(piece) > 1 and isinstance(
                error, CorruptState
            ):  # of one of them: the others are settled by themselves
                jobs = []
                for request in piece:
                    jobs += yield from self._piece_plan([request], now_ms)
                return jobs
            jobs = [Job(request, []) for request in piece]
            for job in jobs:
                job.error = error
        else:
            yield from self._settle_plan(jobs, now_ms)
        return jobs

    def _jobs_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Job]]:
        places: dict[str, SlotPlace] = {}
        wanted: dict[SlotPlace, set[str]] = {}
        written = written_keys(batch)
        for request in batch:
            for part in request.parts:
                if part.limit.is_concurrent:
                    key = request.keys[part.level]
                    if key not in places:
                        namespace, entity_id, resource = parse_bucket_key(key)
                        ns = self._namespaces.known(namespace) or (
                            yield from self._namespaces.id_plan(namespace, register=key in written)
                        )
                        places[key] = SlotPlace(ns, entity_id, resource, 0)
                    names = wanted.setdefault(places[key], set())
                    if request.mode is not PEEK:
                        names.add(part.limit.name)
        read = yield from self._slots.know_plan(wanted)
        slots = {key: self._slots.ledger(place, now_ms, fresh=place in read) for key, place in places.items()}
        jobs = yield from super()._jobs_plan(batch, now_ms)
        return [_with_slots(job, slots) for job in jobs]

    def _across_shards_plan(self, job: Job, now_ms: int) -> Plan[None]:
        if not isinstance(job, MixedJob):
            yield from super()._across_shards_plan(job, now_ms)
            return
        rest = job.rest()
        try:
            job.answered(rest, (yield from self._one_after_the_other_plan(job, rest, now_ms)))
        except HeadgateError as error:
            job.error = error

    def _one_after_the_other_plan(self, job: MixedJob, request: Request, now_ms: int) -> Plan[Answer]:
        """The slots, and then the tokens on all shards; what was refused is given back, or only looked at."""
        parts = request.parts
        of_slots = request._replace(parts=tuple(part for part in parts if part.limit.is_concurrent), max_wait_ms=0)
        of_tokens = request._replace(parts=tuple(part for part in parts if not part.limit.is_concurrent))
        first = (yield from self._alone_plan(Job(of_slots, job.slots))) if of_slots.parts else Answer(True, 0, [])
        taken = request.mode is TAKE and first.allowed
        if request.mode is TAKE and not taken:
            of_tokens = of_tokens._replace(mode=PEEK)
        try:
            second = yield from self._cross_shard.settle_plan(of_tokens, [one.place for one in job.buckets], now_ms)
        except HeadgateError:
            if taken:
                yield from self._give_back_plan(of_slots, job.slots)
            raise
        if taken and not second.allowed:
            back = yield from self._give_back_plan(of_slots, job.slots)
            first.levels = [(free_milli, 0) for free_milli, _ in back.levels]  # as if it had not been
        levels = dict(zip((*of_slots.parts, *of_tokens.parts), (*first.levels, *second.levels)))
        in_order = [levels[part] for part in parts]
        return Answer(first.allowed and second.allowed, longest_of(in_order), in_order)

    def _give_back_plan(self, request: Request, ledgers: Sequence[Ledger]) -> Plan[Answer]:
        yield from MoreTime()
        return (yield from self._alone_plan(Job(refund(request), ledgers)))

    def _alone_plan(self, job: Job) -> Plan[Answer]:
        yield from self._rounds_plan([job])
        if job.answer is None:
            raise job.error or Contended("too many others write to the same slots of DynamoDB at once")
        return job.answer


def _with_slots(job: Job, slots: Mapping[str, Ledger]) -> Job:
    request = job.request
    kinds = {part.limit.is_concurrent for part in request.parts}
    if True not in kinds:
        return job
    ledgers = [slots.get(key, bucket) for key, bucket in zip(request.keys, job.ledgers)]
    return MixedJob(request, job.ledgers, ledgers) if False in kinds else Job(request, ledgers)


def _of_one_kind(batch: Sequence[Request]) -> Iterator[list[Request]]:
    """The batch in pieces, in each of which a limit is either one of tokens or one of slots."""
    piece: list[Request] = []
    kinds: dict[tuple[str, str], bool] = {}
    for request in batch:
        named = {(request.keys[level], limit.name): limit.is_concurrent for level, limit, _, _ in request.parts}
        if any(kinds.get(place, kind) is not kind for place, kind in named.items()):
            yield piece
            piece, kinds = [], {}
        piece.append(request)
        kinds |= named
    yield piece

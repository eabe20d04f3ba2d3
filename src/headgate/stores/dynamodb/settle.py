"""Settling a batch: finding its items, running rounds (round.py) until all of it is answered, and the work afterwards.

Rounds decide on one shard of a bucket. Requests that need all shards come last (cross_shard.py).

Slots are one more item of a request. A request that passes is written to all its items at once. If an item refuses,
what was written to the others is given back. A client that dies in between leaves tokens that refill and slots that
expire.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence

from ...core.decide import FORCE, PEEK, TAKE, Answer, Request, refund
from ...core.errors import (
    UNANSWERED,
    Contended,
    CorruptState,
    HeadgateError,
    PartlyAnswered,
    RateLimiterUnavailable,
)
from ...core.names import parse_bucket_key
from ...plan import Plan, Sleep
from .cross_shard import CrossShard
from .exchange import MoreTime
from .ledger import Ledger, longest_wait
from .namespaces import NamespaceMoved, Namespaces
from .places import ItemPlace, SlotPlace
from .round import Job, Round
from .shards import Shards
from .slots import SlotSource
from .usage import UsageCounters
from .writer import Writer

log = logging.getLogger("headgate")

_ROUNDS = 60
_PATIENCE = 3  # rounds without a pause


class Settler:
    def __init__(
        self,
        writer: Writer,
        namespaces: Namespaces,
        shards: Shards,
        slots: SlotSource,
        cross_shard: CrossShard,
        usage_counters: UsageCounters,
    ) -> None:
        self._writer = writer
        self._namespaces = namespaces
        self._shards = shards
        self._slots = slots
        self._cross_shard = cross_shard
        self._usage_counters = usage_counters

    def settle_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Answer]]:
        results: list[Answer | HeadgateError] = []
        for piece in [batch] if _has_only_buckets(batch) else _of_one_kind(list(map(_without_alerts, batch))):
            results += yield from self._piece_plan(piece, now_ms)
        return _answers(results)

    def _piece_plan(self, piece: Sequence[Request], now_ms: int) -> Plan[list[Answer | HeadgateError]]:
        try:
            jobs = yield from self._jobs_plan(piece, now_ms)
        except RateLimiterUnavailable as error:
            return [error] * len(piece)
        except CorruptState as error:
            return [error] if len(piece) == 1 else (yield from self._one_by_one_plan(piece, now_ms))
        yield from self._answer_plan(jobs, now_ms)
        moved = [job for job in jobs if isinstance(job.error, NamespaceMoved)]
        if moved:
            yield from self._anew_plan(moved, now_ms)
        yield from self._tidy_plan()
        return [job.result for job in jobs]

    def _one_by_one_plan(self, piece: Sequence[Request], now_ms: int) -> Plan[list[Answer | HeadgateError]]:
        """An item of one request is corrupt: the other requests are decided without it."""
        results: list[Answer | HeadgateError] = []
        for request in piece:
            results += yield from self._piece_plan([request], now_ms)
        return results

    def _anew_plan(self, moved: Sequence[Job], now_ms: int) -> Plan[None]:
        """Once more, with the current ids of the namespaces."""
        try:
            again = yield from self._jobs_plan([job.request for job in moved], now_ms)
        except UNANSWERED as error:
            for job in moved:
                job.error = error
            return
        yield from self._answer_plan(again, now_ms)
        for job, new in zip(moved, again):
            job.answer, job.error = new.answer, new.error

    def _tidy_plan(self) -> Plan[None]:
        """Work that the rounds found. The requests have their answers, so errors are only logged."""
        try:
            yield from self._shards.relieve_plan()
        except HeadgateError as error:
            log.warning("hot buckets could not be split: %s", error)
        try:
            yield from self._usage_counters.put_away_plan()
        except HeadgateError as error:
            log.warning("usage of past hours could not be moved to the items of their days: %s", error)

    # The items

    def _jobs_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Job]]:
        places = yield from self._places_plan(batch)
        slots = (yield from self._slots_plan(batch, places, now_ms)) if _has_slots(batch) else {}
        buckets = self._buckets(batch, places, now_ms)
        jobs = []
        for request in batch:
            by_level = {level: slots[key] for level, key in enumerate(request.keys) if key in slots} if slots else {}
            jobs.append(Job(request, [buckets[key] for key in request.keys], by_level))
        return jobs

    def _places_plan(self, batch: Sequence[Request]) -> Plan[dict[str, ItemPlace]]:
        """By key. A read does not register a namespace."""
        written = {key for request in batch if request.mode is not PEEK for key in request.keys}
        places: dict[str, ItemPlace] = {}
        for request in batch:
            for key in request.keys:
                if key not in places:
                    namespace, entity_id, resource = parse_bucket_key(key)
                    ns = self._namespaces.known(namespace) or (
                        yield from self._namespaces.id_plan(namespace, register=key in written)
                    )
                    places[key] = ItemPlace(ns, entity_id, resource, 0)
        return places

    def _slots_plan(
        self, batch: Sequence[Request], places: Mapping[str, ItemPlace], now_ms: int
    ) -> Plan[dict[str, Ledger]]:
        found: dict[str, SlotPlace] = {}
        wanted: dict[SlotPlace, set[str]] = {}
        for request in batch:
            for part in request.parts:
                if part.limit.is_concurrent:
                    key = request.keys[part.level]
                    place = found[key] = SlotPlace(*places[key])
                    names = wanted.setdefault(place, set())
                    if request.mode is not PEEK:
                        names.add(part.limit.name)
        read = yield from self._slots.know_plan(wanted)
        return {key: self._slots.ledger(place, now_ms, fresh=place in read) for key, place in found.items()}

    def _buckets(self, batch: Sequence[Request], places: Mapping[str, ItemPlace], now_ms: int) -> dict[str, Ledger]:
        ledgers: dict[str, Ledger] = {}
        for request in batch:
            gives = request.mode is FORCE and all(part.amount_milli <= 0 for part in request.parts)
            for key in request.keys:
                if key not in ledgers:
                    ledgers[key] = self._shards.ledger(places[key], now_ms, gives=gives)
        return ledgers

    # The rounds

    def _answer_plan(self, jobs: Sequence[Job], now_ms: int) -> Plan[None]:
        in_vain, wide = yield from self._rounds_plan(jobs)
        for job in in_vain:
            job.error = Contended("too many writers contend for the same buckets in DynamoDB")
        refunds = [refund for job in in_vain if job.request.mode is TAKE for refund in job.refunds()]
        if refunds:
            yield from MoreTime()
            wide += (yield from self._rounds_plan(refunds))[1]
        if wide:
            yield from self._wide_plan(jobs, wide, now_ms)

    def _rounds_plan(self, jobs: Sequence[Job]) -> Plan[tuple[list[Job], list[Job]]]:
        """Run rounds. Returns the jobs that ran out of rounds, and those that need all shards."""
        waiting, wide = list(jobs), list[Job]()
        asked = set(jobs)
        only_refunds = False
        for turn in range(_ROUNDS):
            one = Round(waiting, self._writer, self._namespaces)
            yield from one.run_plan()
            waiting = one.waiting
            wide += one.wide
            if not waiting:
                break
            if not only_refunds and asked.isdisjoint(waiting):
                only_refunds = True
                yield from MoreTime()  # a refund gets its own deadline
            if turn >= _PATIENCE or any(ledger.throttled for job in waiting for ledger in job.ledgers):
                yield from Sleep(random.uniform(0.001, 0.004) * min(turn + 1, 20))
        return waiting, wide

    # All shards

    def _wide_plan(self, jobs: Sequence[Job], wide: Sequence[Job], now_ms: int) -> Plan[None]:
        """Refunds first, then the others in their order."""
        order = {job: place for place, job in enumerate(jobs)}
        for job in sorted(wide, key=lambda job: order.get(job, -1)):
            if job not in order:
                yield from MoreTime()
            rest = job.rest()
            try:
                job.answered(rest, (yield from self._all_shards_plan(job, rest, now_ms)))
            except HeadgateError as error:
                job.error = error

    def _all_shards_plan(self, job: Job, request: Request, now_ms: int) -> Plan[Answer]:
        """Decide the slots, then the tokens on all shards. If one is refused, the other is given back or only read."""
        slots, tokens = _by_kind(request)
        if not slots.parts:
            return (yield from self._cross_shard.settle_plan(request, job.places, now_ms))
        first = yield from self._only_slots_plan(job, slots)
        if request.mode is TAKE and first.allowed:
            second = yield from self._or_give_back_plan(job, slots, first, tokens, now_ms)
        else:
            look = tokens._replace(mode=PEEK) if request.mode is TAKE else tokens
            second = yield from self._cross_shard.settle_plan(look, job.places, now_ms)
        levels = dict(zip((*slots.parts, *tokens.parts), (*first.levels, *second.levels)))
        in_order = [levels[part] for part in request.parts]
        return Answer(first.allowed and second.allowed, longest_wait(in_order), in_order)

    def _or_give_back_plan(self, job: Job, slots: Request, taken: Answer, tokens: Request, now_ms: int) -> Plan[Answer]:
        """Take the tokens too, or give back the slots."""
        try:
            answer = yield from self._cross_shard.settle_plan(tokens, job.places, now_ms)
        except HeadgateError:
            yield from self._give_back_plan(job, slots)
            raise
        if not answer.allowed:
            back = yield from self._give_back_plan(job, slots)
            taken.levels = [(free_milli, 0) for free_milli, _ in back.levels]  # as if they had not been taken
        return answer

    def _give_back_plan(self, job: Job, slots: Request) -> Plan[Answer]:
        yield from MoreTime()
        return (yield from self._only_slots_plan(job, refund(slots)))

    def _only_slots_plan(self, job: Job, slots: Request) -> Plan[Answer]:
        alone = Job(slots, (), job.slots)
        yield from self._rounds_plan([alone])
        if alone.answer is None:
            raise alone.error or Contended("too many writers contend for the same slots in DynamoDB")
        return alone.answer


def _by_kind(request: Request) -> tuple[Request, Request]:
    """The parts for slots, which do not wait, and those for tokens."""
    slots = tuple(part for part in request.parts if part.limit.is_concurrent)
    tokens = tuple(part for part in request.parts if not part.limit.is_concurrent)
    return request._replace(parts=slots, max_wait_ms=0), request._replace(parts=tokens)


def _has_only_buckets(batch: Sequence[Request]) -> bool:
    for request in batch:
        for part in request.parts:
            if part.limit.refill_milli <= 0 or part.limit.alerts_milli:
                return False
    return True


def _without_alerts(request: Request) -> Request:
    """Items do not have them. A limit that differs by its alerts is the same limit."""
    if not any(part.limit.alerts_milli for part in request.parts):
        return request
    parts = tuple(part._replace(limit=part.limit.changed(alerts_milli=())) for part in request.parts)
    return request._replace(parts=parts)


def _has_slots(batch: Sequence[Request]) -> bool:
    for request in batch:
        for part in request.parts:
            if not part.limit.refill_milli:
                return True
    return False


def _of_one_kind(batch: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """The batch in pieces. In each piece, a limit is of one kind."""
    piece: list[Request] = []
    kinds: dict[tuple[str, str], int] = {}
    for request in batch:
        named = {(request.keys[level], limit.name): min(limit.refill_milli, 1) for level, limit, _, _ in request.parts}
        if any(kinds.get(place, kind) != kind for place, kind in named.items()):
            yield piece
            piece, kinds = [], {}
        piece.append(request)
        kinds |= named
    yield piece


def _answers(results: list[Answer | HeadgateError]) -> list[Answer]:
    answers = [result for result in results if isinstance(result, Answer)]
    errors = [result for result in results if isinstance(result, HeadgateError)]
    if not errors:
        return answers
    if not answers and not any(isinstance(error, CorruptState) for error in errors):
        raise errors[0]
    raise PartlyAnswered(results)

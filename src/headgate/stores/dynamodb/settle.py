"""Settling a batch: rounds of deciding on what is believed, writing under conditions that prove it right, and learning.

A round decides all requests in order, on the items as they were last seen. What passes is written, one write for each
item whatever the number of requests; all writes leave at once. A write that succeeds says what the item was before, so
that the answers are exact. One whose condition did not hold says what the item is, and the next round knows better.

A request on several items passes when all of its writes have succeeded. If only some do, the others are tried again
with what they have told, and if it turns out to be refused, what was written is given back. Of items nothing is known
of, a request on several is read first and written in a transaction.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request
from ...core.errors import UNANSWERED, Contended, CorruptState, HeadgateError, PartlyAnswered, ValidationError
from ...core.names import parse_bucket_key
from ...plan import Plan, Sleep
from .conditional_writes import Place
from .cross_shard import CrossShard, longest_of
from .exchange import MoreTime
from .ledger import Ledger
from .namespaces import Moved, Namespaces
from .shards import Shards
from .usage_counters import UsageCounters
from .writer import News, Writer, Writes

log = logging.getLogger("headgate")

_ROUNDS = 60
_PATIENCE = 3  # rounds without a pause


class Job:
    """A request on its way. `levels`: of the parts that have been written, while others are still to come."""

    __slots__ = ("answer", "applied", "decided", "error", "ledgers", "levels", "raced", "request", "slow", "wide")

    def __init__(self, request: Request, ledgers: Sequence[Ledger]) -> None:
        self.request = request
        self.ledgers = ledgers  # by level
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

    def of(self, part: Part) -> Ledger:
        """The item that a part is about."""
        return self.ledgers[part.level]

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
        self.found(parts, ledger.apply(self.request, parts).levels)

    def found(self, parts: Sequence[Part], levels: Sequence[Level]) -> None:
        self.levels |= zip(parts, levels)
        if len(self.levels) == len(self.request.parts):
            levels = [self.levels[part] for part in self.request.parts]
            longest = longest_of(levels)
            self.answer = Answer(self.request.mode is not RENEW or longest is not None, longest, levels)

    def answered(self, rest: Request, answer: Answer) -> None:
        """The rest of it has an answer, or if nothing was written before, the whole."""
        if self.levels:
            self.found(rest.parts, answer.levels)
        else:
            self.answer = answer

    def refunds(self) -> list[Job]:
        """What gives back what was written so far."""
        taken: dict[Ledger, list[Part]] = {}
        for part in self.levels:
            taken.setdefault(self.of(part), []).append(part._replace(level=0, amount_milli=-part.amount_milli))
        self.levels.clear()
        lease_id = self.request.lease_id
        return [Job(Request(FORCE, ("",), tuple(parts), lease_id=lease_id), [one]) for one, parts in taken.items()]


class Settler:
    def __init__(
        self, writer: Writer, namespaces: Namespaces, shards: Shards, across: CrossShard, hours: UsageCounters
    ) -> None:
        self._writer = writer
        self._namespaces = namespaces
        self._shards = shards
        self._cross_shard = across
        self._usage_counters = hours

    def settle_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Answer]]:
        jobs = yield from self._jobs_plan(batch, now_ms)
        yield from self._settle_plan(jobs, now_ms)
        return answers_of(jobs)

    def _settle_plan(self, jobs: Sequence[Job], now_ms: int) -> Plan[None]:
        yield from self._answer_plan(jobs, now_ms)
        moved = [job for job in jobs if isinstance(job.error, Moved)]
        if moved:
            yield from self._anew_plan(moved, now_ms)
        try:
            yield from self._shards.relieve_plan()
        except HeadgateError as error:  # without the permission for it too: what was asked for has been done
            log.warning("hot buckets could not be spread over more items: %s", error)
        try:
            yield from self._usage_counters.put_away_plan()
        except HeadgateError as error:
            log.warning("what was used before this hour could not be put away: %s", error)

    def _anew_plan(self, moved: Sequence[Job], now_ms: int) -> Plan[None]:
        """Once, in the namespaces that there are now."""
        try:
            again = yield from self._jobs_plan([job.request for job in moved], now_ms)
        except UNANSWERED as error:
            for job in moved:
                job.error = error
            return
        yield from self._answer_plan(again, now_ms)
        for job, new in zip(moved, again):
            job.answer, job.error = new.answer, new.error

    def _answer_plan(self, jobs: Sequence[Job], now_ms: int) -> Plan[None]:
        in_vain, wide = yield from self._rounds_plan(jobs)
        for job in in_vain:
            job.error = Contended("too many others write to the same buckets of DynamoDB at once")
        refunds = [refund for job in in_vain if job.request.mode is TAKE for refund in job.refunds()]
        if refunds:
            yield from MoreTime()
            wide += (yield from self._rounds_plan(refunds))[1]
        if wide:
            yield from self._wide_plan(jobs, wide, now_ms)

    def _wide_plan(self, jobs: Sequence[Job], wide: Sequence[Job], now_ms: int) -> Plan[None]:
        """What concerns all shards: first what is given back, then the others in their order."""
        order = {job: place for place, job in enumerate(jobs)}
        for job in sorted(wide, key=lambda job: order.get(job, -1)):
            if job not in order:
                yield from MoreTime()
            yield from self._across_shards_plan(job, now_ms)

    def _rounds_plan(self, jobs: Sequence[Job]) -> Plan[tuple[list[Job], list[Job]]]:
        """As many as it takes; the jobs for which there were too few, and those that concern all shards."""
        waiting, wide = list(jobs), list[Job]()
        only_refunds = False
        for turn in range(_ROUNDS):
            waiting = yield from self._round_plan(waiting, wide)
            if not waiting:
                break
            if not only_refunds and all(job not in jobs for job in waiting):
                only_refunds = True
                yield from MoreTime()  # what was taken in vain is given back, even if the time was spent in taking it
            if turn >= _PATIENCE or any(ledger.throttled for job in waiting for ledger in job.ledgers):
                yield from Sleep(random.uniform(0.001, 0.004) * min(turn + 1, 20))
        return waiting, wide

    def _jobs_plan(self, batch: Sequence[Request], now_ms: int) -> Plan[list[Job]]:
        ledgers: dict[str, Ledger] = {}
        jobs = []
        written = written_keys(batch)
        for request in batch:
            for key in request.keys:
                if key not in ledgers:
                    namespace, entity_id, resource = parse_bucket_key(key)
                    ns = self._namespaces.known(namespace) or (
                        yield from self._namespaces.id_plan(namespace, register=key in written)
                    )
                    gives = request.mode is FORCE and all(part.amount_milli <= 0 for part in request.parts)
                    ledgers[key] = self._shards.ledger(Place(ns, entity_id, resource, 0), now_ms, gives=gives)
            jobs.append(Job(request, [ledgers[key] for key in request.keys]))
        return jobs

    def _across_shards_plan(self, job: Job, now_ms: int) -> Plan[None]:
        request = job.rest()
        try:
            answer = yield from self._cross_shard.settle_plan(request, [one.place for one in job.ledgers], now_ms)
        except UNANSWERED as error:
            job.error = error
            return
        job.answered(request, answer)

    def _still_there_plan(self, jobs: list[Job], vanished: Iterable[str]) -> Plan[list[Job]]:
        """The jobs whose namespaces have the ids that they had."""
        for ns in vanished:
            try:
                yield from self._namespaces.check_plan(ns)
            except UNANSWERED as error:
                for job in jobs:
                    if any(ledger.place.ns == ns for ledger in job.ledgers):
                        job.error = error
        return [job for job in jobs if not isinstance(job.error, Moved)]

    def _concerns_all(self, job: Job) -> bool:
        return job.wide or (not job.levels and self._shards.concerns_all(job.request, job.ledgers))

    def _round_plan(self, jobs: list[Job], wide: list[Job]) -> Plan[list[Job]]:
        """The jobs that need another one."""
        here: list[Job] = []
        for job in jobs:
            (wide if self._concerns_all(job) else here).append(job)
        jobs = here
        ledgers = {ledger: None for job in jobs for ledger in job.ledgers}
        for ledger in ledgers:
            ledger.begin()
        for job in jobs:
            _decide(job)
        writes = {ledger: write for ledger in ledgers if (write := ledger.write())}
        looks = [one for one in ledgers if one not in writes and one.shelf.looks_at(one)]
        news = yield from self._writer.round_plan(writes, looks)
        for ledger in ledgers:
            ledger.shelf.learn(ledger, news.get(ledger), writes.get(ledger))
        if vanished := {ledger.place.ns for ledger in ledgers if ledger.vanished}:
            jobs = yield from self._still_there_plan(jobs, vanished)
        waiting = self._conclude(jobs, writes, news, wide)
        for ledger in ledgers:
            ledger.shelf.cache.touch(ledger.place, ledger.seen_at_ms)
        return waiting

    def _conclude(self, jobs: Sequence[Job], writes: Writes, news: dict[Ledger, News], wide: list[Job]) -> list[Job]:
        waiting: list[Job] = []
        waited_for: set[Ledger] = set()
        for job in jobs:
            if not job.applied and self._concerns_all(job):
                wide.append(job)  # as it turns out
                continue
            _conclude(job, writes.keys(), news, waited_for)
            if job.levels and job.request.mode is TAKE and (job.error or not job.applied):
                waiting = job.refunds() + waiting
            if job.answer is not None and not job.answer.allowed and any(one.shards > 1 for one in job.ledgers):
                job.answer = None  # one shard refuses: all of them are asked
                wide.append(job)
            elif not job.over:
                waiting.append(job)
                waited_for.update(job.ledgers)
        return waiting


def written_keys(batch: Sequence[Request]) -> set[str]:
    return {key for request in batch if request.mode is not PEEK for key in request.keys}


def _decide(job: Job) -> None:
    """Decide on what is believed, and apply it. What has to be known better is said to be."""
    request, left = job.request, job.left()
    if request.mode is TAKE and len(left) > 1 and any(ledger.row is None for ledger in left):
        job.slow = not job.raced
    job.applied = job.decided = False
    if _is_unsure(job, left):
        for ledger in left:
            ledger.must_look = True
            ledger.held = True  # whoever comes later does not get in before
        return
    if request.mode is FORCE and any(ledger.shelf.overflows(ledger, parts) for ledger, parts in left.items()):
        job.wide = True
        return
    job.decided = True
    try:
        job.applied = request.mode is not PEEK and _passes(request, left)
    except ValidationError as error:
        job.error = error
    if job.applied:
        for ledger in left:
            ledger.together = ledger.together or job.slow
            ledger.insists = ledger.insists or job.slow
    else:
        for ledger in left:
            ledger.would_look = True


def _is_unsure(job: Job, left: Iterable[Ledger]) -> bool:
    """Whether too little is known to decide on."""
    mode = job.request.mode
    if any(ledger.blind or ledger.held for ledger in left):
        return True
    if mode is PENALIZE or mode is LOWER:
        return any(ledger.row is None for ledger in left)
    return (job.slow or mode is PEEK) and not all(ledger.sure for ledger in left)


def _passes(request: Request, left: dict[Ledger, list[Part]]) -> bool:
    """Whether it passes on all its items; then it has its effect on them."""
    on_several = request.mode is TAKE and len(left) > 1
    if on_several and not all(ledger.look(request, parts).allowed for ledger, parts in left.items()):
        _reshape(left)
        return False
    answers = [ledger.apply(request, parts) for ledger, parts in left.items()]
    return request.mode is RENEW or all(answer.allowed for answer in answers)


def _reshape(left: dict[Ledger, list[Part]]) -> None:
    """All that a refused request does."""
    for ledger, parts in left.items():
        for part in parts:
            ledger.reshape(part)


def _conclude(job: Job, written: Iterable[Ledger], news: dict[Ledger, News], waited_for: set[Ledger]) -> None:
    """What the round has told of a job. Items that one before it still waits for say nothing to it yet."""
    left = job.left()
    for ledger, parts in left.items():
        learnt = news.get(ledger)
        if learnt is not None and learnt.error is not None:
            job.error = learnt.error
        elif job.applied and (
            news[ledger].done
            if ledger in written
            else ledger.fresh and ledger not in waited_for and ledger.stays(job.request, parts)
        ):
            job.done(ledger, parts)
    if job.slow and job.applied and not job.over:
        job.slow, job.raced = False, True
    if job.over or job.applied or job.levels or not (job.decided or job.request.mode is PEEK):
        return
    if not left.keys().isdisjoint(waited_for):
        return
    if job.request.mode is not PEEK and any(ledger not in written and ledger.differs(left[ledger]) for ledger in left):
        return  # the item was only looked at, and has another limit: the one that was brought has to be written
    if all(ledger.sure and (ledger not in written or news[ledger].done) for ledger in left):
        job.answer = _not_applied(job.request, left)


def _not_applied(request: Request, left: dict[Ledger, list[Part]]) -> Answer | None:
    """The answer to one that was refused, or only looks; None to one that would pass after all."""
    look = request._replace(mode=PEEK)
    levels: dict[Part, Level] = {}
    for ledger, parts in left.items():
        levels |= zip(parts, ledger.look(look, parts).levels)
    longest = longest_of(levels.values())
    looks = request.mode is PEEK
    if not looks:
        if longest is not None and longest <= request.max_wait_ms and not _wait_for_slots(levels):
            return None
        _reshape(left)
    return Answer(looks, longest, [levels[part] for part in request.parts])


def _wait_for_slots(levels: dict[Part, Level]) -> bool:
    """Tokens can be had from the future, slots cannot."""
    return any(wait_ms and part.limit.is_concurrent for part, (_, wait_ms) in levels.items())


def answers_of(jobs: Sequence[Job]) -> list[Answer]:
    errors = [job.error for job in jobs if job.error is not None]
    answers = [job.answer for job in jobs if job.answer is not None and job.error is None]
    if not errors:
        return answers
    if not answers and not any(isinstance(error, CorruptState) for error in errors):
        raise errors[0]
    raise PartlyAnswered([result for job in jobs if (result := job.error or job.answer) is not None])

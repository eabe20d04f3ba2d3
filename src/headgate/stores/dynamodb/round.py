"""One round of a batch: all its requests are decided, and every item that changes is written once. It has five phases.

    believe    every item starts from what was last seen of it
    decide     all requests in their order, on the assumed state; one write for each item that changes
    write      all writes leave at once, together with reads of items of which too little is known
    learn      a successful write returns the item, from which follows what it was before; a failed condition, its state
    conclude   the decisions are applied to what was learnt: answers, or another round

A request on several items passes when all its writes have succeeded. If only some succeed, the others are tried again
with the state they returned. If the request is refused then, what was written is given back. If nothing is known of one
of several items, all of them are read first and written in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request
from ...core.errors import UNANSWERED, HeadgateError, ValidationError
from ...plan import Plan
from .conditional_writes import Write
from .ledger import Ledger, longest_wait
from .namespaces import NamespaceMoved, Namespaces
from .places import ItemPlace
from .rows import begins_with_use
from .writer import News, Writer

_NO_SLOTS: Mapping[int, Ledger] = MappingProxyType({})


class Job:
    """A request on its way through the rounds.

    `buckets`, `slots`: the items of its tokens and of its slots, by level. `ledgers`: those that its parts need.
    `levels`: of the parts that have been written, while others have not.
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
        self.slow = False  # its items are read first, then written in a transaction
        self.raced = False  # that failed, because other writers were faster
        self.wide = False  # decided on all shards, after the rounds
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
        """Some of it was taken, and the rest is refused."""
        return bool(self.levels) and self.request.mode is TAKE and (self.error is not None or not self.applied)

    @property
    def result(self) -> Answer | HeadgateError:
        result = self.error or self.answer
        assert result is not None, "the rounds end with an answer or an error"
        return result

    @property
    def places(self) -> list[ItemPlace]:
        """The places of its buckets, by level."""
        return [ledger.place for ledger in self.buckets]

    @property
    def concerns_all_shards(self) -> bool:
        """Whether one shard of a bucket is not enough to decide it."""
        if self.wide:
            return True
        if self.levels or all(ledger.shards == 1 for ledger in self.ledgers):
            return False
        parts = self.request.parts
        return (
            self.request.mode in (PEEK, PENALIZE, LOWER)
            or any(abs(part.amount_milli) * self.of(part).shards > part.limit.capacity_milli for part in parts)
            or any(_is_of_all(part, ledger) for part in parts if (ledger := self.of(part)).shards > 1)
        )

    def of(self, part: Part) -> Ledger:
        """The item of a part."""
        return (self.slots if self.slots and part.limit.is_concurrent else self.buckets)[part.level]

    def left(self) -> dict[Ledger, list[Part]]:
        """The parts that are not written yet, by item."""
        found: dict[Ledger, list[Part]] = {}
        for part in self.request.parts:
            if part not in self.levels:
                found.setdefault(self.of(part), []).append(part)
        return found

    def rest(self) -> Request:
        """The request without the parts that are written."""
        if not self.levels:
            return self.request
        return self.request._replace(parts=tuple(part for part in self.request.parts if part not in self.levels))

    def done(self, ledger: Ledger, parts: list[Part]) -> None:
        """These parts were written. When all are, the request has its answer."""
        self._found(parts, ledger.apply(self.request, parts).levels)

    def _found(self, parts: Sequence[Part], levels: Sequence[Level]) -> None:
        self.levels |= zip(parts, levels)
        if len(self.levels) == len(self.request.parts):
            levels = [self.levels[part] for part in self.request.parts]
            longest = longest_wait(levels)
            self.answer = Answer(self.request.mode is not RENEW or longest is not None, longest, levels)

    def answered(self, rest: Request, answer: Answer) -> None:
        """The rest of the request has an answer; if nothing was written before, the whole request."""
        if self.levels:
            self._found(rest.parts, answer.levels)
        else:
            self.answer = answer

    def refunds(self) -> list[Job]:
        """Jobs that give back what was written so far."""
        taken: dict[Ledger, list[Part]] = {}
        for part in self.levels:
            taken.setdefault(self.of(part), []).append(part._replace(level=0, amount_milli=-part.amount_milli))
        self.levels.clear()
        return [self._refund(ledger, parts) for ledger, parts in taken.items()]

    def _refund(self, ledger: Ledger, parts: Sequence[Part]) -> Job:
        return Job(Request(FORCE, ("",), tuple(parts), lease_id=self.request.lease_id), [ledger], {0: ledger})


class Round:
    """`waiting`: the jobs that need another round. `wide`: those that need all shards, and no round."""

    def __init__(self, jobs: Iterable[Job], writer: Writer, namespaces: Namespaces) -> None:
        self._writer = writer
        self._namespaces = namespaces
        self.waiting: list[Job] = []
        self.wide: list[Job] = []
        self._jobs: list[Job] = []
        for job in jobs:
            (self.wide if job.concerns_all_shards else self._jobs).append(job)
        self._ledgers = dict.fromkeys(ledger for job in self._jobs for ledger in job.ledgers)
        self._writes: dict[Ledger, Write] = {}
        self._news: dict[Ledger, News] = {}
        self._waited_for: set[Ledger] = (
            set()
        )  # items with an undecided earlier job: later jobs cannot conclude from them

    def run_plan(self) -> Plan[None]:
        self.believe()
        self.decide()
        yield from self.write_plan()
        yield from self.learn_plan()
        self.conclude()

    def believe(self) -> None:
        for ledger in self._ledgers:
            ledger.begin()

    def decide(self) -> None:
        for job in self._jobs:
            _decide(job)
        self._writes = {ledger: write for ledger in self._ledgers if (write := ledger.write())}

    def write_plan(self) -> Plan[None]:
        looks = [one for one in self._ledgers if one not in self._writes and one.source.looks_at(one)]
        self._news = yield from self._writer.write_plan(self._writes, looks)

    def learn_plan(self) -> Plan[None]:
        for ledger in self._ledgers:
            ledger.source.learn(ledger, self._news.get(ledger), self._writes.get(ledger))
        for ns in {ledger.place.ns for ledger in self._ledgers if ledger.vanished}:
            yield from self._check_plan(ns)
        self._jobs = [job for job in self._jobs if not isinstance(job.error, NamespaceMoved)]

    def _check_plan(self, ns: str) -> Plan[None]:
        """Whether a namespace still has this id. If not, its jobs are not concluded here."""
        try:
            yield from self._namespaces.check_plan(ns)
        except UNANSWERED as error:
            for job in self._jobs:
                if any(ledger.place.ns == ns for ledger in job.ledgers):
                    job.error = error

    def conclude(self) -> None:
        for job in self._jobs:
            if not job.applied and job.concerns_all_shards:
                self.wide.append(job)
            else:
                self._conclude_one(job)
        for ledger in self._ledgers:
            ledger.source.cache.touch(ledger.place, ledger.seen_at_ms)

    def _conclude_one(self, job: Job) -> None:
        left = job.left()
        self._take_in(job, left)
        if self._is_refused(job, left):
            job.answer = _not_applied(job.request, left)
        if job.is_in_vain:
            self.waiting[:0] = job.refunds()
        if job.is_refused and any(ledger.shards > 1 for ledger in job.ledgers):
            job.answer = None  # one shard refuses: decide on all of them
            self.wide.append(job)
        elif not job.over:
            self.waiting.append(job)
            self._waited_for.update(job.ledgers)

    def _take_in(self, job: Job, left: dict[Ledger, list[Part]]) -> None:
        """Take in the results of the writes of a job."""
        for ledger, parts in left.items():
            news = self._news.get(ledger)
            if news is not None and news.error is not None:
                job.error = news.error
            elif job.applied and self._is_done(job.request, ledger, parts):
                job.done(ledger, parts)
        if job.slow and job.applied and not job.over:
            job.slow, job.raced = False, True

    def _is_done(self, request: Request, ledger: Ledger, parts: Sequence[Part]) -> bool:
        """Whether a request that passes is in the item: it was written, or changes nothing there."""
        if ledger in self._writes:
            return self._news[ledger].done
        return ledger.fresh and ledger not in self._waited_for and ledger.stays(request, parts)

    def _is_refused(self, job: Job, left: dict[Ledger, list[Part]]) -> bool:
        """Whether the refusal of a job is certain, or, if it only reads, what it reads."""
        looks = job.request.mode is PEEK
        if job.over or job.applied or job.levels or not (job.decided or looks):
            return False
        if not left.keys().isdisjoint(self._waited_for):
            return False
        return all(self._is_certain(ledger, () if looks else parts) for ledger, parts in left.items())

    def _is_certain(self, ledger: Ledger, parts: Sequence[Part]) -> bool:
        """Whether an item is known well enough for a refusal, and has the limits of these parts."""
        if ledger in self._writes:
            return ledger.sure and self._news[ledger].done
        return ledger.sure and not ledger.differs(parts)


def _is_of_all(part: Part, ledger: Ledger) -> bool:
    """Whether a quota begins with its first use, is replaced by another limit, or replaces one. That is on all shards
    at once, or those that come later would be full again at an edge that the quota does not have.
    """
    if begins_with_use(part.limit):
        return True
    stored = ledger.row and ledger.row.states.get(part.limit.name)
    if stored is None or not (stored.limit.is_quota or part.limit.is_quota):
        return False
    return stored.limit.is_quota is not part.limit.is_quota or ledger.differs([part])


def _decide(job: Job) -> None:
    """Decide on the assumed state, with effect, or mark the items that must be read first."""
    mode, left = job.request.mode, job.left()
    job.applied = job.decided = False
    if mode is TAKE and len(left) > 1 and any(ledger.row is None for ledger in left):
        job.slow = not job.raced
    if _is_unsure(job, left):
        for ledger in left:
            ledger.must_look = ledger.held = True
    elif mode is FORCE and any(ledger.source.overflows(ledger, parts) for ledger, parts in left.items()):
        job.wide = True
    else:
        _apply(job, left)


def _is_unsure(job: Job, left: Iterable[Ledger]) -> bool:
    """Whether too little is known for a decision."""
    mode = job.request.mode
    if any(ledger.blind or ledger.held for ledger in left):
        return True
    if mode is PENALIZE or mode is LOWER:
        return any(ledger.row is None for ledger in left)
    return (job.slow or mode is PEEK) and not all(ledger.sure for ledger in left)


def _apply(job: Job, left: dict[Ledger, list[Part]]) -> None:
    job.decided = True
    try:
        job.applied = job.request.mode is not PEEK and _passes(job.request, left)
    except ValidationError as error:
        job.error = error
    for ledger in left:
        if not job.applied:
            ledger.would_look = True
        elif job.slow:
            ledger.together = ledger.insists = True


def _passes(request: Request, left: dict[Ledger, list[Part]]) -> bool:
    """Whether the request passes on all its items; if so, it takes effect on them."""
    on_several = request.mode is TAKE and len(left) > 1
    if on_several and not all(ledger.look(request, parts).allowed for ledger, parts in left.items()):
        _reshape(left)
        return False
    answers = [ledger.apply(request, parts) for ledger, parts in left.items()]
    return request.mode is RENEW or all(answer.allowed for answer in answers)


def _reshape(left: dict[Ledger, list[Part]]) -> None:
    """What even a refused request does: its limits take effect."""
    for ledger, parts in left.items():
        for part in parts:
            ledger.reshape(part)


def _not_applied(request: Request, left: dict[Ledger, list[Part]]) -> Answer | None:
    """The answer to a request that was refused or only reads; None if it would pass after all."""
    look = request._replace(mode=PEEK)
    levels: dict[Part, Level] = {}
    for ledger, parts in left.items():
        levels |= zip(parts, ledger.look(look, parts).levels)
    longest = longest_wait(levels.values())
    looks = request.mode is PEEK
    if not looks:
        if longest is not None and longest <= request.max_wait_ms and not _wait_in_vain(levels):
            return None
        _reshape(left)
    return Answer(looks, longest, [levels[part] for part in request.parts])


def _wait_in_vain(levels: dict[Part, Level]) -> bool:
    """Tokens of a bucket can be reserved in the future, others cannot."""
    return any(wait_ms and part.limit.refill_milli <= 0 for part, (_, wait_ms) in levels.items())

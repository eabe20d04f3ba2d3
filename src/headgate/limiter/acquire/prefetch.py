"""Prefetch: take from the store what the next requests are expected to need, and decide those here.

A slice is an ordinary take, so what is given out of it was counted before. It is used for at most `prefetch` seconds,
counted from before the store was asked. What is left of it then is given back; with a process that dies it is lost.

Nothing here performs a call: `ahead_plan` yields calls, and `Slices` has its time from a function.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...core.decide import LOWER, PEEK, PENALIZE, TAKE, Answer, Parts, Request
from ...core.errors import UNANSWERED, ValidationError
from ...core.units import MILLI
from ...plan import Call, DeleteBuckets, Nap, Plan, Settle, SettleAll, SettleEach
from ..clock import SystemClock
from ..fork import anew_after_fork
from .chain import Chain
from .slice import Slice, Stream
from .slot_queue import Bell

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_SECONDS = 10.0
_MOST_STREAMS = 10_000
_WALL = SystemClock()
_SKEW_MS = 1_000  # by which clocks may differ
_MOST_OF_A_KEY = 16  # they are searched one by one


class Revised(Protocol):
    @property
    def generation(self) -> int:
        """It changes when stored limits may have changed."""


def check_prefetch(value: Any) -> float:
    """As milliseconds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_SECONDS:
        raise ValidationError(f"prefetch must be a number of seconds from 0 (off) to {MOST_SECONDS:g}, not {value!r}")
    return float(value) * 1000


class Trip:
    """Something on its way to the store and back, on these buckets."""

    def __init__(self, slices: Slices, keys: Sequence[str], *, holds: bool) -> None:
        self._slices = slices
        self.keys = keys
        self.holds = holds  # tokens that are taken ahead, or given back
        self.alone = False  # nothing is taken ahead of its buckets meanwhile
        self.missed = False  # another one that held something has ended meanwhile
        self._bells: list[Bell] = []
        slices.set_out(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._slices.arrived(self)
        self.let_go()

    def let_go(self) -> None:
        """It holds nothing any more."""
        with self._slices.lock:
            if self.holds:
                for other in self._slices.trips(self.keys):
                    other.missed = True
            self.holds = False
            bells, self._bells = self._bells, []
        for bell in bells:
            bell.set()

    def alone_plan(self) -> Plan[GiveBack]:
        """Wait until no other one holds anything, and give back what slices hold. Nothing more is taken ahead."""
        self.alone = True
        slices = self._slices
        until = time.monotonic() + slices.patience
        while True:
            with slices.lock:
                other = next((one for one in slices.trips(self.keys) if one.holds and one is not self), None)
                if other is None:
                    return slices.surrender(self.keys)
                bell = slices.new_bell()
                other._bells.append(bell)
            yield from Nap(bell, slices.patience)
            if time.monotonic() > until:  # its event loop has ended under it
                other.let_go()


class GiveBack(Trip):
    def __init__(self, slices: Slices, requests: Sequence[Request]) -> None:
        self.requests = requests
        super().__init__(slices, [key for request in requests for key in request.keys], holds=bool(requests))

    def __bool__(self) -> bool:
        return self.holds


class Fill(Trip):
    """A request on its way to the store: with what is given back before it, and what is taken besides it."""

    def __init__(self, slices: Slices, keys: Sequence[str], stream: Stream | None, parts: Parts, began: float) -> None:
        self._stream = stream
        self._parts = parts
        self._began = began
        self._epoch = slices.epoch
        self._generation = slices.generation
        self.extra = [0] * len(parts)
        alone = any(trip.alone for trip in slices.trips(keys))
        if stream is not None and not stream.filling and not alone and slices.far_from_edges(parts):
            self.extra = stream.expected(parts, began, slices.span)
        super().__init__(slices, keys, holds=any(self.extra))
        if stream is not None and self.holds:
            stream.filling = True

    @property
    def enlarged(self) -> Parts:
        if not self.holds:
            return self._parts
        return tuple(
            part._replace(amount_milli=part.amount_milli + more) for part, more in zip(self._parts, self.extra)
        )

    def let_go(self) -> None:
        if self.holds and self._stream is not None:
            self._stream.filling = False
        super().let_go()

    @property
    def disturbed(self) -> bool:
        """Something may have been taken ahead of its buckets when it was answered."""
        slices = self._slices
        with slices.lock:
            held = any(trip.holds for trip in slices.trips(self.keys)) or slices.holds(self.keys)
            return held or self.missed

    def landed(self, answer: Answer) -> Answer:
        """The answer to the caller, as if nothing had been taken besides."""
        slices, stream = self._slices, self._stream
        with slices.lock:
            levels = [level for level, _ in answer.levels]
            if stream is not None:
                stream.levels = levels
            if not answer.allowed or stream is None or not self.holds:
                return answer
            made = Slice(stream, self.extra, levels, self._began, self._began + slices.span, self._generation)
            slices.keep(made, self._epoch)
        return Answer(True, 0, [(level + more, wait) for (level, wait), more in zip(answer.levels, self.extra)])


class Slices:
    """The slices of a limiter. `span`: for how long one is used, in milliseconds; `now` returns the time in those.

    Slices of another generation of the stored limits are dropped. Dropped tokens are not given back, because they may
    be none of the bucket's any more; that undersells by a slice and never oversells.
    """

    def __init__(
        self,
        span: float,
        now: Callable[[], float],
        limits: Revised,
        new_bell: Callable[[], Bell] = threading.Event,
        patience: float = 10.0,
        on_kept: Callable[[], object] = lambda: None,
        wall_ms: Callable[[], int] = _WALL.now_ms,
    ) -> None:
        self.span = span
        self._wall_ms = wall_ms
        self.patience = patience  # in seconds: no call to the store takes longer
        self.now = now
        self._limits = limits
        self.new_bell = new_bell
        self.epoch = 0  # slices that were asked for in another one are dropped
        self.on_kept = on_kept
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        """What was taken is the parent's, to give out and to give back."""
        self.lock = threading.RLock()
        self.epoch += 1
        self._streams: dict[tuple[str, ...], list[Stream]] = {}
        self._count = 0
        self._roomy_at = float("-inf")  # when it was last looked for streams to forget
        self._live: dict[int, Slice] = {}  # in the order in which they were asked for
        self._back: list[Request] = []
        self._trips: dict[str, list[Trip]] = {}  # by key

    @property
    def generation(self) -> int:
        return self._limits.generation

    def far_from_edges(self, parts: Parts) -> bool:
        """Whether what is taken ahead of quotas is used, or given back, in the window in which it was counted. The end
        of a window from first use is not known here."""
        for _, limit, _, _ in parts:
            if limit.is_quota:
                now_ms = self._wall_ms()
                if limit.calendar is None or limit.calendar.window(now_ms).ends_ms - now_ms < 2 * self.span + _SKEW_MS:
                    return False
        return True

    def give(self, keys: tuple[str, ...], parts: Parts) -> tuple[Slice, Answer] | None:
        """Decide here, if a slice covers every part."""
        with self.lock:
            for stream in self._streams.get(keys, ()):
                if stream.parts is parts or stream.fits(parts):
                    made = stream.slice
                    if made is None or made.generation != self._limits.generation:
                        return None
                    now = self.now()
                    if not made.began <= now < made.ends:
                        return None
                    answer = made.give(parts)
                    if answer is None:
                        return None
                    stream.note(parts, now, self.span)
                    return made, answer
        return None

    def give_back(self, made: Slice, parts: Parts) -> bool:
        """To the slice that it was given out of, while that lives."""
        with self.lock:
            places = {(part.level, part.limit.name): at for at, part in enumerate(made.stream.parts)}
            if not self._usable(made, self.now()) or not all((one.level, one.limit.name) in places for one in parts):
                return False
            for part in parts:
                made.left[places[part.level, part.limit.name]] += part.amount_milli
            return True

    def fill(self, keys: tuple[str, ...], parts: Parts) -> tuple[Fill, GiveBack]:
        """For a request that no slice covers: what to ask the store for, and what to give back before."""
        with self.lock:
            now = self.now()
            stream = self._stream(keys, parts, now)
            if stream is not None:
                if stream.slice is not None:
                    self._end(stream.slice)
                stream.note(parts, now, self.span)
            return Fill(self, keys, stream, parts, now), self.due()

    def set_out(self, trip: Trip) -> None:
        with self.lock:
            for key in trip.keys:
                self._trips.setdefault(key, []).append(trip)

    def arrived(self, trip: Trip) -> None:
        with self.lock:
            for key in trip.keys:
                under_way = self._trips.get(key, [])
                if trip in under_way:  # not in a fork
                    under_way.remove(trip)
                    if not under_way:
                        del self._trips[key]

    def trips(self, keys: Sequence[str]) -> Iterator[Trip]:
        for key in keys:
            yield from self._trips.get(key, ())

    def keep(self, made: Slice, epoch: int) -> None:
        """If it was asked for in another epoch, it is dropped."""
        if epoch != self.epoch or made.generation != self.generation:
            made.over = True
            return
        if made.stream.slice is not None:
            self._end(made.stream.slice)
        made.stream.slice = made
        self._live[id(made)] = made
        if not made.lives(self.now()):
            self._end(made)  # the store took too long
        self.on_kept()

    def due(self) -> GiveBack:
        """What has to be given back by now."""
        with self.lock:
            now = self.now()
            for made in list(self._live.values()):
                if made.lives(now):
                    break
                self._end(made)
            back, self._back = self._back, []
            return GiveBack(self, back)

    def surrender(self, keys: Sequence[str] | None = None) -> GiveBack:
        """End all slices that hold something of these buckets, or of any, and give back what is left of them."""
        with self.lock:
            for made in self._on(keys):
                self._end(made)
            return self.due()

    def drop(self, keys: Sequence[str]) -> None:
        """The buckets were penalized, lowered or reset."""
        with self.lock:
            self.epoch += 1
            for made in self._on(keys):
                self._forget(made)

    def holds(self, keys: Sequence[str]) -> bool:
        return bool(self._on(keys))

    def next_end(self) -> float | None:
        """In how many seconds something has to be given back."""
        with self.lock:
            ends = next((made.ends for made in self._live.values()), None)
            return None if ends is None else max(0.0, ends - self.now()) / MILLI

    def _on(self, keys: Sequence[str] | None) -> list[Slice]:
        return [made for made in self._live.values() if keys is None or not set(keys).isdisjoint(made.stream.keys)]

    def _usable(self, made: Slice, now: float) -> bool:
        return made.lives(now) and made.generation == self.generation

    def _end(self, made: Slice) -> None:
        rest = None if made.over else made.rest(self.now())
        if rest is not None and made.generation == self.generation:
            self._back.append(rest)
        self._forget(made)

    def _forget(self, made: Slice) -> None:
        made.over = True
        self._live.pop(id(made), None)
        if made.stream.slice is made:
            made.stream.slice = None

    def _stream(self, keys: tuple[str, ...], parts: Parts, now: float) -> Stream | None:
        alike = self._streams.get(keys, ())
        for stream in alike:
            if stream.fits(parts):
                return stream
        crowded = len(alike) >= _MOST_OF_A_KEY or self._count >= _MOST_STREAMS
        if crowded and not self._make_room(keys, now):
            return None
        stream = Stream(keys, parts)
        self._streams.setdefault(keys, []).append(stream)
        self._count += 1
        return stream

    def _make_room(self, keys: tuple[str, ...], now: float) -> bool:
        """Forget the streams that have run dry, at most once in a span. If most have not, new ones ask the store for
        every request."""
        if 0 <= now - self._roomy_at < self.span:
            return False
        self._roomy_at = now
        kept: dict[tuple[str, ...], list[Stream]] = {}
        for those, streams in self._streams.items():
            if busy := [stream for stream in streams if not stream.idle(now, self.span)]:
                kept[those] = busy
        self._streams, self._count = kept, sum(map(len, kept.values()))
        return self._count < _MOST_STREAMS and len(kept.get(keys, ())) < _MOST_OF_A_KEY


def ahead_plan(slices: Slices, chain: Chain, parts: Parts) -> Plan[Answer]:
    """Ask the store, for more than is needed now if more is expected. A refusal is the store's, for what is needed now,
    while no slice of this process holds anything of these buckets, nor is one on its way."""
    fill, back = slices.fill(chain.keys, parts)
    with fill:
        with back:
            answer = yield from _settle_plan(chain.request(fill.enlarged), back)
        if not answer.allowed and fill.disturbed:
            fill.let_go()
            with (yield from fill.alone_plan()) as back:
                answer = yield from _settle_plan(chain.request(parts), back)
        return fill.landed(answer)


def _settle_plan(request: Request, back: GiveBack) -> Plan[Answer]:
    """In one call, together with what is given back before. If that is not answered, it is lost."""
    if not back:
        return (yield from Settle(request))
    result = (yield from SettleEach([*back.requests, request]))[-1]
    if isinstance(result, UNANSWERED):
        raise result
    return result


def beside_plan(slices: Slices, call: Call[Any]) -> Plan[Any]:
    """Perform a call that takes nothing ahead. What takes or looks finds nothing of its buckets taken ahead here."""
    requests: Sequence[Request] = ()
    if isinstance(call, Settle):
        requests = (call.request,)
    elif isinstance(call, (SettleEach, SettleAll)):
        requests = call.batch
    keys = {key for request in requests if request.mode in (TAKE, PEEK) for key in request.keys}
    try:
        if not keys:
            return (yield call)
        with Trip(slices, tuple(keys), holds=False) as trip:
            with (yield from trip.alone_plan()) as back:
                if back:
                    yield from SettleEach(back.requests)
            return (yield call)
    finally:
        if dropped := _dropped_by(call):
            slices.drop(dropped)


def _dropped_by(call: Call[Any]) -> Sequence[str]:
    """The keys of the buckets whose slices a call ends: by a penalty, a vendor's word, or a reset."""
    if type(call) is Settle and call.request.mode in (PENALIZE, LOWER):
        return call.request.keys
    return call.keys if type(call) is DeleteBuckets else ()

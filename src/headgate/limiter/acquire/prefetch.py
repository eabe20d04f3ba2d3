"""Prefetch: take from the store what the next requests are expected to need, and decide those here.

A slice is an ordinary take, so what is given out of it was counted before. It is used for at most `prefetch` seconds,
counted from before the store was asked. What is left of it then is given back; with a process that dies it is lost.

Nothing here performs a call: `ahead_plan` yields calls, and `Slices` has its time from a function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from ...core.decide import FORCE, LOWER, PENALIZE, Answer, Parts, Request
from ...core.errors import UNANSWERED, ValidationError
from ...plan import Call, DeleteBuckets, Plan, Settle, SettleEach
from ..fork import anew_after_fork
from .chain import Chain

MOST_SECONDS = 10.0
_MOST_STREAMS = 10_000


def check_prefetch(value: Any) -> float:
    """As milliseconds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_SECONDS:
        raise ValidationError(f"prefetch must be a number of seconds from 0 (off) to {MOST_SECONDS:g}, not {value!r}")
    return float(value) * 1000


class Slice:
    """Millitokens for each part, to be given out from `began` until `ends`, unless it is `over` before."""

    __slots__ = ("_levels", "began", "ends", "generation", "left", "over", "stream")

    def __init__(
        self, stream: Stream, left: list[int], levels: list[int], began: float, ends: float, generation: int
    ) -> None:
        self.stream = stream
        self.left = left
        self._levels = levels  # what the store has left
        self.began = began
        self.ends = ends
        self.generation = generation
        self.over = False

    def lives(self, now: float) -> bool:
        """A clock that was set back ends it too."""
        return not self.over and self.began <= now < self.ends

    def give(self, parts: Parts) -> Answer | None:
        left = self.left
        for at, part in enumerate(parts):
            if part[2] > left[at]:
                return None
        for at, part in enumerate(parts):
            left[at] -= part[2]
        return Answer(True, 0, [(level + own, 0) for level, own in zip(self._levels, left)])

    def rest(self, now: float) -> Request | None:
        """Give back what is left, less what was refilled since it should have been: a bucket that was full again
        meanwhile would have both, and more would pass at once than is promised."""
        if now < self.began:
            return None  # how late it is, is not known
        late = max(0.0, now - self.ends)
        parts = []
        for part, milli in zip(self.stream.parts, self.left):
            back = milli - ceil(part.limit.refill_milli * late / part.limit.period_ms)
            if back > 0:
                parts.append(part._replace(amount_milli=-back))
        return Request(FORCE, self.stream.keys, tuple(parts)) if parts else None


class Stream:
    """The requests that name the same buckets under the same limits, and how much they asked for lately."""

    __slots__ = ("_asked", "_before", "_last", "_since", "filling", "keys", "levels", "parts", "slice")

    def __init__(self, keys: tuple[str, ...], parts: Parts) -> None:
        self.keys = keys
        self.parts = parts  # of the last request
        self.slice: Slice | None = None
        self.levels = [0] * len(parts)  # what the store said last was left
        self.filling = False
        self._asked = [0] * len(parts)  # since `_since`
        self._before = [0] * len(parts)  # in the span before
        self._since = self._last = float("-inf")

    def fits(self, parts: Parts) -> bool:
        if parts is self.parts:
            return True
        mine = self.parts
        if len(parts) != len(mine):
            return False
        for one, other in zip(parts, mine):
            if one[0] != other[0] or one[3] != other[3] or (one[1] is not other[1] and one[1] != other[1]):
                return False
        self.parts = parts
        return True

    def idle(self, now: float, span: float) -> bool:
        return self.slice is None and not self.filling and not 0 <= now - self._last <= span

    def note(self, parts: Parts, now: float, span: float) -> None:
        """A request has come, whoever answers it."""
        if not 0 <= now - self._last <= span:
            self._asked, self._before, self._since = [0] * len(parts), [0] * len(parts), now
        elif now - self._since >= span:
            self._before, self._asked, self._since = self._asked, [0] * len(parts), now
        self._last = now
        asked = self._asked
        for at, part in enumerate(parts):
            asked[at] += part[2]

    def expected(self, parts: Parts, now: float, span: float) -> list[int]:
        """What to take besides this request, which is noted already: as much as was asked for within the last span,
        and at most a quarter of what the store has left."""
        share = 1 - (now - self._since) / span
        return [
            max(0, min(asked - part.amount_milli + int(before * share), level // 4))
            for part, asked, before, level in zip(parts, self._asked, self._before, self.levels)
        ]


class Fill:
    """A request on its way to the store: with what is given back before it, and what is taken besides it."""

    def __init__(self, slices: Slices, stream: Stream | None, parts: Parts, began: float) -> None:
        self._slices = slices
        self._stream = stream
        self._parts = parts
        self._began = began
        self._epoch = slices.epoch
        self._generation = slices.generation()
        self.extra = [0] * len(parts)

    @property
    def enlarged(self) -> Parts:
        return tuple(
            part._replace(amount_milli=part.amount_milli + more) if more else part
            for part, more in zip(self._parts, self.extra)
        )

    def failed(self) -> None:
        if any(self.extra) and self._stream is not None:
            self._stream.filling = False

    def landed(self, answer: Answer) -> Answer:
        """The answer to the caller, as if nothing had been taken besides."""
        slices, stream = self._slices, self._stream
        with slices.lock:
            self.failed()  # not filling any more
            levels = [level for level, _ in answer.levels]
            if stream is not None:
                stream.levels = levels
            if not answer.allowed or stream is None or not any(self.extra):
                return answer
            made = Slice(stream, self.extra, levels, self._began, self._began + slices.span, self._generation)
            slices.keep(made, self._epoch)
        return Answer(True, 0, [(level + more, wait) for (level, wait), more in zip(answer.levels, self.extra)])


class Slices:
    """The slices of a limiter. `span`: for how long one is used, in milliseconds; `now` returns the time in those.

    `generation` changes when stored limits may have changed: slices of another one are dropped. Dropped tokens are
    not given back, because they may be none of the bucket's any more; that undersells by a slice and never oversells.
    """

    def __init__(
        self,
        span: float,
        now: Callable[[], float],
        generation: Callable[[], int],
        on_kept: Callable[[], object] = lambda: None,
    ) -> None:
        self.span = span
        self.now = now
        self.generation = generation
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
        self._live: dict[int, Slice] = {}  # in the order in which they were asked for
        self._back: list[Request] = []

    def give(self, keys: tuple[str, ...], parts: Parts) -> tuple[Slice, Answer] | None:
        """Decide here, if a slice covers every part."""
        with self.lock:
            for stream in self._streams.get(keys, ()):
                if stream.fits(parts):
                    made = stream.slice
                    if made is None:
                        return None
                    now = self.now()
                    if not made.lives(now) or made.generation != self.generation():
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

    def fill(self, keys: tuple[str, ...], parts: Parts) -> tuple[Fill, list[Request]]:
        """For a request that no slice covers: what to ask the store for, and what to give back before."""
        with self.lock:
            now = self.now()
            stream = self._stream(keys, parts, now)
            fill = Fill(self, stream, parts, now)
            if stream is None:
                return fill, self.due()
            if stream.slice is not None:
                self._end(stream.slice)
            stream.note(parts, now, self.span)
            if not stream.filling:
                fill.extra = stream.expected(parts, now, self.span)
                stream.filling = any(fill.extra)
            return fill, self.due()

    def keep(self, made: Slice, epoch: int) -> None:
        """If it was asked for in another epoch, it is dropped."""
        if epoch != self.epoch or made.generation != self.generation():
            made.over = True
            return
        if made.stream.slice is not None:
            self._end(made.stream.slice)
        made.stream.slice = made
        self._live[id(made)] = made
        if not made.lives(self.now()):
            self._end(made)  # the store took too long
        self.on_kept()

    def due(self) -> list[Request]:
        """What has to be given back by now."""
        if not self._live and not self._back:
            return []
        with self.lock:
            now = self.now()
            for made in list(self._live.values()):
                if made.lives(now):
                    break
                self._end(made)
            back, self._back = self._back, []
            return back

    def surrender(self, keys: Sequence[str] | None = None) -> list[Request]:
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

    def next_end(self) -> float | None:
        with self.lock:
            for made in self._live.values():
                return made.ends
        return None

    def _on(self, keys: Sequence[str] | None) -> list[Slice]:
        return [made for made in self._live.values() if keys is None or not set(keys).isdisjoint(made.stream.keys)]

    def _usable(self, made: Slice, now: float) -> bool:
        return made.lives(now) and made.generation == self.generation()

    def _end(self, made: Slice) -> None:
        rest = None if made.over else made.rest(self.now())
        if rest is not None and made.generation == self.generation():
            self._back.append(rest)
        self._forget(made)

    def _forget(self, made: Slice) -> None:
        made.over = True
        self._live.pop(id(made), None)
        if made.stream.slice is made:
            made.stream.slice = None

    def _stream(self, keys: tuple[str, ...], parts: Parts, now: float) -> Stream | None:
        for stream in self._streams.get(keys, ()):
            if stream.fits(parts):
                return stream
        if self._count >= _MOST_STREAMS and not self._make_room(now):
            return None
        stream = Stream(keys, parts)
        self._streams.setdefault(keys, []).append(stream)
        self._count += 1
        return stream

    def _make_room(self, now: float) -> bool:
        """Forget the streams that have run dry. If most have not, new ones ask the store for every request."""
        kept: dict[tuple[str, ...], list[Stream]] = {}
        for keys, streams in self._streams.items():
            if busy := [stream for stream in streams if not stream.idle(now, self.span)]:
                kept[keys] = busy
        self._streams, self._count = kept, sum(map(len, kept.values()))
        return self._count < _MOST_STREAMS


def ahead_plan(slices: Slices, chain: Chain, parts: Parts) -> Plan[Answer]:
    """Ask the store, for more than is needed now if more is expected. A refusal is the store's, for what is needed now,
    while no slice of this process holds anything of these buckets."""
    fill, back = slices.fill(chain.keys, parts)
    try:
        answer = yield from _settle_plan(chain.request(fill.enlarged), back)
        if not answer.allowed:
            back = slices.surrender(chain.keys)
            if back or any(fill.extra):
                fill.failed()
                fill.extra = [0] * len(parts)
                answer = yield from _settle_plan(chain.request(parts), back)
    except BaseException:
        fill.failed()
        raise
    return fill.landed(answer)


def _settle_plan(request: Request, back: Sequence[Request]) -> Plan[Answer]:
    """In one call, together with what is given back before. If that is not answered, it is lost."""
    if not back:
        return (yield from Settle(request))
    result = (yield from SettleEach([*back, request]))[-1]
    if isinstance(result, UNANSWERED):
        raise result
    return result


def dropped_by(call: Call[Any]) -> Sequence[str]:
    """The keys of the buckets whose slices a call ends: by a penalty, a vendor's word, or a reset."""
    if type(call) is Settle and call.request.mode in (PENALIZE, LOWER):
        return call.request.keys
    return call.keys if type(call) is DeleteBuckets else ()

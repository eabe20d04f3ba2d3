"""A slice: tokens that were taken ahead, and the stream of requests that they are for."""

from __future__ import annotations

from math import ceil

from ...core.decide import FORCE, Answer, Parts, Request


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
        left, levels = self.left, self._levels
        if len(parts) == 1:  # as most are
            own = left[0] - parts[0][2]
            if own < 0:
                return None
            left[0] = own
            return Answer(True, 0, [(levels[0] + own, 0)])
        rest = [own - part[2] for own, part in zip(left, parts)]
        if min(rest) < 0:
            return None
        left[:] = rest
        return Answer(True, 0, [(level + own, 0) for level, own in zip(levels, rest)])

    def rest(self, now: float) -> Request | None:
        """Give back what is left, less what was refilled since it should have been: a bucket that was full again
        meanwhile would have both, and more would pass at once than is promised. What is left of a quota is lost when it
        is so late that the window may be over."""
        if now < self.began:
            return None  # how late it is, is not known
        late = max(0.0, now - self.ends)
        parts = []
        for part, milli in zip(self.stream.parts, self.left):
            if part.limit.is_quota:
                back = milli if late < self.ends - self.began else 0
            else:
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
        """Count a request, whether it is decided here or by the store."""
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
        and at most a quarter of what the store has left. Nothing, unless that is enough for one more like it."""
        share = 1 - (now - self._since) / span
        more = [
            min(asked - part.amount_milli + int(before * share), level // 4)
            for part, asked, before, level in zip(parts, self._asked, self._before, self.levels)
        ]
        enough = all(part.amount_milli <= own for part, own in zip(parts, more))
        return more if enough else [0] * len(parts)

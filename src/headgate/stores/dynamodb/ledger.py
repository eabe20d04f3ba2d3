"""One item during a round: what is believed of it, what is decided on that, and the write that makes it so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

from ...core.bucket import Bucket
from ...core.decide import RENEW, Answer, Part, Request, decide
from ...core.limit import Limit
from ...core.slots import Slots
from .conditional_writes import Place, Write
from .exchange import Item
from .rows import Row

if TYPE_CHECKING:
    from .source import Source


class Ledger(ABC):
    """The account of one item during a call: what is believed of it, what was decided on that, and the write for it.

    `fresh`: it comes from DynamoDB, in this call. `together`: it is to be written in a transaction. `insists`: only if
    it is what is believed, to the last digit. `throttled`: the last write of it was too much for DynamoDB. `vanished`:
    it was there before, and is not any more.
    """

    source: Source  # where it was found, and what is learnt of it goes to
    _base: Row

    def __init__(self, place: Place, row: Row | None, now_ms: int, seen_at_ms: Mapping[str, int] | None = None) -> None:
        self.place = place
        self.row = row
        self.now_ms = now_ms
        self.seen_at_ms = dict(seen_at_ms or {})  # of each limit, when it was last looked at
        self.fresh = self.trusted = self.throttled = False
        self.doubtful = self.looked_into = False  # it could not be written: it has to be, and was, looked at
        self._times: dict[str, int] = {}
        self.begin()

    @property
    def sure(self) -> bool:
        return self.fresh or self.trusted

    @property
    def blind(self) -> bool:
        """Nothing is known of a shard. It may not exist yet, and may not be made by the way. Or it may be corrupt."""
        return (self.row is None and self.place.shard > 0) or self.doubtful

    @property
    def shards(self) -> int:
        """Of how many it is one; of one that nothing is known of, at least two."""
        return self.row.shard_count if self.row else 2 if self.place.shard else 1

    def begin(self) -> None:
        """A new round, on what is believed now."""
        self._changed: set[str] = set()  # by more than amounts: in their limit, or by a penalty
        self.together = self.insists = self.must_look = self.would_look = self.held = self.vanished = False
        self._start_from(self.row)

    @abstractmethod
    def _start_from(self, row: Row | None) -> None:
        """Decide on this from now on."""

    @staticmethod
    @abstractmethod
    def read(item: Item) -> Row:
        """What an item says."""

    @abstractmethod
    def _state(self, part: Part) -> Bucket | Slots:
        """What the item has for a part, as it was left by those before."""

    @abstractmethod
    def _note(self, part: Part, limit: Limit, request: Request) -> None:
        """A part had its effect: what is to be written, and has to be so for that."""

    @abstractmethod
    def _before(self, row: Row, write: Write) -> Row:
        """What the item was before a write, of which it has become `row`."""

    @abstractmethod
    def write(self) -> Write | None:
        """What has to be written, or None if nothing has changed."""

    @abstractmethod
    def written(self, write: Write) -> Row:
        """The item after a write, if nobody else has written to it."""

    def _time(self, name: str) -> int:
        """When a limit is decided on: now, or when it was last looked at or written. Once it has come from DynamoDB in
        this call, it stays the same: those who write meanwhile do so later, and to run after them would have no end."""
        time_ms = self._times.get(name)
        if time_ms is None:
            state = self._base.states.get(name)
            time_ms = max(self.now_ms, self.seen_at_ms.get(name, 0), state.at_ms if state else 0)
            if self.fresh:
                self._times[name] = time_ms
        return time_ms

    def _scaled(self, parts: Sequence[Part]) -> Sequence[Part]:
        shards = self.shards
        return parts if shards == 1 else [part._replace(amount_milli=part.amount_milli * shards) for part in parts]

    def look(self, request: Request, parts: Sequence[Part]) -> Answer:
        """What the answer to the parts of a request on this item would be."""
        parts = self._scaled(parts)
        states = [copy(self._state(part)) for part in parts]
        return decide(request._replace(parts=tuple(parts)), states, self.now_ms)

    def apply(self, request: Request, parts: Sequence[Part]) -> Answer:
        """Answer the parts of a request on this item, and let it have its effect."""
        parts = self._scaled(parts)
        states = [self._state(part) for part in parts]
        limits = [state.limit for state in states]
        answer = decide(request._replace(parts=tuple(parts)), states, self.now_ms)
        self._changed |= {limit.name for limit, state in zip(limits, states) if state.limit is not limit}
        if answer.allowed or request.mode is RENEW:
            for part, state in zip(parts, states):
                self._note(part, state.limit, request)
        return answer

    def stays(self, request: Request, parts: Sequence[Part]) -> bool:
        """Whether a request that is never refused changes nothing here."""
        parts = self._scaled(parts)
        states = [self._state(part) for part in parts]
        twins = [_twin(state) for state in states]
        decide(request._replace(parts=tuple(parts)), twins, self.now_ms)
        return all(map(_same, states, twins))

    def reshape(self, part: Part) -> None:
        """What even a refused request does: the limit it brought holds from now on."""
        state = self._state(part)
        if state.limit != part.limit:
            state.reshape(part.limit, part.revision)
            self._changed.add(part.limit.name)

    def differs(self, parts: Sequence[Part]) -> bool:
        """Whether a request on this item brings a limit that is to replace the one there is."""
        for part in parts:
            state = copy(self._state(part))
            if state.limit != part.limit:
                state.reshape(part.limit, part.revision)
                if state.limit == part.limit:
                    return True
        return False

    def learn(self, row: Row | None, write: Write | None = None) -> None:
        """The item is so now, and if there is a `write`, because of it."""
        before = row if row is None or write is None else self._before(row, write)
        self.row = row
        self.fresh = row is not None
        self.looked_into, self.doubtful = self.looked_into or self.doubtful, False
        self.trusted = False
        self._start_from(before)

    def replay(self) -> None:
        """Nothing was learnt: what was decided is decided again on the same."""
        self._start_from(self.row)


def _twin(state: Bucket | Slots) -> Bucket | Slots:
    twin = copy(state)
    twin.changed = False
    if isinstance(twin, Slots):
        twin.holders = dict(twin.holders)
    return twin


def _same(state: Bucket | Slots, after: Bucket | Slots) -> bool:
    if isinstance(state, Slots) and isinstance(after, Slots):
        blocked = after.blocked_until_ms != state.blocked_until_ms
        return state.holders == after.holders and state.limit == after.limit and not blocked
    return not after.changed

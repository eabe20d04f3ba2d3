"""Slots during a round: whose entries are changed, or many of them at once."""

from __future__ import annotations

from collections.abc import Sequence, Set

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, TAKE, Answer, Mode, Part, Request
from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.slots import Slots
from .conditional_writes import Write
from .ledger import Ledger
from .rows import NEW, Held, Row
from .slot_items import MOST_HOLDERS, EntriesWrite, Entry, WholeWrite, milli_of, read_slots, slots_of, state_of_slots

_FEW = 25  # an expression has a greatest length


class SlotLedger(Ledger):
    read = staticmethod(read_slots)

    def begin(self) -> None:
        self._touched: dict[tuple[str, str], Held | None] = {}  # by limit and lease: what it held before
        self._holds: dict[tuple[str, str], Held | None] = {}  # and what it holds now
        self._moved: set[str] = set()  # limits with such leases, be it that they hold again what they held
        self._more: dict[str, int] = {}  # of each limit, how many more are held than before
        self._most: dict[str, int] = {}  # at most, just after somebody took
        self._repeatable = True
        self._noted = False  # something was decided, if only that nothing changes
        super().begin()

    def _start_from(self, row: Row | None) -> None:
        self._base = row or NEW
        self._slots: dict[str, Slots] = {}

    def _state(self, part: Part) -> Slots:
        name = part.limit.name
        found = self._slots.get(name)
        if found is None:
            state, now_ms = self._base.states.get(name), self._time(name)
            found = slots_of(state, now_ms) if state else Slots(part.limit, now_ms, revision=part.revision)
            self._slots[name] = found
            self.seen_at_ms[name] = now_ms
        return found

    def look(self, request: Request, parts: Sequence[Part]) -> Answer:
        looked = super().look(request._replace(mode=PEEK), parts)
        if request.mode is TAKE:
            self._check(request, parts)
        return Answer(looked.wait_ms == 0, looked.wait_ms, looked.levels)

    def apply(self, request: Request, parts: Sequence[Part]) -> Answer:
        if request.mode is TAKE:
            self._check(request, parts)
        return super().apply(request, parts)

    def _check(self, request: Request, parts: Sequence[Part]) -> None:
        if not request.lease_id:
            raise ValidationError("slots are taken for a lease: the request has no lease_id")
        holders = sum(len(state.holders) for state in self._base.states.values())
        if holders + len(self._touched) < MOST_HOLDERS:
            return
        for part in parts:
            slots = self._state(part)
            others = sum(len(state.holders) for name, state in self._base.states.items() if name != part.limit.name)
            if request.lease_id not in slots.holders and others + len(slots.holders) >= MOST_HOLDERS:
                raise ValidationError(
                    f"{MOST_HOLDERS:,} leases hold slots of entity {self.place.entity_id!r} on resource "
                    f"{self.place.resource!r}, and DynamoDB has no room for more in one item: spread them over several "
                    "resources or entities"
                )

    def _note(self, part: Part, limit: Limit, request: Request) -> None:
        self._noted = True
        if request.mode is PENALIZE:
            self._changed.add(limit.name)
        if request.mode not in (PENALIZE, LOWER) and request.lease_id:
            self._note_lease(limit.name, request.lease_id, request.mode)

    def _note_lease(self, name: str, lease_id: str, mode: Mode) -> None:
        lease = name, lease_id
        if lease not in self._touched:
            state = self._base.states.get(name)
            self._touched[lease] = self._holds[lease] = state.holders.get(lease_id) if state else None
        held, holds = self._holds[lease], self._slots[name].holders.get(lease_id)
        if holds != held:
            self._moved.add(name)
        more = self._more[name] = self._more.get(name, 0) + milli_of(holds) - milli_of(held)
        self._holds[lease] = holds
        if mode is TAKE or (mode is FORCE and holds):
            self._repeatable = False
        if mode is TAKE:
            self._most[name] = max(self._most.get(name, more), more)

    def write(self) -> Write | None:
        changed = self._moved | {name for name in self._changed if self._slots[name].changed}
        if not changed:
            self.must_look = self.must_look or (self._noted and not self.fresh)
            return None
        return self._write(changed)

    def _write(self, changed: Set[str]) -> Write:
        states = {name: state_of_slots(slots) for name, slots in self._slots.items() if name in changed}
        needed_ms = max(self._slots[name].full_at_ms() for name in changed) - self.now_ms
        entries = self._entries()
        if self.row is None or not self._commutes(entries):
            return WholeWrite(self.place, self.row, needed_ms, states, self._repeatable)
        states |= {entry.name: state_of_slots(self._slots[entry.name]) for entry in entries}
        rooms = {name: self._slots[name].limit.capacity_milli - most for name, most in self._most.items()}
        return EntriesWrite(self.place, self.row, needed_ms, entries, states, rooms, self._repeatable)

    def _entries(self) -> list[Entry]:
        return [
            Entry(name, lease_id, before, self._slots[name].holders.get(lease_id))
            for (name, lease_id), before in self._touched.items()
        ]

    def _commutes(self, entries: Sequence[Entry]) -> bool:
        """Whether it is enough that the entries are what they are believed to be, and that there is room."""
        known = (self.row or NEW).states
        return (
            not self.insists
            and not self._changed
            and len(entries) <= _FEW
            and all(entry.name in known for entry in entries)
            and all(known[name].v + most <= self._slots[name].limit.capacity_milli for name, most in self._most.items())
            and sum(len(state.holders) for state in known.values()) + len(entries) <= MOST_HOLDERS
        )

    def _before(self, row: Row, write: Write) -> Row:
        if isinstance(write, WholeWrite):
            return self.row or NEW
        assert isinstance(write, EntriesWrite)
        states = dict(row.states)
        for name in write.states:
            holders = dict(row.states[name].holders)
            for entry in write.entries:
                if entry.name == name:
                    holders.pop(entry.lease_id, None)
                    if entry.before is not None:
                        holders[entry.lease_id] = entry.before
            states[name] = row.states[name]._replace(holders=holders)
        return row._replace(states=states)

    def written(self, write: Write) -> Row:
        assert isinstance(write, EntriesWrite | WholeWrite)
        row = self.row or NEW
        return row._replace(states={**row.states, **write.states}, writes=row.writes + 1)

"""Slots as an item of the table: the leases that hold them, how many each, and until when.

One item has all concurrent limits of an entity on a resource. It is beside their buckets, and is never split.

    s_{limit}_lm            the limit, with a penalty if there is one
    s_{limit}_h             by lease id: its expiry, and after a slash its millislots if they are not 1000
    s_{limit}_n             how many are taken, including expired ones that are still there
    s_{limit}_at, _rv       the last write by the writer's clock; the revision of the stored limit
    ver, ttl                number of writes; when DynamoDB may delete it

A take, a renewal and a release write only the entries of their leases, on the condition that the entries are as assumed
and `n` is low enough. So they do not block each other. Expired entries stay until their room is needed. Removing them,
a new limit, a penalty, and changes of many leases write the whole item, on the condition that its `ver` is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence, Set
from typing import Any, NamedTuple

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, TAKE, Answer, Mode, Part, Request
from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.slots import Slots
from ...core.stored import is_sound_slots
from ...core.units import shown
from .conditional_writes import Write, time_to_live
from .exchange import Attributes, Item, Send
from .items import attribute
from .ledger import Ledger
from .places import ItemPlace
from .rows import NEW, Held, Row, RowState, number, read_limit, reading, written_limit

PREFIX = "s_"
SUFFIXES = ("lm", "h", "n", "at", "rv")
MOST_HOLDERS = 7_500  # an entry is about 50 bytes, and an item at most 400 KB

_ONE = 1000


def read_slots(item: Item) -> Row:
    with reading(item):
        return _read_slots(item)


def _read_slots(item: Item) -> Row:
    states: dict[str, RowState] = {}
    for name_of, value in item.items():
        if name_of.startswith(PREFIX) and name_of.endswith("_lm"):
            start = name_of[: -len("lm")]
            name = start[len(PREFIX) : -1]
            limit, blocked_until_ms, _ = read_limit(name, value["S"])
            holders = {lease_id: _read_held(entry["S"]) for lease_id, entry in item[f"{start}h"]["M"].items()}
            held, at_ms, revision = (number(item, f"{start}{suffix}") for suffix in ("n", "at", "rv"))
            if limit.refill_milli or held < 0 or not is_sound_slots(at_ms, blocked_until_ms, revision, holders):
                raise ValueError(
                    f"limit {name} has {shown((held, at_ms, revision, blocked_until_ms, *holders.values()))}"
                )
            states[name] = RowState(limit, held, at_ms, revision, value["S"], blocked_until_ms, 0, holders)
    return Row(states, 1, number(item, "ttl"), number(item, "ver"))


def slots_of(state: RowState, now_ms: int) -> Slots:
    return Slots(state.limit, now_ms, dict(state.holders), state.blocked_until_ms, state.revision)


def state_of_slots(slots: Slots) -> RowState:
    at_ms = slots.settled_at_ms
    blocked = slots.blocked_until_ms if slots.blocked_until_ms > at_ms else 0
    written = written_limit(slots.limit, blocked)
    return RowState(slots.limit, slots.held_milli, at_ms, slots.revision, written, blocked, 0, dict(slots.holders))


def _read_held(text: str) -> Held:
    until_ms, _, milli = text.partition("/")
    return int(milli or _ONE), int(until_ms)


def _written_held(held: Held) -> Attributes:
    milli, until_ms = held
    return attribute(f"{until_ms}" if milli == _ONE else f"{until_ms}/{milli}")


class Entry(NamedTuple):
    """What a lease holds of a limit: what it must be, and what it becomes."""

    name: str
    lease_id: str
    before: Held | None
    after: Held | None


class _SlotExpression:
    """`ttl`: the time to live to write, or 0."""

    def __init__(self, row: Row | None, needed_ms: int) -> None:
        self.ttl = time_to_live(row, needed_ms)
        self.sets: list[str] = []
        self.removes: list[str] = []
        self.adds = ["#ver :one"]
        self.conditions: list[str] = []
        self.names = {"#ver": "ver"}
        self.values = {":one": attribute(1)}
        if self.ttl:
            self.set("#ttl", "ttl", ":ttl", attribute(self.ttl))

    def set(self, name: str, attribute_name: str, value_name: str, value: Attributes) -> None:
        self.names[name], self.values[value_name] = attribute_name, value
        self.sets.append(f"{name} = {value_name}")

    def parameters(self, table: str, place: ItemPlace) -> dict[str, Any]:
        parts = [("SET", self.sets), ("REMOVE", self.removes), ("ADD", self.adds)]
        return {
            "TableName": table,
            "Key": place.key,
            "UpdateExpression": " ".join(f"{word} {', '.join(some)}" for word, some in parts if some),
            "ConditionExpression": " AND ".join(self.conditions),
            "ExpressionAttributeNames": self.names,
            "ExpressionAttributeValues": self.values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


class EntriesWrite(NamedTuple):
    """The entries of some leases. `states`: the new states of their limits. `rooms`: for limits of which more are
    taken, the most that may be taken already. `repeatable`: nothing is taken, and leases give back all they hold or
    nothing.
    """

    place: ItemPlace
    row: Row
    needed_ms: int
    entries: Sequence[Entry]
    states: Mapping[str, RowState]
    rooms: Mapping[str, int]
    repeatable: bool

    def update(self, table: str) -> Send:
        return Send("UpdateItem", {**self.transact(table), "ReturnValues": "ALL_NEW"}, self.repeatable)

    def transact(self, table: str) -> dict[str, Any]:
        expression = _SlotExpression(self.row, self.needed_ms)
        if expression.ttl:
            expression.conditions.append("(attribute_not_exists(#ttl) OR #ttl < :ttl)")
        moved = dict.fromkeys(self.states, 0)
        for j, entry in enumerate(self.entries):
            moved[entry.name] += milli_of(entry.after) - milli_of(entry.before)
            self._add_entry(expression, j, entry)
        for i, (name, state) in enumerate(self.states.items()):
            for short, suffix in (("h", "h"), ("n", "n"), ("l", "lm")):
                expression.names[f"#{short}{i}"] = f"{PREFIX}{name}_{suffix}"
            expression.set(f"#t{i}", f"{PREFIX}{name}_at", f":t{i}", attribute(state.at_ms))
            expression.adds.append(f"#n{i} :n{i}")
            expression.conditions.append(f"#l{i} = :l{i}")
            expression.values |= {f":n{i}": attribute(moved[name]), f":l{i}": attribute(self.row.states[name].written)}
            if name in self.rooms:
                expression.conditions.append(f"#n{i} <= :r{i}")
                expression.values[f":r{i}"] = attribute(self.rooms[name])
        return expression.parameters(table, self.place)

    def _add_entry(self, expression: _SlotExpression, j: int, entry: Entry) -> None:
        path = f"#h{list(self.states).index(entry.name)}.#e{j}"
        expression.names[f"#e{j}"] = entry.lease_id
        if entry.before is None:
            expression.conditions.append(f"attribute_not_exists({path})")
        else:
            expression.conditions.append(f"{path} = :b{j}")
            expression.values[f":b{j}"] = _written_held(entry.before)
        if entry.after == entry.before:
            return
        if entry.after is None:
            expression.removes.append(path)
        else:
            expression.sets.append(f"{path} = :e{j}")
            expression.values[f":e{j}"] = _written_held(entry.after)

    def statement(self, table: str) -> None:
        return None


class WholeWrite(NamedTuple):
    """All of some limits, if the item is `row`."""

    place: ItemPlace
    row: Row | None
    needed_ms: int
    states: Mapping[str, RowState]
    repeatable: bool

    def update(self, table: str) -> Send:
        return Send("UpdateItem", {**self.transact(table), "ReturnValues": "ALL_NEW"}, self.repeatable)

    def transact(self, table: str) -> dict[str, Any]:
        expression = _SlotExpression(self.row, self.needed_ms)
        if self.row is not None and self.row.writes:
            expression.values[":ver"] = attribute(self.row.writes)
            expression.conditions.append("#ver = :ver")
        else:
            expression.conditions.append("attribute_not_exists(#ver)")
            for k, (name, value) in enumerate(self.place.fixed().items()):
                expression.set(f"#f{k}", name, f":f{k}", value)
        for i, (name, state) in enumerate(self.states.items()):
            holders = {lease_id: _written_held(held) for lease_id, held in state.holders.items()}
            values = [attribute(state.written), {"M": holders}, *map(attribute, (state.v, state.at_ms, state.revision))]
            for suffix, value in zip(SUFFIXES, values):
                expression.set(f"#{suffix}{i}", f"{PREFIX}{name}_{suffix}", f":{suffix}{i}", value)
        return expression.parameters(table, self.place)

    def statement(self, table: str) -> None:
        return None


def milli_of(held: Held | None) -> int:
    return held[0] if held else 0


_FEW = 25  # the length of an expression is limited


class SlotLedger(Ledger):
    read = staticmethod(read_slots)

    def begin(self) -> None:
        self._touched: dict[tuple[str, str], Held | None] = {}  # by limit and lease: what it held before
        self._holds: dict[tuple[str, str], Held | None] = {}  # and what it holds now
        self._moved: set[str] = set()  # limits with such leases, even if they hold the same again
        self._more: dict[str, int] = {}  # for each limit, how many more are held than before
        self._most: dict[str, int] = {}  # the most, after a take
        self._repeatable = True
        self._noted = False  # something was decided, even if nothing changes
        super().begin()

    def _start_from(self, row: Row | None) -> None:
        self._base = row or NEW
        self._slots: dict[str, Slots] = {}

    def _kept(self) -> MutableMapping[str, Any]:
        return self._slots

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
        """Whether it is enough that the entries are as assumed, and that there is room."""
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

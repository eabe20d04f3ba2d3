"""Cleaning up after processes that died."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ...core.bucket import Bucket
from ...core.decide import FORCE, Part, Parts, Request
from ...core.errors import CorruptState, RateLimiterUnavailable, VersionConflict
from ...core.limit import Limit
from ...core.names import StoredId, parse_bucket_key
from ...core.records import Delete, Record
from ...core.slots import Slots
from ...plan import ListRecords, Plan, SettleEach, Sweep, WriteRecords
from .. import keys
from ..config.limits import read_link_plan
from ..engine import Engine
from ..observe.overview import all_buckets_plan
from .held_slots import RECORDED, taker_limits

log = logging.getLogger("headgate")

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a `reconcile` has found.

    `leases`: leases with slots or a record whose holders died; `restored`: those whose tokens it gave back; `buckets`:
    buckets that are full again; `records`: expired records.
    """

    leases: int
    restored: int
    buckets: int
    records: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def reconcile_plan(engine: Engine) -> Plan[Reconciled]:
    """Free what dead holders have kept, and delete state that is no longer needed, in the limiter's namespace.

    Any number of processes may do it at the same time.
    """
    swept = yield from Sweep(engine.namespace)
    leases, restored = yield from _recorded_plan(engine)
    found = Reconciled(swept.leases + leases, restored, swept.buckets, swept.records)
    engine.observers.tell("reconcile.done", namespace=engine.namespace, **found.as_dict())
    return found


def _recorded_plan(engine: Engine) -> Plan[tuple[int, int]]:
    leases = restored = 0
    cursor: str | None = None
    while True:
        page = yield from ListRecords(keys.leases_prefix(engine.namespace), cursor, _PAGE)
        for error in page.corrupt:
            log.warning("a lease is left alone: %s", error)
        dead = yield from _claimed_plan((yield from _dead_plan(engine, page)))
        yield from _restore_plan(engine, dead)
        leases += sum(not record.value["slots"] for record in dead)  # those with slots were swept
        restored += sum(bool(record.value["taken"]) for record in dead)
        cursor = page.cursor
        if cursor is None:
            return leases, restored


def _dead_plan(engine: Engine, records: Sequence[Record]) -> Plan[list[Record]]:
    """Those that the store no longer knows to be alive. A lease ends with its record, so that these did not end."""
    alive: dict[str, set[str] | None] = {}
    dead = []
    for record in records:
        key = record.value["key"]
        if key not in alive:
            alive[key] = yield from _alive_plan(engine, key)
        marked = alive[key]
        if marked is not None and keys.last_part(record.key) not in marked:
            dead.append(record)
    return dead


def _alive_plan(engine: Engine, key: str) -> Plan[set[str] | None]:
    """None: what is stored there is corrupt, and cannot say."""
    states = yield from _states_plan(engine, key)
    if states is None:
        return None
    marks = states.get(RECORDED)
    return set(marks.holders) if isinstance(marks, Slots) else set()


def _states_plan(engine: Engine, key: str) -> Plan[dict[str, Bucket | Slots] | None]:
    _, entity_id, resource = parse_bucket_key(key)
    rows = yield from all_buckets_plan(engine, StoredId(entity_id), resource)
    if rows.corrupt:
        return None
    return {state.limit.name: state for row in rows for state in row.buckets}


def _claimed_plan(records: Sequence[Record]) -> Plan[list[Record]]:
    """Those that this process deletes, and not another one: it has to give back what they took."""
    if not records:
        return []
    try:
        yield from WriteRecords([Delete(record.key, record.version) for record in records])
    except VersionConflict:
        if len(records) == 1:
            return []
        middle = len(records) // 2
        first = yield from _claimed_plan(records[:middle])
        return first + (yield from _claimed_plan(records[middle:]))
    return list(records)


def _restore_plan(engine: Engine, dead: Sequence[Record]) -> Plan[None]:
    back: dict[str, dict[str, int]] = {}
    taken_by: dict[str, Record] = {}
    for record in dead:
        for key, name, milli in record.value["taken"]:
            of_key = back.setdefault(key, {})
            of_key[name] = of_key.get(name, 0) + milli
            taken_by[key] = record
    requests = []
    for key, amounts in back.items():
        try:
            parts = yield from _parts_plan(engine, key, amounts, taken_by[key])
        except CorruptState as error:
            log.warning("tokens of a dead lease are not given back: %s", error)
            continue
        if parts:
            requests.append(Request(FORCE, (key,), parts))
    for result in (yield from SettleEach(requests)) if requests else ():
        if isinstance(result, CorruptState):
            log.warning("tokens of a dead lease are not given back: %s", result)
        elif isinstance(result, RateLimiterUnavailable):
            raise result


def _parts_plan(engine: Engine, key: str, amounts: Mapping[str, int], lease: Record) -> Plan[Parts]:
    """Under the limit that the bucket has by now. One that is not there is full, and only counts what comes back."""
    states = yield from _states_plan(engine, key)
    if states is None:
        return ()  # when it is mended, it will be full
    unused: Mapping[str, Part] = {}
    if amounts.keys() - states.keys():
        unused = yield from _unused_plan(engine, key, lease)
    parts = []
    for name, milli in amounts.items():
        state = states.get(name)
        if isinstance(state, Bucket):
            parts.append(Part(0, state.limit, -milli, state.revision))
        elif state is None and name in unused:
            parts.append(unused[name]._replace(amount_milli=-milli))
    return tuple(parts)


def _unused_plan(engine: Engine, key: str, lease: Record) -> Plan[Mapping[str, Part]]:
    """Buckets that are not there, as a lease like this one would find them now."""
    _, entity_id, resource = parse_bucket_key(key)
    link = yield from read_link_plan(engine, StoredId(entity_id), resource, taker_limits(engine, lease.value))
    limits, revision = list(link.merged.limits.values()), link.revision
    given = lease.value.get("limits")
    if given and (key == lease.value["key"] or not limits):
        limits, revision = [Limit.from_dict(limit) for limit in given], 0
    return {limit.name: Part(0, limit, 0, revision) for limit in limits if not limit.is_concurrent}

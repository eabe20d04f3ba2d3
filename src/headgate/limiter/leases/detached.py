"""Leases by id, for holders outside this process: a client of a service, a later step of a job.

Such a lease is recorded, and detached from the process that took it. Its record says what it holds. Only the process
that changes the record may move the tokens, so none is given back twice. Tokens are taken before the record is
changed and given back after it: a process that dies in between leaves too few tokens, never too many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from ...core.decide import FORCE, RENEW, Parts, Request
from ...core.errors import LeaseExpired, ValidationError, VersionConflict
from ...core.limit import Limit
from ...core.names import StoredId, parse_bucket_key
from ...core.records import Change, Delete, Put
from ...core.units import MILLI, from_milli, signed_tokens_to_milli
from ...plan import GetRecords, Plan, Settle, Whole, WriteRecords
from .. import keys
from ..acquire.chain import Chain
from ..acquire.slot_queue import waited_for
from ..config.limits import stored_chain_plan
from ..engine import Engine
from .held_slots import lease_value, mark, taker_limits

_LEASE_ID = re.compile("[0-9a-f]{24}")
Consumed = dict[str, int | float]


class _Found(NamedTuple):
    lease_id: str
    chain: Chain
    amounts: dict[str, int]
    ttl_ms: int
    restore: bool
    key: str
    version: int

    def slots(self, names: Mapping[str, int]) -> dict[str, int]:
        limits = self.chain.limits()
        return {name: milli for name, milli in names.items() if limits[name].is_concurrent}

    def plus(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """What it has taken in all, after a correction."""
        return self.amounts | {name: self.amounts.get(name, 0) + milli for name, milli in amounts.items()}

    def changed(self, amounts: Mapping[str, int]) -> Change:
        value = lease_value(self.chain, self.chain.shape.spread(amounts), self.ttl_ms, restore=self.restore)
        return Put(self.key, value, self.version)


def renew_lease_plan(engine: Engine, lease_id: str) -> Plan[float]:
    """Renew a detached lease and its slots. Returns for how many seconds. LeaseExpired if it is too late."""
    found = yield from _find_plan(engine, lease_id)
    held = found.chain.shape.spread(found.slots(found.amounts))
    parts: Parts = (*(part for part in held if part.amount_milli > 0), mark(found.ttl_ms))
    answer = yield from Settle(Request(RENEW, found.chain.keys, parts, lease_id=lease_id))
    if any(wait_ms is None for _, wait_ms in answer.levels):
        raise _gone(lease_id)
    return min(part.limit.period_ms for part in parts) / MILLI


def adjust_lease_plan(engine: Engine, lease_id: str, amounts: Mapping[str, Any]) -> Plan[Consumed]:
    """Correct what a detached lease took, +n or -n. Never refuses. What it has taken in all comes back."""
    return (yield from Whole(partial(_adjust_plan, engine, lease_id, amounts)))


def _adjust_plan(engine: Engine, lease_id: str, amounts: Mapping[str, Any]) -> Plan[Consumed]:
    found = yield from _find_plan(engine, lease_id)
    _check_amounts(amounts)
    found.chain.check_tokens(amounts)
    milli = {name: signed_tokens_to_milli(amount, f"amount of {name!r}") for name, amount in amounts.items()}
    more = {name: amount for name, amount in milli.items() if amount > 0}
    yield from _force_plan(engine, found, more)
    total = found.plus(milli)
    while not (yield from _written_plan(found.changed(total))):
        try:
            found = yield from _find_plan(engine, lease_id)
        except LeaseExpired:
            yield from _force_plan(engine, found, {name: -amount for name, amount in more.items()})
            raise
        total = found.plus(milli)
    yield from _force_plan(engine, found, {name: amount for name, amount in milli.items() if amount < 0})
    return _consumed(total)


def release_lease_plan(
    engine: Engine, lease_id: str, amounts: Mapping[str, Any] | None = None, *, rollback: bool = False
) -> Plan[Consumed]:
    """End a detached lease: its slots come back, and with `rollback` its tokens. With `amounts`: give back these only.

    What it has taken in all comes back.
    """
    return (yield from Whole(partial(_release_plan, engine, lease_id, amounts, rollback=rollback)))


def _release_plan(
    engine: Engine, lease_id: str, amounts: Mapping[str, Any] | None, *, rollback: bool
) -> Plan[Consumed]:
    extra: Parts = ()
    change: Change
    while True:
        found = yield from _find_plan(engine, lease_id)
        if amounts is not None:
            back = _part_of(found, amounts)
            left = {name: milli - back.get(name, 0) for name, milli in found.amounts.items()}
            change = found.changed(left)
        else:
            back = found.amounts if rollback else found.slots(found.amounts)
            left = {name: milli - back.get(name, 0) for name, milli in found.amounts.items()}
            change, extra = Delete(found.key, found.version), (mark(found.ttl_ms)._replace(amount_milli=-MILLI),)
        if (yield from _written_plan(change)):
            break
    yield from _force_plan(engine, found, {name: -milli for name, milli in back.items() if milli > 0}, extra)
    return _consumed(left)


def _find_plan(engine: Engine, lease_id: str) -> Plan[_Found]:
    if not isinstance(lease_id, str) or not _LEASE_ID.fullmatch(lease_id):
        # Not shown: a secret entity id may have been passed by mistake.
        what = f"{len(lease_id)} characters" if isinstance(lease_id, str) else type(lease_id).__name__
        raise ValidationError(f"lease_id must be what lease.detach() returned, 24 hexadecimal digits, not {what}")
    key = keys.lease_key(engine.namespace, lease_id)
    (record,) = yield from GetRecords([key])
    if record is None or "amounts" not in record.value:
        raise _gone(lease_id)
    value = record.value
    _, entity_id, resource = parse_bucket_key(value["key"])
    given = value["limits"]
    limits = None if given is None else [Limit.from_dict(limit) for limit in given]
    chain = yield from stored_chain_plan(engine, StoredId(entity_id), resource, limits, taker_limits(engine, value))
    known = chain.limits()
    amounts = {name: milli for name, milli in value["amounts"].items() if name in known}
    return _Found(lease_id, chain, amounts, value["ttl_ms"], value["restore"], key, record.version)


def _gone(lease_id: str) -> LeaseExpired:
    return LeaseExpired(
        f"there is no lease {lease_id!r} (any more): it was released, or not renewed in time; take a new one"
    )


def _check_amounts(amounts: Any) -> None:
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError(f"amounts must name at least one limit, like {{'tpm': 120}}, not {amounts!r}")


def _part_of(found: _Found, amounts: Mapping[str, Any]) -> dict[str, int]:
    _check_amounts(amounts)
    return found.chain.check_release(amounts, found.amounts)


def _written_plan(change: Change) -> Plan[bool]:
    """False if another process has changed it first."""
    try:
        yield from WriteRecords([change])
    except VersionConflict:
        return False
    return True


def _force_plan(engine: Engine, found: _Found, amounts: Mapping[str, int], extra: Parts = ()) -> Plan[None]:
    parts = (*found.chain.shape.spread(amounts), *extra)
    if parts:
        request = Request(FORCE, found.chain.keys, parts, lease_id=found.lease_id)
        yield from Settle(request)
        engine.slot_queues.given_back(waited_for(request))


def _consumed(amounts: Mapping[str, int]) -> Consumed:
    return {name: from_milli(milli) for name, milli in amounts.items()}

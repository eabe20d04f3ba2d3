"""While the store is away, `on_unavailable="local"`: each process goes on with its share of every limit.

A share is the limit divided by the number of limiters at work, as last counted: each says in the store now and then
that it is there. A share lets at least one token pass, or holds one slot: a limit of ten for twenty processes would
otherwise be none at all.
"""

from __future__ import annotations

from functools import lru_cache

from ...core.decide import Answer, Request
from ...core.limit import Limit
from ...core.records import Put
from ...core.units import MAX_PERIOD_MS, MILLI
from ...plan import ListRecords, Plan, WriteRecords
from ...stores.memory.store import MemoryStore
from .. import keys
from ..fork import anew_after_fork
from ..leases.held_slots import new_lease_id

BEAT_SECONDS = 10.0
_ALIVE_MS = 30_000
_PAGE = 1000


class Fallback:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.instances = 1  # as last counted
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        """A child is one more, with a share of its own."""
        self._id = new_lease_id()
        self._store = MemoryStore()

    def settle(self, request: Request, now_ms: int) -> Answer:
        parts = tuple(part._replace(limit=share(part.limit, self.instances)) for part in request.parts)
        return self._store.settle([request._replace(parts=parts)], now_ms)[0]

    def count_plan(self, now_ms: int) -> Plan[None]:
        """Say that we are here, and see who else is."""
        mine = Put(keys.instance_key(self._namespace, self._id), {}, expires_at_ms=now_ms + _ALIVE_MS)
        yield from WriteRecords([mine])
        count, cursor = 0, None
        while True:
            page = yield from ListRecords(keys.instances_prefix(self._namespace), cursor, _PAGE)
            count, cursor = count + len(page), page.cursor
            if cursor is None:
                break
        self.instances = max(1, count)


@lru_cache(1000)
def share(limit: Limit, instances: int) -> Limit:
    capacity_milli = max(limit.capacity_milli // instances, min(limit.capacity_milli, MILLI))
    if limit.is_concurrent:
        return limit.changed(capacity_milli=capacity_milli // MILLI * MILLI)
    if limit.is_quota:
        return limit.changed(capacity_milli=capacity_milli)
    return limit.changed(capacity_milli=capacity_milli, period_ms=min(limit.period_ms * instances, MAX_PERIOD_MS))

"""Of whom something is stored, how much, and how all of it is removed."""

from __future__ import annotations

from ...core.names import REGISTRY
from ...plan import Plan
from .asking import START, Asking
from .exchange import MoreTime
from .keys import is_row, namespace_of
from .router import Command


class StoredPlans(Asking):
    def list_stored_plan(self) -> Plan[list[str]]:
        names: set[str] = set()
        cursor: str | None = START
        while cursor is not None:
            found, cursor = yield from self._page_plan("headgate:*", cursor)
            names |= {name for name in map(namespace_of, found) if name is not None}
        return sorted(names - {REGISTRY})

    def count_stored_plan(self, namespace: str) -> Plan[int]:
        rows = 0
        cursor: str | None = START
        while cursor is not None:
            found, cursor = yield from self._keys_plan(namespace, cursor)
            rows += sum(map(is_row, found))
        return rows + (yield from self._count_records_plan(namespace))

    def purge_plan(self, namespace: str) -> Plan[int]:
        rows = 0
        cursor: str | None = START
        while cursor is not None:
            found, cursor = yield from self._keys_plan(namespace, cursor)
            removed = yield from self._all_plan([Command(("UNLINK", key), self._keys.slot(key)) for key in found])
            rows += sum(count for key, count in zip(found, removed) if is_row(key))
        records = yield from self._count_records_plan(namespace)
        places = self._keys.records(namespace)
        yield from self._all_plan([Command(("UNLINK", *places), self._keys.slot(places[0]))])
        return rows + records

    def _keys_plan(self, namespace: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        """A page of rows, and of what lies beside rows, whatever `together` it was written with."""
        found, after = yield from self._page_plan(f"headgate:*{namespace}*#*", cursor)
        return [key for key in found if namespace_of(key) == namespace], after

    def _page_plan(self, pattern: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        yield from MoreTime()  # for each page
        return (yield from self._scan_plan(pattern, cursor))

    def _count_records_plan(self, namespace: str) -> Plan[int]:
        records, *_ = self._keys.records(namespace)
        (count,) = yield from self._all_plan([Command(("HLEN", records), self._keys.slot(records))])
        return int(count)

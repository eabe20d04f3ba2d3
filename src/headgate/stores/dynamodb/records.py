"""The records of the store: reading, writing and listing them."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import ValidationError
from ...core.records import ABSENT, Change, Page, Record
from ...plan import Plan
from .changes import write_plan
from .deliver import Deliverer, Denied
from .documents import Home, ItemKey, NamespaceHome, RevisionHome, home_of, namespace_of
from .exchange import Item
from .keys import REGISTRY
from .listing import list_plan
from .namespaces import Namespaces
from .reads import read_items_plan


class Records:
    """Whoever only reads registers no namespace: one that is not registered has no records."""

    def __init__(self, deliver: Deliverer, namespaces: Namespaces) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._revisions: dict[str, Item] = {}  # by namespace, as they were last seen

    def get_records_plan(self, keys: Sequence[str], now_ms: int) -> Plan[list[Record | None]]:
        if not keys:
            return []
        ns = yield from self._namespaces.find_plan(namespace_of(keys))
        if ns is None:
            return [None] * len(keys)
        homes = [home_of(key, ns) for key in keys]
        if ns == REGISTRY:
            found = yield from self._namespaces.read_plan([home.item_key for home in homes])
        else:
            found = yield from self._read_plan(homes, ns)
        return [home.record(found.get(home.item_key), now_ms) for home in homes]

    def _read_plan(self, homes: Sequence[Home], ns: str) -> Plan[dict[ItemKey, Item]]:
        """All items, where the limits may be newer than the revision says, never older.

        DynamoDB reads in no order. If the revision is the one that was seen before, the limits have been read after it.
        If it is another, they may have been read before, and are read again.
        """
        known = self._revisions.get(ns)
        found = yield from read_items_plan(self._deliver, [home.item_key for home in homes])
        revision = next((home.item_key for home in homes if isinstance(home, RevisionHome)), None)
        if revision is None or revision not in found:
            return found
        self._revisions[ns] = found[revision]
        if known == found[revision]:
            return found
        rest = yield from read_items_plan(self._deliver, [home.item_key for home in homes if home.item_key != revision])
        return {**rest, revision: found[revision]}

    def write_records_plan(self, changes: Sequence[Change], now_ms: int) -> Plan[None]:
        if not changes:
            return
        ns = yield from self._namespaces.id_plan(namespace_of([change.key for change in changes]))
        names = [home.name for change in changes if isinstance(home := home_of(change.key, ns), NamespaceHome)]
        try:
            yield from write_plan(self._deliver, ns, changes, now_ms)
        except Denied as error:
            if names and changes[0].expected == ABSENT:
                raise self._namespaces.not_allowed(names[0], error) from None
            raise
        finally:
            for name in names:
                self._namespaces.forget(name)

    def list_records_plan(self, prefix: str, cursor: str | None, limit: int, now_ms: int) -> Plan[Page[Record]]:
        if limit < 1:
            raise ValidationError(f"limit must be a whole number above zero, not {limit!r}")
        ns = yield from self._namespaces.find_plan(namespace_of([prefix]))
        if ns is None:
            return Page([])
        if ns == REGISTRY:
            yield from self._namespaces.read_plan([])
        return (yield from list_plan(self._deliver, ns, prefix, cursor, limit, now_ms))

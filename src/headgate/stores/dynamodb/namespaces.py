"""Namespaces: the opaque id of a name. All data of a namespace is stored under its id.

A name is registered on its first write: by the limiter, as a record of the namespace `_`, or here. Both write the same
item. A namespace that is registered again after a purge gets a new id, so old data cannot come back. The same is true
after a table is recreated.

A client keeps an id for a minute. It looks it up sooner if a bucket it has used is gone, or if the table was missing.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import uuid4

from ...core.errors import CorruptState, NamespaceNotFound, RateLimiterUnavailable, ValidationError
from ...core.names import check_namespace
from ...core.records import Page
from ...plan import Plan, Sleep
from . import keys
from .deliver import Deliverer, Denied
from .exchange import Failed, Item, Send
from .items import ItemKey, key_of, page_plan, query, read_items_plan, values_of
from .record_items import RecordItem
from .record_kinds import NAMESPACE
from .table import VERSION_KEY, Versions, version_item

log = logging.getLogger("headgate")

ACTIVE = "active"
KEPT_SECONDS = 60.0
_SYSTEM = keys.pk_system(keys.REGISTRY)
_UNREGISTERED = "-"  # an id without data: a read finds full buckets
_LONGEST_PAUSE = 0.2


class RegisteredNamespace(NamedTuple):
    """`status`: only an active namespace can be used."""

    name: str
    id: str
    status: str
    created_at_ms: int


class NamespaceMoved(RateLimiterUnavailable):
    """A namespace has a new id: data written under the old one would never be found."""


class Known(NamedTuple):
    """`gone`: how often the table had been missing when this was read."""

    id: str
    until: float
    gone: int


class Namespaces:
    """An id is kept for a minute by `monotonic`, because another process may purge the namespace."""

    def __init__(
        self,
        deliver: Deliverer,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._deliver = deliver
        self._versions = Versions(deliver)
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._known: dict[str, Known] = {}
        self._moved: dict[str, str] = {}  # outdated ids, and why

    def known(self, name: str) -> str | None:
        """The id, if it was read less than a minute ago."""
        known = self._known.get(name)
        if known is None or self._monotonic() >= known.until or known.gone != self._deliver.gone:
            return None
        return known.id

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def id_plan(self, name: str, *, register: bool = True) -> Plan[str]:
        """The id of a name. With `register`, a new name is registered."""
        if not register:
            return (yield from self.find_plan(name)) or _UNREGISTERED
        if name == keys.REGISTRY:
            if (yield from self._versions.check_plan()) is None:
                yield from self._versions.write_plan()
            return name
        return self.known(name) or (yield from self.register_plan(name)).id

    def find_plan(self, name: str) -> Plan[str | None]:
        """The id of a name, or None if it is not registered."""
        known = name if name == keys.REGISTRY else self.known(name)
        if known is not None:
            return known
        namespace, _ = yield from self._look_up_plan(check_namespace(name))
        return None if namespace is None else self._use(namespace).id

    def find_any_plan(self, name: str) -> Plan[str | None]:
        """The same, whatever its status. A namespace without a name is called by its id, after an underscore."""
        if name.startswith(keys.REGISTRY):
            return name.removeprefix(keys.REGISTRY) or None
        namespace, _ = yield from self._look_up_plan(check_namespace(name))
        return None if namespace is None else namespace.id

    def register_plan(self, name: str) -> Plan[RegisteredNamespace]:
        """The namespace of a name, new or existing."""
        check_namespace(name)
        turn = 0
        while True:
            namespace, unused = yield from self._look_up_plan(name)
            if namespace is not None:
                return self._use(namespace)
            if turn:
                yield from Sleep(random.uniform(0.5, 1) * min(0.005 * 2**turn, _LONGEST_PAUSE))
            turn += 1
            new = RegisteredNamespace(name, secrets.token_urlsafe(8), ACTIVE, self._now_ms())
            if (yield from self._write_plan(new, mark_table=unused)):
                return self._use(new)

    def list_plan(self, cursor: str | None = None, limit: int = 100) -> Plan[Page[RegisteredNamespace]]:
        """All namespaces by name, whatever their status. The cursor is the last name of a page."""
        start = None if cursor is None else key_of(_registered(check_namespace(cursor)).item_key)
        parameters = {**query(_SYSTEM, keys.sk_namespace("")), "Limit": limit + 1}
        reply, _ = yield from page_plan(self._deliver, parameters, start)
        found = [_read(item) for item in reply["Items"]]
        return Page(found[:limit], found[limit - 1].name if len(found) > limit else None)

    def all_plan(self) -> Plan[list[RegisteredNamespace]]:
        """The same, from all pages."""
        page = yield from self.list_plan()
        found = list(page)
        while page.cursor is not None:
            page = yield from self.list_plan(page.cursor)
            found += page
        return found

    def _use(self, namespace: RegisteredNamespace) -> RegisteredNamespace:
        if namespace.status != ACTIVE:
            raise NamespaceNotFound(
                f"namespace {namespace.name!r} in table {self._deliver.table!r} is {namespace.status}: recover it, or "
                "use another name"
            )
        self._known[namespace.name] = Known(namespace.id, self._monotonic() + KEPT_SECONDS, self._deliver.gone)
        return namespace

    # Recreated under running clients

    def moved(self, ns: str) -> NamespaceMoved | None:
        """The error for an id that is known to be outdated."""
        why = self._moved.get(ns)
        return None if why is None else NamespaceMoved(why)

    def check_plan(self, ns: str) -> Plan[None]:
        """Data under this id is missing. NamespaceMoved, if its name has another id by now."""
        names = [name for name, known in list(self._known.items()) if known.id == ns]
        for name in names:
            namespace, _ = yield from self._look_up_plan(name)
            if namespace is not None and namespace.id == ns:
                self._use(namespace)
                continue
            why = (
                f"namespace {name!r} in table {self._deliver.table!r} has lost its buckets and its id: the table was "
                "recreated or the namespace was purged"
            )
            if ns not in self._moved:
                log.error("%s. The new namespace is used from now on, with full buckets and its own limits", why)
            self._moved[ns] = why
            self.forget(name)
        moved = self.moved(ns)
        if moved is not None:
            raise moved

    def read_plan(self, wanted: Sequence[ItemKey]) -> Plan[dict[ItemKey, Item]]:
        """Items of the registry; the namespaces in them are remembered. An error if the table has another layout."""
        found = yield from read_items_plan(self._deliver, [*wanted, VERSION_KEY])
        yield from self._versions.check_plan(found)
        for (_, sk), item in found.items():
            if sk.startswith(keys.sk_namespace("")):
                namespace = _read(item)
                self.forget(namespace.name)
                if namespace.status == ACTIVE:
                    self._use(namespace)
        return found

    def _look_up_plan(self, name: str) -> Plan[tuple[RegisteredNamespace | None, bool]]:
        """The namespace, and whether the table is unused. An error if the table has another layout."""
        place = _registered(name).item_key
        found = yield from read_items_plan(self._deliver, [place, VERSION_KEY])
        unused = (yield from self._versions.check_plan(found)) is None
        item = found.get(place)
        return None if item is None else _read(item), unused

    def _write_plan(self, new: RegisteredNamespace, *, mark_table: bool) -> Plan[bool]:
        """False if another client was faster."""
        puts = [namespace_item(*new), *([version_item()] if mark_table else [])]
        transaction = {
            "TransactItems": [
                {"Put": {"TableName": self._deliver.table, "Item": item, "ConditionExpression": _NEW}} for item in puts
            ],
            "ClientRequestToken": str(uuid4()),
        }
        try:
            done = yield from self._deliver.one_plan(Send("TransactWriteItems", transaction, repeatable=True))
        except Denied as error:
            raise self.not_allowed(new.name, error) from None
        return not isinstance(done, Failed)

    def not_allowed(self, name: str, error: Denied) -> ValidationError:
        return ValidationError(
            f"namespace {name!r} is not registered in table {self._deliver.table!r}, and these credentials may not "
            f"register it: an administrator has to use it first, or choose another name ({error})"
        )


_NEW = "attribute_not_exists(PK)"


def _registered(name: str) -> RecordItem:
    return RecordItem.of(NAMESPACE, keys.REGISTRY, f"{keys.REGISTRY}/namespace#{name}", namespace=name)


def namespace_item(name: str, ns: str, status: str, created_at_ms: int, deleted_at_ms: int | None = None) -> Item:
    """The same item as the record that the limiter writes."""
    value = {"id": ns, "status": status, "created_at_ms": created_at_ms, "deleted_at_ms": deleted_at_ms}
    return _registered(name).item(value, version=1)


def _read(item: Item) -> RegisteredNamespace:
    values = values_of(item)
    try:
        return RegisteredNamespace(
            values["namespace"], values["namespace_id"], values["status"], values["created_at_ms"]
        )
    except KeyError as missing:
        name = item["SK"]["S"].rpartition("#")[2]
        raise CorruptState(f"it lacks {missing}", record_key=_registered(name).record_key) from None

"""The store's methods, as plans: written once for the blocking and the async store."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.decide import Answer, Request
from ...core.records import BucketRow, Change, Page, Record, Swept
from ...core.usage import UsageRow
from ...plan import Plan
from .buckets import Buckets
from .cache import Cache
from .cross_shard import CrossShard
from .deliver import Deliverer
from .namespaces import Namespaces
from .records import Records
from .settle import Settler
from .shards import Shards
from .slots import SlotSource
from .stored import StoredNamespaces
from .table import DynamoDBTable
from .unite import Uniter
from .url import DynamoDBSettings
from .usage import HourlyUsage, UsageCounters
from .writer import Writer


class DynamoDBPlans:
    def __init__(self, settings: DynamoDBSettings) -> None:
        deliver = Deliverer(settings)
        cache, writer = Cache(), Writer(deliver)
        self.namespaces = Namespaces(deliver)
        self.hours = UsageCounters(deliver)
        self.shards = Shards(deliver, cache, self.hours)
        slots = SlotSource(deliver, cache)
        uniter = Uniter(deliver, cache, self.shards, self.hours)
        cross_shard = CrossShard(deliver, self.namespaces, cache, writer, self.hours, uniter)
        self._settler = Settler(writer, self.namespaces, self.shards, slots, cross_shard, self.hours)
        self._buckets = Buckets(deliver, self.namespaces, cache, cross_shard, slots, self.hours)
        self._usage = HourlyUsage(deliver, self.namespaces, self.hours)
        self._records = Records(deliver, self.namespaces)
        self._stored = StoredNamespaces(deliver, self.namespaces)
        self._table = DynamoDBTable(deliver)

    def settle_plan(self, batch: Sequence[Request], now_ms: int | None) -> Plan[list[Answer]]:
        return self._settler.settle_plan(batch, _given(now_ms))

    def delete_buckets_plan(self, keys: Sequence[str]) -> Plan[None]:
        return self._buckets.delete_plan(keys)

    def list_buckets_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Plan[Page[BucketRow]]:
        return self._buckets.list_plan(namespace, entity_id, resource, cursor, _given(now_ms))

    def get_records_plan(self, keys: Sequence[str], now_ms: int | None) -> Plan[list[Record | None]]:
        return self._records.get_records_plan(keys, _given(now_ms))

    def write_records_plan(self, changes: Sequence[Change], now_ms: int | None) -> Plan[None]:
        return self._records.write_records_plan(changes, _given(now_ms))

    def list_records_plan(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Plan[Page[Record]]:
        return self._records.list_records_plan(prefix, cursor, limit, _given(now_ms))

    def list_usage_plan(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Plan[Page[UsageRow]]:
        return self._usage.list_plan(namespace, entity_id, resource, hours, cursor, _given(now_ms))

    def sweep_plan(self, namespace: str, now_ms: int | None) -> Plan[Swept]:
        return self._buckets.sweep_plan(namespace, _given(now_ms))

    def list_stored_plan(self) -> Plan[list[str]]:
        return self._stored.list_plan()

    def count_stored_plan(self, namespace: str) -> Plan[int]:
        return self._stored.count_plan(namespace)

    def purge_plan(self, namespace: str) -> Plan[int]:
        return self._stored.purge_plan(namespace)

    def setup_plan(self) -> Plan[None]:
        return self._table.setup_plan()

    def ping_plan(self) -> Plan[None]:
        return self._table.ping_plan()

    @property
    def usage_ms(self) -> int:
        return self.hours.kept_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self.hours.kept_ms = ms


def _given(now_ms: int | None) -> int:
    assert now_ms is not None, "DynamoDB has no clock to ask"
    return now_ms

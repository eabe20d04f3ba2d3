"""A store whose methods are plans, written once: as blocking calls, and as coroutines. How a plan is run is its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ..core.records import BucketRow, Change, Page, Record, Swept
from ..core.usage import UsageRow
from ..plan import Plan

T = TypeVar("T")


class StorePlans(Protocol):
    """The methods of the contract but `settle` and `close`, as plans."""

    def delete_buckets_plan(self, keys: Sequence[str]) -> Plan[None]: ...
    def list_buckets_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Plan[Page[BucketRow]]: ...
    def get_records_plan(self, keys: Sequence[str], now_ms: int | None) -> Plan[list[Record | None]]: ...
    def write_records_plan(self, changes: Sequence[Change], now_ms: int | None) -> Plan[None]: ...
    def list_records_plan(
        self, prefix: str, cursor: str | None, limit: int, now_ms: int | None
    ) -> Plan[Page[Record]]: ...
    def list_usage_plan(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Plan[Page[UsageRow]]: ...
    def sweep_plan(self, namespace: str, now_ms: int | None) -> Plan[Swept]: ...
    def list_stored_plan(self) -> Plan[list[str]]: ...
    def count_stored_plan(self, namespace: str) -> Plan[int]: ...
    def purge_plan(self, namespace: str) -> Plan[int]: ...
    def setup_plan(self) -> Plan[None]: ...
    def ping_plan(self) -> Plan[None]: ...


class PlannedStore:
    in_process = False

    def __init__(self, plans: StorePlans) -> None:
        self._store_plans = plans

    def _run(self, plan: Plan[T]) -> T:
        raise NotImplementedError

    def delete_buckets(self, keys: Sequence[str]) -> None:
        self._run(self._store_plans.delete_buckets_plan(keys))

    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        return self._run(self._store_plans.list_buckets_plan(namespace, entity_id, resource, cursor, now_ms))

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        return self._run(self._store_plans.get_records_plan(keys, now_ms))

    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        self._run(self._store_plans.write_records_plan(changes, now_ms))

    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        return self._run(self._store_plans.list_records_plan(prefix, cursor, limit, now_ms))

    def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        return self._run(self._store_plans.list_usage_plan(namespace, entity_id, resource, hours, cursor, now_ms))

    def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        return self._run(self._store_plans.sweep_plan(namespace, now_ms))

    def list_stored(self) -> list[str]:
        return self._run(self._store_plans.list_stored_plan())

    def count_stored(self, namespace: str) -> int:
        return self._run(self._store_plans.count_stored_plan(namespace))

    def purge(self, namespace: str) -> int:
        return self._run(self._store_plans.purge_plan(namespace))

    def setup(self) -> None:
        self._run(self._store_plans.setup_plan())

    def ping(self) -> None:
        self._run(self._store_plans.ping_plan())


class AsyncPlannedStore:
    in_process = False

    def __init__(self, plans: StorePlans) -> None:
        self._store_plans = plans

    async def _run(self, plan: Plan[T]) -> T:
        raise NotImplementedError

    async def delete_buckets(self, keys: Sequence[str]) -> None:
        await self._run(self._store_plans.delete_buckets_plan(keys))

    async def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        return await self._run(self._store_plans.list_buckets_plan(namespace, entity_id, resource, cursor, now_ms))

    async def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        return await self._run(self._store_plans.get_records_plan(keys, now_ms))

    async def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        await self._run(self._store_plans.write_records_plan(changes, now_ms))

    async def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        return await self._run(self._store_plans.list_records_plan(prefix, cursor, limit, now_ms))

    async def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        plan = self._store_plans.list_usage_plan(namespace, entity_id, resource, hours, cursor, now_ms)
        return await self._run(plan)

    async def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        return await self._run(self._store_plans.sweep_plan(namespace, now_ms))

    async def list_stored(self) -> list[str]:
        return await self._run(self._store_plans.list_stored_plan())

    async def count_stored(self, namespace: str) -> int:
        return await self._run(self._store_plans.count_stored_plan(namespace))

    async def purge(self, namespace: str) -> int:
        return await self._run(self._store_plans.purge_plan(namespace))

    async def setup(self) -> None:
        await self._run(self._store_plans.setup_plan())

    async def ping(self) -> None:
        await self._run(self._store_plans.ping_plan())

"""The store's methods as plans, written once for both transports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...core.decide import Answer, Request
from ...core.errors import CorruptState, PartlyAnswered, RateLimiterUnavailable, VersionConflict
from ...core.limit import OWN
from ...core.names import REGISTRY
from ...core.records import ABSENT, BucketRow, Change, Check, Page, Put, Record, Swept, read_record
from ...core.stored import corrupt_field
from ...core.units import shown
from ...core.usage import UsageRow
from ...plan import Plan
from ..server import MoreTime
from .exchange import Replies, Unconfirmed
from .keys import Keys, is_row, namespace_of
from .router import RedisCommand, Router, raised
from .script import DELETE, READ, SETTLE, SWEEP, USAGE, WRITE
from .split import Answered, settle_split_plan
from .url import RedisSettings
from .wire import Encoder, RedisBatch, read_row, read_usage

_RECORD = re.compile(rb"(\d{1,18}) (\d{1,18}) (.*)", re.DOTALL)  # as write.lua writes it
_START = "0:0"  # of a scan
_SCANNED = 1000
# Of each request of a batch, or why there are none.
_Results: TypeAlias = "Sequence[Answered] | RateLimiterUnavailable"


class RedisPlans:
    def __init__(self, settings: RedisSettings, listener: Callable[[], str]) -> None:
        """`listener`: the name under which the server notifies this process of free slots; empty if it cannot."""
        self.router = Router(settings)
        self._keys = Keys(settings.together, clustered=self.router.clustered)
        self._cold_milli = settings.cold_milli
        self._listener = listener
        self.usage_ms = 0

    @property
    def usage_ms(self) -> int:
        return self._usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._usage_ms = ms
        self.encoder = Encoder(self._keys, self._cold_milli, ms, self._listener)

    # Commands

    def _all_plan(self, commands: Sequence[RedisCommand]) -> Plan[list[Any]]:
        replies = yield from self.router.deliver_plan(commands)
        for reply in replies:
            if isinstance(reply, Unconfirmed):
                raise reply.error
            if isinstance(reply, RateLimiterUnavailable):
                raise raised(reply)
        return replies

    def _timed_plan(self, commands: Sequence[RedisCommand], now_ms: int | None) -> Plan[tuple[int, list[Any]]]:
        """The time (as given, or the server's), and the replies."""
        if now_ms is not None or not commands:
            return now_ms or 0, (yield from self._all_plan(commands))
        time, *replies = yield from self._all_plan([RedisCommand(("TIME",), commands[0].slot), *commands])
        seconds, microseconds = map(int, time)
        return seconds * 1000 + microseconds // 1000, replies

    def _scan_plan(self, pattern: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        """A page of keys, server by server, and the next cursor.

        A key may be on two pages, if a server has just lost most of its keys.
        """
        slots = yield from self.router.primaries_plan()
        server, position = map(int, cursor.split(":"))
        if server >= len(slots):  # a cluster that became smaller
            return [], None
        scan = RedisCommand(("SCAN", position, "MATCH", pattern, "COUNT", _SCANNED), slots[server])
        ((position, found),) = yield from self._all_plan([scan])
        if int(position) == 0:
            server += 1
        after = f"{server}:{int(position)}" if server < len(slots) else None
        return [key.decode() for key in dict.fromkeys(found)], after

    # Buckets

    def settle_plan(self, batch: Sequence[Request], now_ms: int | None) -> Plan[list[Answer]]:
        if self.router.clustered:
            return (yield from settle_split_plan(self._settle_slots_plan, self._keys, batch, now_ms))
        return (yield from self.settle_encoded_plan(self.encoder.encode(batch, now_ms), now_ms))

    def settle_encoded_plan(
        self, batch: RedisBatch, now_ms: int | None, first: Sequence[Replies] = ()
    ) -> Plan[list[Answer]]:
        """`first`: the replies to a first attempt that was already made."""
        (found,) = yield from self._settle_encoded_plan({0: batch}, now_ms, first)
        return _whole(found)

    def _settle_encoded_plan(
        self, batches: dict[int, RedisBatch], now_ms: int | None, first: Sequence[Replies] = ()
    ) -> Plan[list[_Results]]:
        """One call for each slot, and more for requests that turn out to be in other windows."""
        found: dict[int, _Results] = {}
        while batches:
            replies = yield from self.router.deliver_plan(
                [
                    RedisCommand(batch.arguments, slot, repeatable=batch.repeatable, script=SETTLE)
                    for slot, batch in batches.items()
                ],
                first,
            )
            first, again = (), dict[int, RedisBatch | None]()
            for (slot, batch), reply in zip(batches.items(), replies):
                results = found[slot] = _completed(found.get(slot), batch, _results(batch, reply))
                if not isinstance(results, RateLimiterUnavailable):
                    again[slot] = self.encoder.again(batch, results, now_ms, slot)
            batches = {slot: batch for slot, batch in again.items() if batch is not None}
        return list(found.values())

    def _settle_slots_plan(self, batches: dict[int, Sequence[Request]], now_ms: int | None) -> Plan[list[_Results]]:
        """For each slot the answers to its requests, or why there are none."""
        encoded = {slot: self.encoder.encode(batch, now_ms, slot) for slot, batch in batches.items()}
        return (yield from self._settle_encoded_plan(encoded, now_ms))

    def delete_buckets_plan(self, keys: Sequence[str]) -> Plan[None]:
        rows = [self._keys.row(key) for key in keys]
        yield from self._all_plan(
            [
                RedisCommand(("EVALSHA", DELETE.sha, 1, row, self.usage_ms), self._keys.slot(row), script=DELETE)
                for row in rows
            ]
        )

    def _slots(self, row: str, limit_names: Sequence[str]) -> list[str]:
        return [key for name in limit_names for key in self._keys.slots(row, name)]

    def _read(self, row: str, limit_names: Sequence[str]) -> RedisCommand:
        """`limit_names`: the concurrent limits whose holders to return as well."""
        keys = [row, *self._slots(row, limit_names)]
        return RedisCommand(("EVALSHA", READ.sha, len(keys), *keys, *limit_names), self._keys.slot(row), script=READ)

    def list_buckets_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Plan[Page[BucketRow]]:
        rows, after = yield from self._rows_plan(namespace, entity_id, resource, cursor)
        now_ms, contents = yield from self._timed_plan([self._read(row, ()) for row in rows], now_ms)
        held = {row: names for row, content in zip(rows, contents) if (names := _concurrent(content))}
        with_holders: list[Any] = []
        if held:
            with_holders = yield from self._all_plan([self._read(row, names) for row, names in held.items()])
        page, corrupt = list[BucketRow](), list[CorruptState]()
        for row, content in (dict(zip(rows, contents)) | dict(zip(held, with_holders))).items():
            place = self._keys.parse(namespace, row)
            if isinstance(content, int):
                corrupt.append(_corrupt(namespace, place, content))
                continue
            buckets = sorted(read_row(content), key=lambda bucket: bucket.limit.name)
            for bucket in buckets:
                bucket.settle(now_ms)
            if buckets:
                page.append(BucketRow(*place, tuple(buckets)))
        return Page(page, after, corrupt)

    def list_usage_plan(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Plan[Page[UsageRow]]:
        rows, after = yield from self._rows_plan(namespace, entity_id, resource, cursor)
        asked = (now_ms or 0, self.usage_ms, *hours)
        contents = yield from self._all_plan(
            [RedisCommand(("EVALSHA", USAGE.sha, 1, row, *asked), self._keys.slot(row), script=USAGE) for row in rows]
        )
        found = [UsageRow(*self._keys.parse(namespace, row), read_usage(of)) for row, of in zip(rows, contents) if of]
        return Page(found, after)

    def _rows_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None
    ) -> Plan[tuple[list[str], str | None]]:
        """A page of the matching rows, and the next cursor."""
        pattern = self._keys.pattern(namespace, entity_id, resource)
        if entity_id is not None and resource is not None:
            return [pattern], None
        found, after = yield from self._scan_plan(pattern, cursor or _START)
        return [key for key in found if is_row(key)], after

    # Records

    def get_records_plan(self, keys: Sequence[str], now_ms: int | None) -> Plan[list[Record | None]]:
        if not keys:
            return []
        records, *_ = self._keys.records(_namespace(keys[0]))
        read = RedisCommand(("HMGET", records, *keys), self._keys.slot(records))
        now_ms, (found,) = yield from self._timed_plan([read], now_ms)
        return [_record(key, stored, now_ms) for key, stored in zip(keys, found)]

    def write_records_plan(self, changes: Sequence[Change], now_ms: int | None) -> Plan[None]:
        if not changes:
            return
        places = self._keys.records(_namespace(changes[0].key))
        arguments: list[str | int] = ["EVALSHA", WRITE.sha, len(places), *places, now_ms or 0]
        for change in changes:
            expected = "" if change.expected is None else change.expected
            if isinstance(change, Put):
                arguments += ["put", change.key, expected, change.expires_at_ms or 0, json.dumps(change.value)]
            else:
                arguments += ["check" if isinstance(change, Check) else "delete", change.key, expected, 0, ""]
        slot = self._keys.slot(places[0])
        write = RedisCommand(tuple(arguments), slot, repeatable=False, script=WRITE)
        (conflict,) = yield from self._all_plan([write])
        if conflict is not None:
            raise VersionConflict(conflict.decode())

    def list_records_plan(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Plan[Page[Record]]:
        _, index, _ = self._keys.records(_namespace(prefix))
        slot = self._keys.slot(index)
        found: list[Record] = []
        start = f"({cursor}" if cursor else f"[{prefix}"
        while True:
            wanted = limit + 1 - len(found)
            # No text has the byte FF: it sorts after all keys with the prefix.
            window = ("ZRANGEBYLEX", index, start, b"(" + prefix.encode() + b"\xff", "LIMIT", 0, wanted)
            (names,) = yield from self._all_plan([RedisCommand(window, slot)])
            keys = [name.decode() for name in names]
            records = yield from self.get_records_plan(keys, now_ms)
            found += [record for record in records if record is not None]
            if len(found) > limit:
                return Page(found[:limit], found[limit - 1].key)
            if len(keys) < wanted:
                return Page(found)
            start = f"({keys[-1]}"

    # Namespaces

    def list_stored_plan(self) -> Plan[list[str]]:
        names: set[str] = set()
        cursor: str | None = _START
        while cursor is not None:
            found, cursor = yield from self._page_plan("headgate:*", cursor)
            names |= {name for name in map(namespace_of, found) if name is not None}
        return sorted(names - {REGISTRY})

    def count_stored_plan(self, namespace: str) -> Plan[int]:
        rows = 0
        cursor: str | None = _START
        while cursor is not None:
            found, cursor = yield from self._keys_plan(namespace, cursor)
            rows += sum(map(is_row, found))
        return rows + (yield from self._count_records_plan(namespace))

    def purge_plan(self, namespace: str) -> Plan[int]:
        rows = 0
        cursor: str | None = _START
        while cursor is not None:
            found, cursor = yield from self._keys_plan(namespace, cursor)
            removed = yield from self._all_plan([RedisCommand(("UNLINK", key), self._keys.slot(key)) for key in found])
            rows += sum(count for key, count in zip(found, removed) if is_row(key))
        records = yield from self._count_records_plan(namespace)
        places = self._keys.records(namespace)
        yield from self._all_plan([RedisCommand(("UNLINK", *places), self._keys.slot(places[0]))])
        return rows + records

    def _keys_plan(self, namespace: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        """A page of rows and of the keys beside them, whichever `together` they were written with."""
        found, after = yield from self._page_plan(f"headgate:*{namespace}*#*", cursor)
        return [key for key in found if namespace_of(key) == namespace], after

    def _page_plan(self, pattern: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        yield from MoreTime()  # for each page
        return (yield from self._scan_plan(pattern, cursor))

    def _count_records_plan(self, namespace: str) -> Plan[int]:
        records, *_ = self._keys.records(namespace)
        (count,) = yield from self._all_plan([RedisCommand(("HLEN", records), self._keys.slot(records))])
        return int(count)

    # Maintenance

    def sweep_plan(self, namespace: str, now_ms: int | None) -> Plan[Swept]:
        """Everything expires by itself, except slots of a limit that has others that expire later."""
        pattern = f"{self._keys.pattern(namespace, None, None)}#*"
        leases = 0
        cursor: str | None = _START
        while cursor is not None:
            yield from MoreTime()  # for each page
            found, cursor = yield from self._scan_plan(pattern, cursor)
            holders = [key for key in found if key.count("#") == 2]
            if holders:
                gone = yield from self._all_plan([self._sweep(key, now_ms) for key in holders])
                leases += sum(count for key, count in zip(holders, gone) if f"#{OWN}" not in key)
        return Swept(leases=leases)

    def _sweep(self, holders: str, now_ms: int | None) -> RedisCommand:
        row, limit_name = holders.rsplit("#", 1)
        keys = (row, *self._keys.slots(row, limit_name), self._keys.queue(row, limit_name))
        arguments = ("EVALSHA", SWEEP.sha, len(keys), *keys, now_ms or 0, limit_name)
        return RedisCommand(arguments, self._keys.slot(row), script=SWEEP)

    def ping_plan(self) -> Plan[None]:
        slots = yield from self.router.primaries_plan()
        yield from self._all_plan([RedisCommand(("PING",), slot) for slot in slots])

    setup_plan = ping_plan  # there is nothing to create


def _whole(results: _Results) -> list[Answer]:
    if isinstance(results, RateLimiterUnavailable):
        raise raised(results)
    answers = [result for result in results if isinstance(result, Answer)]
    if len(answers) < len(results):
        raise PartlyAnswered(results)
    return answers


def _completed(before: _Results | None, batch: RedisBatch, results: _Results) -> _Results:
    """`before`, with the results of what was asked again."""
    if before is None or isinstance(before, RateLimiterUnavailable):
        return results
    members = [member for entry in batch.entries for member in entry.members]
    if isinstance(results, RateLimiterUnavailable) and len(members) == len(before):
        return results
    completed = [*before]
    for member in members:
        completed[member] = results if isinstance(results, RateLimiterUnavailable) else results[member]
    return completed


def _results(batch: RedisBatch, reply: Any) -> _Results:
    if isinstance(reply, RateLimiterUnavailable):
        return reply
    if not isinstance(reply, Unconfirmed):
        return batch.results(reply)
    results = batch.results(reply.reply)
    return reply.error if batch.changed(results) else results


def _corrupt(namespace: str, place: tuple[str, str], field: int) -> CorruptState:
    error = corrupt_field(f"{namespace}/{'#'.join(place)}", "", field)
    if not isinstance(error, CorruptState):
        raise error
    return error


def _concurrent(content: Any) -> list[str]:
    states = [] if isinstance(content, int) else read_row(content)
    return [state.limit.name for state in states if state.limit.is_concurrent]


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _record(key: str, stored: bytes | None, now_ms: int) -> Record | None:
    if stored is None:
        return None
    written = _RECORD.match(stored)
    if written is None:
        return Record(key, {}, ABSENT, f"it has no version ({shown(stored)})")
    version, expires_at_ms, value = written.groups()
    if 0 < int(expires_at_ms) <= now_ms:
        return None
    return read_record(key, value, int(version))

"""The store's methods, as plans: written once for the blocking store and for the one of coroutines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...core.decide import Answer, Request
from ...core.errors import RateLimiterUnavailable, VersionConflict
from ...core.records import BucketRow, Change, Check, Page, Put, Record, Swept
from ...plan import Plan
from .exchange import Replies
from .keys import Keys
from .router import Command, Router
from .script import READ, SETTLE, WRITE
from .split import settle_split_plan
from .url import Address, Settings
from .wire import Batch, Encoder, read_row

_SCANNED = 1000


class Plans:
    def __init__(self, settings: Settings) -> None:
        self._router = Router(settings)
        self._keys = Keys(settings.together, clustered=self._router.clustered)
        self.encoder = Encoder(self._keys, settings.cold_milli)

    # Buckets

    @property
    def one_server(self) -> Address | None:
        """Where a batch as a whole can be sent to without any plan."""
        return self._router.one_server

    def settle_plan(self, batch: Sequence[Request], now_ms: int | None) -> Plan[list[Answer]]:
        if self._router.clustered:
            return (yield from settle_split_plan(self._settle_slots_plan, self._keys, batch, now_ms))
        return (yield from self.settle_encoded_plan(self.encoder.encode(batch, now_ms)))

    def settle_encoded_plan(self, batch: Batch, first: Sequence[Replies] = ()) -> Plan[list[Answer]]:
        """`first`: what became of a first attempt, made already."""
        command = Command(batch.arguments, repeatable=batch.repeatable, script=SETTLE)
        (reply,) = yield from self._router.deliver_plan([command], first)
        if isinstance(reply, RateLimiterUnavailable):
            raise reply
        return batch.answers(reply)

    def _settle_slots_plan(
        self, batches: dict[int, Sequence[Request]], now_ms: int | None
    ) -> Plan[list[list[Answer] | RateLimiterUnavailable]]:
        """One call for each slot: the answers to its requests, or why there are none."""
        encoded = [self.encoder.encode(batch, now_ms, slot) for slot, batch in batches.items()]
        replies = yield from self._router.deliver_plan(
            [
                Command(batch.arguments, slot, repeatable=batch.repeatable, script=SETTLE)
                for slot, batch in zip(batches, encoded)
            ]
        )
        return [
            reply if isinstance(reply, RateLimiterUnavailable) else batch.answers(reply)
            for batch, reply in zip(encoded, replies)
        ]

    def delete_buckets_plan(self, keys: Sequence[str]) -> Plan[None]:
        rows = [self._keys.row(key) for key in keys]
        yield from self._all_plan([Command(("UNLINK", row), self._keys.slot(row)) for row in rows])

    def list_buckets_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Plan[Page[BucketRow]]:
        pattern = self._keys.pattern(namespace, entity_id, resource)
        if entity_id is not None and resource is not None:
            rows, after = [pattern], None
        else:
            rows, after = yield from self._scan_plan(pattern, cursor or "0:0")
        reads = [Command(("EVALSHA", READ.sha, 1, row), self._keys.slot(row), script=READ) for row in rows]
        now_ms, contents = yield from self._timed_plan(reads, now_ms)
        page = []
        for row, content in zip(rows, contents):
            buckets = sorted(read_row(content), key=lambda bucket: bucket.limit.name)
            for bucket in buckets:
                bucket.settle(now_ms)
            if buckets:
                page.append(BucketRow(*self._keys.parse(namespace, row), tuple(buckets)))
        return Page(page, after)

    def _scan_plan(self, pattern: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        """Server by server. A row may come twice if a server is just then making room for more keys."""
        slots = yield from self._router.primaries_plan()
        server, position = map(int, cursor.split(":"))
        if server >= len(slots):  # a cluster that became smaller
            return [], None
        scan = Command(("SCAN", position, "MATCH", pattern, "COUNT", _SCANNED), slots[server])
        ((position, found),) = yield from self._all_plan([scan])
        if int(position) == 0:
            server += 1
        after = f"{server}:{int(position)}" if server < len(slots) else None
        return [row.decode() for row in found], after

    # Records

    def get_records_plan(self, keys: Sequence[str], now_ms: int | None) -> Plan[list[Record | None]]:
        if not keys:
            return []
        records, *_ = self._keys.records(_namespace(keys[0]))
        read = Command(("HMGET", records, *keys), self._keys.slot(records))
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
        write = Command(tuple(arguments), slot, repeatable=False, script=WRITE)
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
            # No text has the byte FF, so that it comes after all that start with the prefix.
            window = ("ZRANGEBYLEX", index, start, b"(" + prefix.encode() + b"\xff", "LIMIT", 0, wanted)
            (names,) = yield from self._all_plan([Command(window, slot)])
            keys = [name.decode() for name in names]
            records = yield from self.get_records_plan(keys, now_ms)
            found += [record for record in records if record is not None]
            if len(found) > limit:
                return Page(found[:limit], found[limit - 1].key)
            if len(keys) < wanted:
                return Page(found)
            start = f"({keys[-1]}"

    # Life

    def sweep_plan(self, namespace: str, now_ms: int | None) -> Plan[Swept]:
        yield from ()
        return Swept()  # everything expires by itself

    def ping_plan(self) -> Plan[None]:
        slots = yield from self._router.primaries_plan()
        yield from self._all_plan([Command(("PING",), slot) for slot in slots])

    setup_plan = ping_plan  # there is nothing to create

    def _all_plan(self, commands: Sequence[Command]) -> Plan[list[Any]]:
        replies = yield from self._router.deliver_plan(commands)
        for reply in replies:
            if isinstance(reply, RateLimiterUnavailable):
                raise reply
        return replies

    def _timed_plan(self, commands: Sequence[Command], now_ms: int | None) -> Plan[tuple[int, list[Any]]]:
        """The moment, the one given or the server's, and the replies."""
        if now_ms is not None or not commands:
            return now_ms or 0, (yield from self._all_plan(commands))
        time, *replies = yield from self._all_plan([Command(("TIME",), commands[0].slot), *commands])
        seconds, microseconds = map(int, time)
        return seconds * 1000 + microseconds // 1000, replies


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _record(key: str, stored: bytes | None, now_ms: int) -> Record | None:
    if stored is None:
        return None
    version, expires_at_ms, value = stored.split(b" ", 2)
    if 0 < int(expires_at_ms) <= now_ms:
        return None
    return Record(key, json.loads(value), int(version))

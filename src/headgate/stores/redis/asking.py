"""What all plans of the store ask the servers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import RateLimiterUnavailable
from ...plan import Plan
from .exchange import Unconfirmed
from .keys import Keys
from .router import Command, Router, raised
from .url import Settings

START = "0:0"  # of a scan
_SCANNED = 1000


class Asking:
    def __init__(self, settings: Settings) -> None:
        self._router = Router(settings)
        self._keys = Keys(settings.together, clustered=self._router.clustered)

    def _all_plan(self, commands: Sequence[Command]) -> Plan[list[Any]]:
        replies = yield from self._router.deliver_plan(commands)
        for reply in replies:
            if isinstance(reply, Unconfirmed):
                raise reply.error
            if isinstance(reply, RateLimiterUnavailable):
                raise raised(reply)
        return replies

    def _timed_plan(self, commands: Sequence[Command], now_ms: int | None) -> Plan[tuple[int, list[Any]]]:
        """The moment, the one given or the server's, and the replies."""
        if now_ms is not None or not commands:
            return now_ms or 0, (yield from self._all_plan(commands))
        time, *replies = yield from self._all_plan([Command(("TIME",), commands[0].slot), *commands])
        seconds, microseconds = map(int, time)
        return seconds * 1000 + microseconds // 1000, replies

    def _scan_plan(self, pattern: str, cursor: str) -> Plan[tuple[list[str], str | None]]:
        """A page of keys, server by server, and where the next begins.

        A key may come twice, on two pages, if a server has just lost most of what it had.
        """
        slots = yield from self._router.primaries_plan()
        server, position = map(int, cursor.split(":"))
        if server >= len(slots):  # a cluster that became smaller
            return [], None
        scan = Command(("SCAN", position, "MATCH", pattern, "COUNT", _SCANNED), slots[server])
        ((position, found),) = yield from self._all_plan([scan])
        if int(position) == 0:
            server += 1
        after = f"{server}:{int(position)}" if server < len(slots) else None
        return [key.decode() for key in dict.fromkeys(found)], after

"""A primary and a replica under sentinels."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from ..process import PATIENCE_SECONDS, ServerFailedError, ServerGroup, eventually
from .server import RedisServer

SERVICE = "headgate"

_FAILOVER_TIMEOUT_MS = 5_000
_GIVEN_UP_SECONDS = 3 * _FAILOVER_TIMEOUT_MS / 1_000  # twice the timeout has to pass before the next failover
_MOST_FAILOVERS = 4
# The first three make a failover a matter of a second or two. The last is for busy machines: after two seconds
# without a turn a sentinel would take the clock for broken, and do nothing for thirty.
_PACE_MS = {"INFO-PERIOD": 200, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 200, "TILT-TRIGGER": 60_000}


class SentinelServer(RedisServer):
    """One sentinel."""

    def __init__(self, primary: RedisServer, quorum: int, down_after_ms: int) -> None:
        self._monitor = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
            f"sentinel failover-timeout {SERVICE} {_FAILOVER_TIMEOUT_MS}\n"
        )
        super().__init__()

    def start(self) -> None:
        super().start()
        for name, milliseconds in _PACE_MS.items():
            try:
                self.command("SENTINEL", "DEBUG", name, milliseconds)
            except ResponseError:  # Redis 6 has no such command, and keeps its slower pace
                return

    def primary_port(self) -> int:
        return int(self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def is_ready(self, sentinels: int) -> bool:
        """Whether it has found all the others, and a replica that it could promote."""
        others = self.command("SENTINEL", "SENTINELS", SERVICE)
        replicas = map(_pairs, self.command("SENTINEL", "REPLICAS", SERVICE))
        return len(others) == sentinels - 1 and any(
            replica["flags"] == "slave" and replica["master-link-status"] == "ok" for replica in replicas
        )

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]

    def _configuration(self) -> str:
        return f'bind 127.0.0.1\nport {self.port}\nunixsocket "{self.socket}"\ndir "{self.folder}"\n{self._monitor}'


class RedisSentinel(ServerGroup):
    """A primary, its replica, and the sentinels that watch over both under the name `headgate`.

    They promote the replica after `quorum` of them had no answer from the primary for `down_after_ms`.
    """

    def __init__(self, sentinels: int = 3, quorum: int = 2, *, down_after_ms: int = 1000) -> None:
        super().__init__()
        with self._servers as servers:
            self.primary = servers.enter_context(RedisServer())
            follow = {"replicaof": f"127.0.0.1 {self.primary.port}"}
            self.replica = servers.enter_context(RedisServer(options=follow))
            # A sentinel asks the primary for its replicas at once, and before Redis 7 only ten seconds later again.
            eventually(self._has_replica, "the primary has its replica")
            self.sentinels = [
                servers.enter_context(SentinelServer(self.primary, quorum, down_after_ms)) for _ in range(sentinels)
            ]
            self.wait_until_ok()
            self._servers = servers.pop_all()

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}/0"

    def failover(self) -> RedisServer:
        """Let the sentinels promote the replica while the primary is well; the new primary.

        The old one believes for about a second more that it is the primary, and what it is told then is lost.
        """
        self.wait_until_ok()
        eventually(self._accept_failover, "a sentinel accepts a failover")
        for _ in range(_MOST_FAILOVERS - 1):
            # On a busy machine the sentinels give one up that takes too long, and begin no other one by themselves.
            with suppress(ServerFailedError):
                return self.wait_for_failover(_GIVEN_UP_SECONDS)
            if self._running[0].primary_port() == self.primary.port:
                self._accept_failover()
        return self.wait_for_failover(_GIVEN_UP_SECONDS)

    def kill_primary(self) -> None:
        """Kill the primary. The sentinels notice on their own: `wait_for_failover` returns when they have."""
        self.primary.kill()

    def wait_for_failover(self, seconds: float = PATIENCE_SECONDS) -> RedisServer:
        """Wait until the replica is the primary, and every sentinel that runs says so; the new primary.

        `primary` and `replica` have then changed places. A dead one can be started again, and becomes a replica.
        """
        eventually(self._has_failed_over, "the replica has become the primary", seconds)
        self.primary, self.replica = self.replica, self.primary
        return self.primary

    def wait_until_ok(self) -> None:
        """Wait until every sentinel that runs knows all others, and a replica that it could promote."""
        eventually(self._is_ok, "all sentinels know each other and the replica")

    @property
    def _running(self) -> list[SentinelServer]:
        return [sentinel for sentinel in self.sentinels if sentinel.running]

    def _is_ok(self) -> bool:
        return all(sentinel.is_ready(len(self.sentinels)) for sentinel in self._running)

    def _has_replica(self) -> bool:
        return bool(self.primary.info("replication").get("slave0", {}).get("state") == "online")

    def _accept_failover(self) -> bool:
        try:
            self._running[0].command("SENTINEL", "FAILOVER", SERVICE)
        except ResponseError:  # the last one is still under way, or the replica not ready
            return False
        return True

    def _has_failed_over(self) -> bool:
        agreed = all(sentinel.primary_port() == self.replica.port for sentinel in self._running)
        return agreed and bool(self.replica.command("ROLE")[0] == "master")


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2]))

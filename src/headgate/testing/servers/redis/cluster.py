"""A Redis Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from ..process import ServerFailedError, ServerGroup, eventually
from .server import RedisServer

SLOTS = 16384
_KEYS_PER_MOVE = 100
# Nodes tell each other what they know within half of this time.
_JOIN_TIMEOUT_MS = 1000


class RedisCluster(ServerGroup):
    """Nodes that share the slots evenly, each with `replicas`; when this returns, every node knows of every slot.

    `servers` are the masters, then their replicas. A node that does not answer for `node_timeout_ms` is taken for dead.
    """

    def __init__(self, masters: int = 3, replicas: int = 0, *, node_timeout_ms: int = 5000) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-announce-ip": "127.0.0.1",
            "cluster-node-timeout": str(_JOIN_TIMEOUT_MS),
        }
        self._has_replicas = replicas > 0
        self._moves: dict[int, tuple[RedisServer, RedisServer]] = {}
        super().__init__()
        with self._servers as servers:
            nodes = range(masters * (1 + replicas))
            self.servers = [servers.enter_context(RedisServer(options=options)) for _ in nodes]
            self._ids = {server: str(server.command("CLUSTER", "MYID")) for server in self.servers}
            self._join(masters)
            for server in self.servers:
                server.command("CONFIG", "SET", "cluster-node-timeout", node_timeout_ms)
            self._servers = servers.pop_all()

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}"

    def owner(self, slot: int) -> RedisServer:
        """The master that has a slot."""
        for first, last, master, _ in self._slots(self._running[0]):
            if first <= slot <= last:
                return self._at(master)
        raise ServerFailedError(f"no node has slot {slot}")

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        """The replicas of a master that run."""
        views = self._slots(self._running[0])
        ports = {port for _, _, owner, replicas in views if owner == master.port for port in replicas}
        return [server for server in self._running if server.port in ports]

    def move_slot(self, slot: int, target: RedisServer) -> None:
        """Move a slot with its keys to another master."""
        self.begin_move_slot(slot, target)
        self.end_move_slot(slot)

    def begin_move_slot(self, slot: int, target: RedisServer) -> None:
        """From now on the owner answers ASK for keys it does not have, and TRYAGAIN if it has only some of several."""
        source = self.owner(slot)
        if source is target:
            raise ValueError(f"slot {slot} is already on the server at port {target.port}")
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[target])
        self._moves[slot] = (source, target)

    def move_keys(self, slot: int, keys: Sequence[str]) -> None:
        """Move some keys of a slot whose move has begun."""
        source, target = self._moves[slot]
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move_slot(self, slot: int) -> None:
        """Move what is left of a slot, and let every node know where it is."""
        source, target = self._moves[slot]
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_PER_MOVE):
            self.move_keys(slot, keys)
        del self._moves[slot]
        # The new owner first: in between, the slot has two owners that agree, instead of none.
        for server in sorted(self._masters, key=[target, source].__contains__, reverse=True):
            server.command("CLUSTER", "SETSLOT", slot, "NODE", self._ids[target])
        self.wait_until_ok()

    def failover(self, master: RedisServer) -> RedisServer:
        """Let a replica take the place of a master, which may be dead; the new master."""
        if not self._has_replicas:
            raise ValueError("the cluster has no replicas: start it as RedisCluster(replicas=1)")
        eventually(lambda: bool(self.replicas_of(master)), f"the master at port {master.port} has a replica")
        new = self.replicas_of(master)[0]
        new.command("CLUSTER", "FAILOVER", *([] if master.running else ["TAKEOVER"]))
        eventually(lambda: _is_master(new), f"the replica at port {new.port} is a master")
        self.wait_until_ok()
        return new

    def wait_until_ok(self) -> None:
        """Wait until all nodes that run call the cluster ok, see the same owners, and replicas are in sync."""
        eventually(self._is_ok, "all nodes of the cluster are ok and see the same")

    def _join(self, masters: int) -> None:
        for number, server in enumerate(self.servers):
            # Nodes that all start in epoch 0 would need a while to settle who is who.
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                slots = range(SLOTS * number // masters, SLOTS * (number + 1) // masters)
                server.command("CLUSTER", "ADDSLOTS", *slots)
            for other in self.servers[:number]:
                server.command("CLUSTER", "MEET", "127.0.0.1", other.port)
        for number, replica in enumerate(self.servers[masters:]):
            self._replicate(replica, self.servers[number % masters])
        eventually(lambda: self._is_ok() and self._is_complete(masters), "the nodes have become one cluster")

    def _replicate(self, replica: RedisServer, master: RedisServer) -> None:
        def known() -> bool:
            try:
                return bool(replica.command("CLUSTER", "REPLICATE", self._ids[master]) == "OK")
            except RedisError:  # they have not met yet
                return False

        eventually(known, f"the node at port {replica.port} knows its master")

    @property
    def _running(self) -> list[RedisServer]:
        return [server for server in self.servers if server.running]

    @property
    def _masters(self) -> list[RedisServer]:
        return [server for server in self._running if _is_master(server)]

    def _at(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    def _slots(self, server: RedisServer) -> list[tuple[int, int, int, list[int]]]:
        """Who has what, as a node sees it: first slot, last slot, the master's port, its replicas' ports."""
        answer: list[Any] = server.command("CLUSTER", "SLOTS")
        return sorted(
            (first, last, master[1], sorted(replica[1] for replica in replicas))
            for first, last, master, *replicas in answer
        )

    def _is_ok(self) -> bool:
        views = [self._slots(server) for server in self._running]
        return (
            views.count(views[0]) == len(views)
            and sum(last - first + 1 for first, last, _, _ in views[0]) == SLOTS
            and all("cluster_state:ok" in server.command("CLUSTER", "INFO") for server in self._running)
            and all(_is_master(server) or _is_in_sync(server) for server in self._running)
        )

    def _is_complete(self, masters: int) -> bool:
        replicas = sum(len(replicas) for _, _, _, replicas in self._slots(self.servers[0]))
        return replicas == len(self.servers) - masters


def _is_master(server: RedisServer) -> bool:
    return bool(server.command("ROLE")[0] == "master")


def _is_in_sync(server: RedisServer) -> bool:
    return bool(server.info("replication").get("master_link_status") == "up")

"""What is done to the workers of a history and to their store, at random. CONTRIBUTING.md has the table of kinds."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

from history_worker import CHILDREN, PARENT, RATE, STORE_TIMEOUT
from load_helpers import PATIENCE_SECONDS, wait_for
from relay import Relay

from headgate import SyncRateLimiter
from headgate.testing.servers.redis import RedisServer
from local_servers.dynamodb import Engine, Proxy
from local_servers.postgres import PostgresServer

LONG_ENOUGH = 30.0
SHORT, LONG = STORE_TIMEOUT / 4, STORE_TIMEOUT * 1.5  # below and above what a call waits for
BEHIND_MS = 50
Faults = dict[str, Callable[[], None]]


class Stage:
    """A store. `direct` is its URL past all faults. `spread_ms`: how far apart the clocks are that settle a bucket."""

    def __init__(self, url: str, direct: str, faults: Faults, spread_ms: int = 0) -> None:
        self.url = url
        self.direct = direct
        self.faults = faults
        self.spread_ms = spread_ms


def paused(begin: Callable[[], object], end: Callable[[], object], seconds: float) -> Callable[[], None]:
    def fault() -> None:
        begin()
        time.sleep(seconds)
        end()

    return fault


def relayed(relay: Relay) -> Faults:
    def lose_replies() -> None:
        relay.drop_replies()
        time.sleep(SHORT)
        relay.cut()
        relay.flow()

    return {
        "connections cut": relay.cut,
        "replies lost": lose_replies,
        "network slow": paused(relay.hold, relay.flow, SHORT),
        "network silent": paused(relay.hold, relay.flow, LONG),
    }


@contextmanager
def sqlite_stage(folder: Path) -> Iterator[Stage]:
    path = folder / "history.db"
    url = f"sqlite:///{path}"

    def locked(seconds: float) -> Callable[[], None]:
        def fault() -> None:
            with closing(sqlite3.connect(path, timeout=LONG_ENOUGH, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)

        return fault

    def checkpoint() -> None:
        with closing(sqlite3.connect(path, timeout=LONG_ENOUGH, isolation_level=None)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    faults = {"file locked": locked(SHORT), "file locked for long": locked(LONG), "checkpoint": checkpoint}
    yield Stage(url, url, faults, BEHIND_MS)


@contextmanager
def redis_stage() -> Iterator[Stage]:
    with RedisServer(persistent=True) as server, Relay(server.port) as relay:

        def restart() -> None:
            server.kill()
            server.start()
            wait_for(lambda: not server.info("persistence")["loading"], "the server to have loaded its data")

        faults: Faults = {
            **relayed(relay),
            "server killed": restart,
            "server paused": paused(server.pause, server.resume, SHORT),
            "server paused for long": paused(server.pause, server.resume, LONG),
            "scripts forgotten": lambda: server.command("SCRIPT", "FLUSH"),
            "clients thrown out": lambda: server.command("CLIENT", "KILL", "TYPE", "normal"),
        }
        yield Stage(f"redis://127.0.0.1:{relay.port}/0", server.url, faults)


@contextmanager
def postgres_stage() -> Iterator[Stage]:
    with PostgresServer() as server, Relay(server.port) as relay:

        def restart() -> None:
            server.kill()
            server.start()

        def throw_out() -> None:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

        def lock() -> None:
            with server.connect() as other, other.transaction():
                other.execute("LOCK TABLE headgate.buckets")
                time.sleep(SHORT)

        faults = {
            **relayed(relay),
            "server killed": restart,
            "server paused": paused(server.pause, server.resume, SHORT),
            "server paused for long": paused(server.pause, server.resume, LONG),
            "clients thrown out": throw_out,
            "table locked": lock,
        }
        yield Stage(server.url.replace(f":{server.port}/", f":{relay.port}/"), server.url, faults)


@contextmanager
def dynamodb_stage(engine: Engine) -> Iterator[Stage]:
    table = f"history-{uuid4().hex}"
    with Proxy(engine.endpoint_url) as proxy:
        faults: Faults = {
            "connections refused": paused(proxy.down, proxy.up, SHORT),
            "replies lost": lambda: proxy.lose_replies(3),
            "network slow": paused(lambda: proxy.delay(SHORT), lambda: proxy.delay(0), LONG),
            "network silent": lambda: proxy.lose_replies(3, silently=True),
            "throttled": lambda: proxy.fail(3, "ProvisionedThroughputExceededException"),
            "server failed": lambda: proxy.fail(3, "InternalServerError"),
        }
        yield Stage(proxy.url(table), engine.url(table), faults, BEHIND_MS)


class Worker(subprocess.Popen[bytes]):
    """One of history_worker.py."""

    def __init__(self, kind: str, journal: Path, url: str, seed: int, behind_ms: int) -> None:
        self.kind = kind
        self.journal = journal
        program = str(Path(__file__).with_name("history_worker.py"))
        arguments = [url, str(journal), str(seed), kind, str(behind_ms)]
        super().__init__([sys.executable, program, *arguments], stdin=subprocess.PIPE)

    @property
    def is_busy(self) -> bool:
        assert self.poll() is None, f"{self.journal.stem} has failed"
        return self.journal.exists() and os.path.getsize(self.journal) > 0


class Crowd:
    """The workers. Use with `with`: none outlives it."""

    def __init__(self, stage: Stage, folder: Path, chance: random.Random) -> None:
        self._stage = stage
        self._folder = folder
        self._chance = chance
        self._alive: list[Worker] = []
        self._started = 0
        self.suffered: Counter[str] = Counter()
        for _ in range(2):
            self._start("tasks")
            self._start("signals")

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._alive:
            process.kill()
            process.communicate()

    def _start(self, kind: str) -> None:
        self._started += 1
        journal = self._folder / f"{kind}-{self._started}.jsonl"
        behind_ms = self._stage.spread_ms if self._chance.random() < 0.5 else 0
        self._alive.append(Worker(kind, journal, self._stage.url, self._chance.getrandbits(32), behind_ms))

    def wait_until_busy(self) -> None:
        wait_for(lambda: all(worker.is_busy for worker in self._alive), "all workers to be at work")

    @property
    def faults(self) -> Faults:
        return {
            "kill -9": self._kill,
            "SIGSTOP": self._pause,
            "SIGINT that raises": self._interrupt,
            **self._stage.faults,
        }

    def suffer(self, name: str) -> None:
        self.faults[name]()
        self.suffered[name] += 1

    def _kill(self) -> None:
        victim = self._alive.pop(self._chance.randrange(len(self._alive)))
        victim.kill()
        victim.communicate()
        self._start(victim.kind)

    def _pause(self) -> None:
        victim = self._chance.choice(self._alive)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.choice((SHORT, LONG)))
        victim.send_signal(signal.SIGCONT)

    def _interrupt(self) -> None:
        self.wait_until_busy()
        for victim in self._alive:
            if victim.kind == "signals":
                victim.send_signal(signal.SIGINT)

    def stop(self) -> None:
        for process in self._alive:
            assert process.stdin is not None
            process.stdin.close()
        for worker in self._alive:
            assert worker.wait(PATIENCE_SECONDS) == 0, f"{worker.journal.stem} failed"


def prepare(stage: Stage) -> None:
    with SyncRateLimiter(stage.direct, store_timeout=LONG_ENOUGH) as limiter:
        limiter.setup()
        limiter.set_resource_defaults("api", [RATE])
        limiter.create_entity(PARENT)
        for child in CHILDREN:
            limiter.create_entity(child, parent_id=PARENT, cascade=True)

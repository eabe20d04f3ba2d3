"""Helpers for the tests of the Redis store: limits that stand still, callers that go on, and a line that can be cut."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter
from headgate.stores.redis.keys import slot_of
from headgate.testing.driver import DRIVERS
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisCluster, RedisSentinel, RedisServer

PATIENCE_SECONDS = 20.0
# No timing decides a test: a call that takes longer than this has forgotten its deadline.
FAR_TOO_LONG_SECONDS = 40.0

both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


def fixed(capacity: int, name: str = "n") -> Limit:
    """A limit that gains a thousandth of a token a year, in a test nothing: every token can be accounted for."""
    return Limit.custom(name, capacity, 0.001, 366 * 86_400)


@contextmanager
def opened(kind: str, url: str, **settings: Any) -> Iterator[Any]:
    """A limiter of either kind, both with the face of SyncRateLimiter. On a busy machine it is patient."""
    driver = DRIVERS[kind](url, **({"store_timeout": 10.0} | settings))
    try:
        yield driver
    finally:
        driver.shut()


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error."""
    try:
        return call()
    except Exception as error:
        return error


def patiently(call: Callable[[], Any]) -> Any:
    """What a call returns that may time out now and then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except RateLimiterUnavailable:
            if time.monotonic() > deadline:
                raise


def take_all(limiter: Any, entity_id: str, limit: Limit, most: int = 1000) -> int:
    """How many single tokens can be had."""
    for taken in range(most):
        if not limiter.try_acquire(entity_id, "r", {limit.name: 1}, [limit]):
            return taken
    raise AssertionError(f"{most} tokens, and no end")


def calls(server: RedisServer, *commands: str) -> int:
    """How often the server did these commands."""
    stats = server.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]
        - stats.get(f"cmdstat_{command}", {}).get("failed_calls", 0)
        for command in commands
    )


def changes(*servers: RedisServer) -> int:
    """How many keys were written since the servers started."""
    return sum(server.info("persistence")["rdb_changes_since_last_save"] for server in servers)


def on_server(cluster: RedisCluster, server: RedisServer, prefix: str, count: int = 1) -> list[str]:
    """Ids of entities whose buckets lie on a node (`together=entity`)."""
    known_to = next(one for one in cluster.servers if one.running)
    slots = [range(first, last + 1) for first, last, port, _ in cluster._slots(known_to) if port == server.port]
    candidates = (f"{prefix}{number}" for number in range(10_000))
    found = (one for one in candidates if any(slot_of(f"{{{one}}}") in part for part in slots))
    return [next(found) for _ in range(count)]


def fail_over(sentinels: RedisSentinel) -> RedisServer:
    """Promote the replica; the new primary. On a busy machine the sentinels may give up: then once more."""
    given_up = -1
    while _given_up(sentinels) > given_up:
        given_up = _given_up(sentinels)
        sentinels.wait_until_ok()
        eventually(sentinels._accept_failover, "a sentinel accepts a failover")
        eventually(
            lambda before=given_up: sentinels._has_failed_over() or _given_up(sentinels) > before,
            "the replica has become the primary, or the sentinels have given up",
        )
    return sentinels.wait_for_failover()


def _given_up(sentinels: RedisSentinel) -> int:
    return sum(sentinel.log.count("-failover-abort") for sentinel in sentinels.sentinels)


class Load:
    """Callers that take again and again until the end of the `with`, and what became of it.

    Each caller makes one of `wishes`, the arguments of try_acquire, over and over. All share one limiter.
    """

    def __init__(
        self, kind: str, url: str, wishes: Sequence[tuple[Any, ...]], *, callers: int = 4, **settings: Any
    ) -> None:
        self.admitted: Counter[str] = Counter()  # by entity
        self.degraded = 0
        self.refused = 0
        self.unavailable: list[str] = []
        self.longest_seconds = 0.0
        self._unexpected: list[BaseException] = []
        self._wishes = [wishes[number % len(wishes)] for number in range(callers)]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._url, self._settings = url, {"store_timeout": 10.0} | settings
        self._thread = threading.Thread(target=self._run, args=(self._threads if kind == "sync" else self._tasks,))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * FAR_TOO_LONG_SECONDS)
        if error is None:
            assert not self._thread.is_alive(), "a caller hangs"
            self._check()
            assert self.longest_seconds < FAR_TOO_LONG_SECONDS

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self._check()
            return condition()

        eventually(holds, what)

    def goes_on(self, times: int = 40) -> None:
        """Wait until so many more were admitted."""
        wanted = self.admitted.total() + times
        self.until(lambda: self.admitted.total() >= wanted, f"{times} more are admitted")

    def gets_no_answer(self, times: int = 10) -> None:
        """Wait until so many more got RateLimiterUnavailable."""
        wanted = len(self.unavailable) + times
        self.until(lambda: len(self.unavailable) >= wanted, f"{times} more get no answer")

    def _check(self) -> None:
        if self._unexpected:
            raise self._unexpected[0]

    def _note(self, entity_id: str, seconds: float, outcome: Any) -> float:
        """How long the caller rests: a little, for others need the processor too, and longer if there was no answer."""
        with self._lock:
            self.longest_seconds = max(self.longest_seconds, seconds)
            if isinstance(outcome, RateLimiterUnavailable):
                self.unavailable.append(str(outcome))
                return 0.005
            if isinstance(outcome, BaseException):
                self._unexpected.append(outcome)
                self._stop.set()
            elif outcome.degraded:
                self.degraded += 1
                return 0.005
            elif outcome:
                self.admitted[entity_id] += 1
            else:
                self.refused += 1
        return 0.001

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._unexpected.append(error)

    def _threads(self) -> None:
        def caller(wish: tuple[Any, ...]) -> None:
            while not self._stop.is_set():
                started = time.monotonic()
                outcome = attempt(lambda: limiter.try_acquire(*wish))
                self._stop.wait(self._note(wish[0], time.monotonic() - started, outcome))

        with SyncRateLimiter(self._url, **self._settings) as limiter:
            threads = [threading.Thread(target=caller, args=(wish,)) for wish in self._wishes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _tasks(self) -> None:
        async def caller(limiter: RateLimiter, wish: tuple[Any, ...]) -> None:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    outcome: Any = await limiter.try_acquire(*wish)
                except Exception as error:
                    outcome = error
                await asyncio.sleep(self._note(wish[0], time.monotonic() - started, outcome))

        async def main() -> None:
            async with RateLimiter(self._url, **self._settings) as limiter:
                await asyncio.gather(*(caller(limiter, wish) for wish in self._wishes))

        asyncio.run(main())


class Relay:
    """A line to a server. It passes on every byte, until it is told to cut."""

    def __init__(self, server: RedisServer) -> None:
        self.cuts = 0
        self._port = server.port
        self._lock = threading.Lock()
        self._word, self._delivers, self._left, self._every = b"", True, 0, 1
        self._seen = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._listener.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self, word: str = "EVALSHA", *, delivers: bool = True, times: int = 1, every: int = 1) -> None:
        """Cut the connection at the next requests with the word in them, `times` in all, each `every`th of them.

        `delivers`: not before the server has answered, so that it was done; else the server never hears of it.
        """
        with self._lock:
            self._word, self._delivers, self._left, self._every = word.encode(), delivers, times, every
            self._seen = 0

    def _due(self, data: bytes) -> bool:
        with self._lock:
            if not self._left or self._word not in data:
                return False
            self._seen += 1
            if self._seen % self._every:
                return False
            self._left -= 1
            self.cuts += 1
            return True

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, socket.create_connection(("127.0.0.1", self._port)) as server:
                self._pass_on(client, server)
        except OSError:
            pass

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        doomed = False
        while not self._closing:
            readable, _, _ = select.select([client, server], [], [], 0.2)
            if client in readable:
                data = client.recv(1 << 20)
                if not data:
                    return
                if self._due(data):
                    if not self._delivers:
                        return
                    doomed = True
                server.sendall(data)
            if server in readable:
                data = server.recv(1 << 20)
                if not data or doomed:
                    return
                client.sendall(data)

"""Workers on Redis, what is done to their server meanwhile, and the arithmetic of what their journals then prove.

What is admitted is counted from outside. A take counts if a worker was told that it was done. What a worker gave back,
or tried to, counts as given back. So with T the takes the server has done, and G what it has given back,

    admitted = takes answered - give-backs begun <= T - G <= capacity + rate x time

for the server does what it answers, gives back nothing that no worker has asked for, and nothing twice. A take may
happen without an answer, or twice (a client repeats it when the connection breaks): then T is larger, and the limit
stricter than it had to be.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from load_helpers import (
    LEDGER,
    NS_PER_MS,
    OWN_LIMITS,
    PATIENCE_SECONDS,
    POOL,
    PROCESSES,
    Operation,
    most_allowed,
    surely_admitted,
    wait_for,
)
from redis_worker import HOT, PLAIN, RATE, entities_of

from headgate import Limit, SyncRateLimiter
from headgate.core.bucket import Bucket
from headgate.stores import open_store
from headgate.testing.servers.redis import RedisServer

TASKS = 32
WORKERS = [f"worker-{number}" for number in range(1, PROCESSES + 1)]
OWN_ENTITIES = sorted({entities_of(worker, task)[0] for worker in WORKERS for task in range(TASKS)} - {HOT, PLAIN})
LONG_ENOUGH = 60.0  # for the store's answer, where nothing is done to the server
STORE_TIMEOUT = 0.5  # where something is


def configure(url: str, rate: Limit = RATE) -> None:
    """Entities of their own, where nothing is refused, only counted, below the hot one."""
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        limiter.set_resource_defaults("api", OWN_LIMITS)
        limiter.create_entity(HOT)
        limiter.set_limits(HOT, [rate, LEDGER, POOL], "api")
        limiter.set_limits(PLAIN, [rate], "api")
        for entity in OWN_ENTITIES:
            limiter.create_entity(entity, parent_id=HOT, cascade=True)


# What is done to the server


@dataclass(frozen=True)
class Fault:
    """By its end everything that was sent to the server before has been done, or never will be."""

    name: str
    begun_ns: int
    ended_ns: int

    def meets(self, begun_ns: int, ended_ns: int) -> bool:
        return self.begun_ns <= ended_ns and begun_ns <= self.ended_ns


class Faults(list[Fault]):
    @contextmanager
    def during(self, name: str, *servers: RedisServer) -> Iterator[None]:
        """`servers` have to be well at the end of the fault."""
        begun_ns = time.time_ns()
        yield
        for server in servers:
            # A connection that the server has not accepted yet is accepted, then read, then answered.
            for _ in range(3):
                server.command("PING")
        self.append(Fault(name, begun_ns, time.time_ns()))

    def kill_and_restart(self, server: RedisServer, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        with self.during("kill -9", server):
            server.kill()
            time.sleep(seconds)
            server.start()
            wait_for(lambda: not server.info("persistence")["loading"], "the server to have loaded its data")
            then()

    def flush_scripts(self, server: RedisServer) -> None:
        with self.during("SCRIPT FLUSH", server):
            server.command("SCRIPT", "FLUSH")

    def kill_clients(self, server: RedisServer) -> None:
        with self.during("CLIENT KILL", server):
            server.command("CLIENT", "KILL", "TYPE", "normal")

    def lose_answers(self, server: RedisServer) -> None:
        """The server does what it is sent, and closes the connections before it has answered."""
        with self.during("answers lost", server), server.client(single_connection_client=True) as client:
            client.ping()
            server.pause()
            time.sleep(0.1)
            client.connection.send_command("CLIENT", "KILL", "TYPE", "normal")
            server.resume()
            client.connection.read_response()

    def pause(self, server: RedisServer, seconds: float) -> None:
        with self.during("SIGSTOP", server):
            server.pause()
            time.sleep(seconds)
            server.resume()


# What came of it


@dataclass(frozen=True, repr=False)
class Journals:
    operations: Sequence[Operation]
    faults: Sequence[Fault] = ()

    @cached_property
    def begin_ns(self) -> int:
        return min(operation.begun_ns for operation in self.operations)

    @cached_property
    def end_ns(self) -> int:
        return max(operation.ended_ns for operation in self.operations)

    def windows(self) -> list[tuple[int, int]]:
        """All of it, every beginning, every part."""
        begin_ns, half_second = self.begin_ns, 500 * NS_PER_MS
        moments = range(begin_ns + half_second, self.end_ns, half_second)
        parts = [(moment - half_second, moment) for moment in moments]
        return [(begin_ns, self.end_ns), *((begin_ns, moment) for moment in moments), *parts]

    def moves(self, entity: str) -> list[Operation]:
        """What moved tokens of an entity's rate, or may have given some back."""
        return [move for o in self.operations if o.delta(entity, RATE.name) for move in self._moves(o)]

    def _moves(self, operation: Operation) -> Iterable[Operation]:
        if operation.outcome == "done":
            yield operation
        elif operation.outcome in ("cancelled", "lost"):
            operation = replace(operation, ended_ns=self._landed_by_ns(operation))
            if operation.kind == "force":
                yield operation
            else:
                # It may have been done and given back: in one window the one, in the next the other.
                yield operation
                yield replace(operation, kind="force", amounts={RATE.name: -operation.amounts[RATE.name]})

    def _landed_by_ns(self, operation: Operation) -> int:
        faults = [fault.ended_ns for fault in self.faults if fault.meets(operation.begun_ns, operation.ended_ns)]
        if operation.outcome == "lost" and not faults:
            return self.end_ns
        return max(operation.ended_ns, *faults, 0)

    def admitted(self, entity: str) -> int:
        """At least so much."""
        return surely_admitted(self.moves(entity), entity, RATE.name, self.begin_ns, self.end_ns)

    def without_answers(self, windows: Sequence[tuple[int, int]]) -> Journals:
        """The same, if whatever was answered within these windows may since have been forgotten."""
        return Journals(
            [
                replace(o, outcome="lost")
                if o.outcome == "done" and any(begin <= o.ended_ns and o.begun_ns <= end for begin, end in windows)
                else o
                for o in self.operations
            ],
            self.faults,
        )

    @property
    def unanswered(self) -> int:
        return sum(operation.outcome == "lost" for operation in self.operations)

    def missing(self) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """The least and the most that can be missing from every bucket if nothing refills it."""
        least: Counter[tuple[str, str]] = Counter()
        most: Counter[tuple[str, str]] = Counter()
        for operation in self.operations:
            low, high = self._happened(operation)
            for entity in operation.entities:
                for name, amount in operation.amounts.items():
                    least[entity, name] += min(amount * low, amount * high)
                    most[entity, name] += max(amount * low, amount * high)
        return least, most

    def _happened(self, operation: Operation) -> tuple[int, int]:
        """How often it did, from and to."""
        surely = int(operation.outcome == "done")
        if not self.faults:
            assert operation.outcome != "lost", "nothing was done to the server"
            return surely, surely
        perhaps = int(operation.outcome != "refused")
        if operation.kind == "force":
            return surely, perhaps
        # A take is repeated if a connection breaks. In a cluster a refused one stays half done if that cannot be given
        # back, or no time is left for it.
        repeated = sum(fault.meets(operation.begun_ns, operation.ended_ns) for fault in self.faults)
        late = operation.ended_ns - operation.begun_ns >= STORE_TIMEOUT * 1e9
        return surely, perhaps + repeated + late


def buckets(url: str) -> dict[tuple[str, str], Bucket]:
    """Every bucket by entity and limit name, as the store has it."""
    store = open_store(url, LONG_ENOUGH)
    found = {}
    cursor: str | None = None
    while True:
        page = store.list_buckets("default", None, "api", cursor, None)
        found.update({(row.entity_id, bucket.limit.name): bucket for row in page for bucket in row.buckets})
        cursor = page.cursor
        if cursor is None:
            store.close()
            return found


def check_the_rate(journals: Journals, entity: str, *, starts_full: bool = False) -> Fraction:
    """admitted <= capacity + rate x time, over the whole run, for which it is answered, and every part of it.

    `starts_full`: the bucket is a new and full one after each fault.
    """
    moves = journals.moves(entity)
    for window in reversed(journals.windows()):
        allowed = most_allowed(RATE, *window)
        if starts_full:
            allowed += RATE.capacity * sum(fault.meets(*window) for fault in journals.faults)
        assert surely_admitted(moves, entity, RATE.name, *window) <= allowed, f"{entity} within {window}"
    return allowed


def check_the_ledgers(journals: Journals, url: str) -> None:
    """What is missing in the store is what the workers took by their own count, as far as they know it."""
    found = buckets(url)
    least, most = journals.missing()
    for entity in (HOT, *OWN_ENTITIES):
        for limit in (LEDGER, POOL) if entity == HOT else OWN_LIMITS:
            place = (entity, limit.name)
            tokens_milli = found[place].tokens_milli if place in found else limit.capacity_milli
            missing = -((tokens_milli - limit.capacity_milli) // 1000)
            assert least[place] <= missing <= most[place], f"{place}: {least[place]} <= {missing} <= {most[place]}"
    assert least[HOT, POOL.name] <= POOL.capacity


# The workers


class Workers:
    """The processes of a load. Use with `with`: none outlives it."""

    def __init__(self, url: str, folder: Path, seed: int, store_timeout: float, limits: str = "stored") -> None:
        self.operations: list[Operation] = []
        self._answered_ns: dict[tuple[str, int], int] = {}
        self._granted_ns: dict[str, int] = {}
        self._journals = {worker: (folder / f"{worker}.jsonl").open("w+b") for worker in WORKERS}
        self._rests = dict.fromkeys(WORKERS, b"")
        chance = random.Random(seed)
        program = str(Path(__file__).with_name("redis_worker.py"))
        self._processes = {}
        for worker, journal in self._journals.items():
            arguments = [url, journal.name, str(chance.getrandbits(32)), str(TASKS), str(store_timeout), limits]
            self._processes[worker] = subprocess.Popen([sys.executable, program, *arguments], stdin=subprocess.PIPE)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        for journal in self._journals.values():
            journal.close()

    def wait_until_busy(self) -> None:
        """Until every task of every worker has been answered after now."""
        now_ns = time.time_ns()
        everybody = [(worker, task) for worker in WORKERS for task in range(TASKS)]
        self._wait_for(lambda: all(self._answered_ns.get(task, 0) > now_ns for task in everybody), "every task")

    def wait_until_granted(self) -> None:
        """Until every worker has been granted something it asked for after now."""
        now_ns = time.time_ns()
        self._wait_for(lambda: all(self._granted_ns.get(worker, 0) > now_ns for worker in WORKERS), "every worker")

    def _wait_for(self, condition: Callable[[], bool], whom: str) -> None:
        def is_so() -> bool:
            for worker, process in self._processes.items():
                assert process.poll() is None, f"{worker} has failed"
            self._read()
            return condition()

        wait_for(is_so, f"{whom} to be served")

    def stop(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for worker, process in self._processes.items():
            assert process.wait(PATIENCE_SECONDS) == 0, f"{worker} failed"
        self._read()

    def _read(self) -> None:
        for worker, journal in self._journals.items():
            *lines, self._rests[worker] = (self._rests[worker] + journal.read()).split(b"\n")
            for text in lines:
                line = json.loads(text)
                task = line.pop("task")
                line["entities"] = tuple(line["entities"])
                operation = Operation(**line)
                self.operations.append(operation)
                if operation.outcome in ("done", "refused"):
                    self._answered_ns[worker, task] = operation.begun_ns
                if operation.outcome == "done" and operation.kind == "take":
                    self._granted_ns[worker] = max(operation.begun_ns, self._granted_ns.get(worker, 0))

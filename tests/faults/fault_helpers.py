"""Processes that are told what to do, and then are killed or paused; and how long a test waits for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headgate import Limit, SyncRateLimiter

PATIENCE_SECONDS = 30.0
LONG_ENOUGH = 30.0
PAUSE_SECONDS = 0.03  # between two looks
# The store counts whole milliseconds by a clock that is not the tests' own.
ROUNDING_SECONDS = 0.005


class Process:
    """One of fault_process.py. Its methods are called by name; `tell` and `answer` are the halves of a call."""

    def __init__(
        self, url: str, namespace: str, kind: str = "sync", environment: Mapping[str, str] | None = None
    ) -> None:
        program = str(Path(__file__).with_name("fault_process.py"))
        self._process = subprocess.Popen(
            [sys.executable, program, url, namespace, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )

    def tell(self, method: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        answer = json.loads(line)
        assert not isinstance(answer, str), answer
        return answer

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.tell(method, **arguments)
            return self.answer()

        return call

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._process.communicate()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class Place(NamedTuple):
    """A namespace of a store, for one test."""

    url: str
    namespace: str

    @contextmanager
    def processes(
        self, count: int, kind: str = "sync", environment: Mapping[str, str] | None = None
    ) -> Iterator[list[Process]]:
        with ExitStack() as stack:
            started = [Process(*self, kind, environment) for _ in range(count)]
            for process in started:
                stack.callback(process.kill)
            for process in started:
                process.lost()  # it is up
            yield started

    @contextmanager
    def limiter(self, **settings: Any) -> Iterator[SyncRateLimiter]:
        with SyncRateLimiter(
            self.url, namespace=self.namespace, **({"store_timeout": LONG_ENOUGH} | settings)
        ) as limiter:
            yield limiter


def wish(slots: int, ttl: float, *entities: str) -> dict[str, Any]:
    """What `take` of a process is to take: of each entity a slot, of so many."""
    return {"entities": entities or ["e"], "consume": {"slots": 1}, "limits": {"slots": [slots, ttl]}}


def free(limiter: SyncRateLimiter, slots: int, ttl: float, entity: str = "e") -> int:
    return limiter.available(entity, "api", [Limit.concurrent("slots", slots, ttl)])["slots"]


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """What it returns when that is true at last."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        time.sleep(PAUSE_SECONDS)
    return result

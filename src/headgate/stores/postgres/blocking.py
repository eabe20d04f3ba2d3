"""The store as blocking calls, safe to use from many threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from ...core.decide import Answer, Request
from ...core.errors import RateLimiterUnavailable
from ...plan import Call, Plan, Sleep, run
from ..planned import PlannedStore
from .asking import patience_ms
from .connect import connect
from .driver import DriverError, Line, wait_for
from .exchange import Ask, Lost, MoreTime, Reply, TimeLeft
from .notifications import hearing
from .plans import Plans, answers_of
from .url import Settings
from .wire import Batch

T = TypeVar("T")


class PostgresStore(PlannedStore):
    own_clock = True

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._plans = Plans(settings)
        super().__init__(self._plans)
        self._pool = _Pool(settings, timeout_seconds)
        self.hearing = hearing(settings, timeout_seconds)

    @property
    def usage_ms(self) -> int:
        return self._plans.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._plans.usage_ms = ms

    def _run(self, plan: Plan[T]) -> T:
        return run(plan, _Talk(self._pool, self._plans).perform)

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        plans = self._plans
        talk = _Talk(self._pool, plans)
        encoded = Batch(batch, self.hearing.listener)
        ask = plans.settling(encoded, now_ms, self._pool.patience_ms)
        first: Reply | None = None
        if plans.checked:
            # The short cut past the plan, which only has to deal with what goes wrong.
            first = talk.ask(ask)
            if first.__class__ is list:
                return answers_of(encoded, first)
        return run(plans.settle_plan(encoded, ask, first), talk.perform)

    def close(self) -> None:
        self.hearing.close()
        self._pool.close()


class _Pool:
    """Connections at rest, and leave for so many more."""

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self.patience_ms = patience_ms(int(timeout_seconds * 1000))
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._resting: deque[Line] = deque()
        self._leave = threading.Semaphore(self._settings.pool)

    def take(self, deadline: float) -> Line:
        """A connection. RateLimiterUnavailable and ValidationError say why there is none."""
        if self._pid != os.getpid():  # the parent goes on using those
            self._begin()
        if not self._leave.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RateLimiterUnavailable(f"all {self._settings.pool} connections to PostgreSQL are in use")
        try:
            while self._resting:
                try:
                    line = self._resting.pop()
                except IndexError:  # another thread was faster
                    break
                if not wait_for(line.fd, 0):  # it says nothing unasked, unless that it is closed
                    return line
                line.close()
            return connect(self._settings.conninfo, deadline, int(self.timeout_seconds * 1000))
        except BaseException:
            self._leave.release()
            raise

    def give(self, line: Line) -> None:
        if self._closed or not line.usable:
            line.close()
        else:
            self._resting.append(line)
        self._leave.release()

    def drop(self, line: Line) -> None:
        """One that broke. Others that rest may have been cut with it, and are looked at before use."""
        line.close()
        self._leave.release()

    def close(self) -> None:
        self._closed = True
        while self._resting and self._pid == os.getpid():
            try:
                self._resting.pop().close()
            except IndexError:
                break


class _Talk:
    """One call of the store, with its deadline."""

    __slots__ = ("_deadline", "_plans", "_pool")

    def __init__(self, pool: _Pool, plans: Plans) -> None:
        self._pool = pool
        self._plans = plans
        self._deadline = time.monotonic() + pool.timeout_seconds

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Ask):
            return self.ask(call)
        if isinstance(call, TimeLeft):
            return max(0, int((self._deadline - time.monotonic()) * 1000))
        if isinstance(call, MoreTime):
            self._deadline = time.monotonic() + self._pool.timeout_seconds
            return None
        assert isinstance(call, Sleep)
        return time.sleep(min(call.seconds, max(self._deadline - time.monotonic(), 0)))

    def ask(self, ask: Ask) -> Reply:
        line = self._pool.take(self._deadline)
        try:
            reply = self._converse(line, ask)
        except BaseException:
            self._pool.drop(line)
            raise
        if isinstance(reply, Lost):
            self._pool.drop(line)
        else:
            self._pool.give(line)
        return reply

    def _converse(self, line: Line, ask: Ask) -> Reply:
        statement = ask.statement
        prepared = self._plans.prepares and not statement.script
        sent = False
        try:
            if prepared and statement.name not in line.prepared:
                line.prepare(statement)
                reply = self._receive(line)
                if not isinstance(reply, list):
                    return reply._replace(sent=False) if isinstance(reply, Lost) else reply
                line.prepared.add(statement.name)
            sent = True
            line.send(statement, ask.parameters, prepared=prepared)
            return self._receive(line)
        except DriverError as error:
            return Lost(f"closed the connection: {error}", sent=sent)

    def _receive(self, line: Line) -> Reply:
        while not line.flushed():
            if not self._wait(line, write=True):
                return self._late()
        while True:
            if not self._wait(line):
                return self._late()
            if line.received():
                return line.reply()

    def _wait(self, line: Line, *, write: bool = False) -> bool:
        return wait_for(line.fd, max(0.0, self._deadline - time.monotonic()), write=write)

    def _late(self) -> Lost:
        return Lost(f"did not answer within {self._pool.timeout_seconds:g} s", sent=True)

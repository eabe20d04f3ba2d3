"""The base of stores on a server. Their methods are plans, written once for blocking calls and for coroutines.

A ServerCall performs the plan of one call within its deadline. Coroutines add two concerns: a call that was sent
cannot be cancelled any more, and connections belong to an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..core.decide import Answer, Request
from ..plan import Call, Plan, Sleep, arun, run
from .contract import BlockingMethods, CoroutineMethods, SettledThenCancelled, StorePlans, cancelled_late

T = TypeVar("T")


class Lost(NamedTuple):
    """No reply. If the call was `sent`, it may or may not have been done. `late`: no time is left to try again."""

    why: str
    sent: bool
    late: bool = False


@dataclass(frozen=True, slots=True)
class MoreTime(Call[None]):
    """Restart the deadline: for each page of a long job, or to give back what was taken when the time is already up."""


@dataclass(frozen=True, slots=True)
class TimeLeft(Call[int]):
    """Milliseconds until the deadline; 0 when it has passed."""


class Wire(Protocol):
    """The connections to a server. Each call may take `timeout_seconds`."""

    timeout_seconds: float


class _Deadline:
    __slots__ = ("_wire", "deadline")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.deadline = time.monotonic() + wire.timeout_seconds

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def restart(self) -> None:
        self.deadline = time.monotonic() + self._wire.timeout_seconds

    def late(self, *, sent: bool) -> Lost:
        return Lost(f"did not answer within {self._wire.timeout_seconds:g} s", sent=sent, late=self.left <= 0)

    def _pause(self, sleep: Sleep) -> float:
        return min(sleep.seconds, max(self.left, 0))

    def _perform_timing(self, call: Call[Any]) -> int | None:
        if isinstance(call, TimeLeft):
            return max(0, int(self.left * 1000))
        assert isinstance(call, MoreTime), call
        self.restart()
        return None


class ServerCall(_Deadline):
    """One call of a blocking store, with its deadline."""

    __slots__ = ()

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Sleep):
            return time.sleep(self._pause(call))
        return self._perform_timing(call)


class AsyncServerCall(_Deadline):
    """One call of a store for coroutines, with its deadline.

    `to_the_end`: once sent, it is not cancelled. `cancelled` is the cancellation that came meanwhile.
    """

    to_the_end = False
    cancelled: asyncio.CancelledError | None = None

    async def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Sleep):
            return await asyncio.sleep(self._pause(call))
        return self._perform_timing(call)

    async def wait_for(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        """Until all are done. A cancellation ends them and is raised, unless they have to run `to_the_end`."""
        cancelled: asyncio.CancelledError | None = None
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
                if not self.to_the_end:
                    for task in pending:
                        task.cancel()
        if cancelled is not None and not self.to_the_end:
            raise cancelled
        self.cancelled = self.cancelled or cancelled


C = TypeVar("C", bound=_Deadline)
A = TypeVar("A", bound=AsyncServerCall)


class _Planned(Generic[C]):
    in_process = False

    def __init__(self, plans: StorePlans, wire: Wire, new_call: Callable[[Wire], C]) -> None:
        self._plans = plans
        self._wire = wire
        self._new_call = new_call

    @property
    def usage_ms(self) -> int:
        return self._plans.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._plans.usage_ms = ms

    def _plan(self, method: str, *args: Any, **kwargs: Any) -> Plan[Any]:
        plan: Plan[Any] = getattr(self._plans, f"{method}_plan")(*args, **kwargs)
        return plan


class ServerStore(_Planned[ServerCall], BlockingMethods):
    """Blocking calls, safe to use from many threads."""

    def _run(self, plan: Plan[T]) -> T:
        return run(plan, self._new_call(self._wire).perform)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._plan(method, *args, **kwargs))


class AsyncServerStore(_Planned[A], CoroutineMethods):
    """The same for coroutines."""

    async def _run(self, plan: Plan[T]) -> T:
        return await arun(plan, self._new_call(self._wire).perform)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._run(self._plan(method, *args, **kwargs))

    async def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        call = self._new_call(self._wire)
        call.to_the_end = True
        return await self._whole(self._settle(batch, now_ms, call), call)

    async def _whole(self, answering: Coroutine[Any, Any, list[Answer]], call: A) -> list[Answer]:
        try:
            answers = await answering
        except Exception as error:
            if call.cancelled is None:
                raise
            raise cancelled_late(error, call.cancelled) from error
        if call.cancelled is not None:
            raise SettledThenCancelled(answers, call.cancelled)
        return answers

    async def _settle(self, batch: Sequence[Request], now_ms: int | None, call: A) -> list[Answer]:
        raise NotImplementedError


class LoopBound:
    """Connections of one event loop. In another loop it starts empty."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        self._closed = False

    def _start(self) -> None:
        """Forget the connections of another loop."""
        raise NotImplementedError

    async def _close_idle(self) -> None:
        raise NotImplementedError

    async def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._start()
        self._guard = self._until_the_loop_ends()
        await self._guard.__anext__()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """A loop finalizes its generators before it closes. Later, its connections could not be closed any more."""
        try:
            yield
        finally:
            await self._close_idle()

    async def close(self) -> None:
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            await self._close_idle()

"""The steps of the clients' plans: blocking calls for threads, awaited calls for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ...plan import Call, Plan, arun, run


@dataclass(frozen=True, slots=True)
class Do(Call[Any]):
    """Call a function, which returns its result for threads, and a coroutine for tasks."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Finish(Call[None]):
    """Run a plan to its end, even if the task is cancelled."""

    plan: Plan[None]


def perform(call: Call[Any]) -> Any:
    if isinstance(call, Finish):
        return run(call.plan, perform)
    assert isinstance(call, Do)
    return call.function()


async def aperform(call: Call[Any]) -> Any:
    if isinstance(call, Finish):
        return await _to_the_end(arun(call.plan, aperform))
    assert isinstance(call, Do)
    return await call.function()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """A cancellation is re-raised after the work completes, which takes no longer than the store's deadline."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

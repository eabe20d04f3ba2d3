"""What the plans of the clients are made of: steps that block in one world and are awaited in the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ...plan import Call, Plan, arun, run


@dataclass(frozen=True, slots=True)
class Do(Call[Any]):
    """Call something that returns its result here, and a coroutine there."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Finish(Call[None]):
    """Run a plan to its end, whoever is cancelled meanwhile."""

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
    """A cancellation comes through afterwards. It waits no longer than the store's deadline."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

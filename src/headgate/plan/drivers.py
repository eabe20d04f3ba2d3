"""The two drivers. They differ in one word. And how coroutines make sure of something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .calls import Call, Plan

T = TypeVar("T")


def run(plan: Plan[T], perform: Callable[[Call[Any]], Any]) -> T:
    try:
        call = next(plan)
        while True:
            try:
                answer = perform(call)
            except BaseException as error:
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def arun(plan: Plan[T], perform: Callable[[Call[Any]], Awaitable[Any]]) -> T:
    try:
        call = next(plan)
        while True:
            try:
                answer = await perform(call)
            except BaseException as error:
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. A cancellation is re-raised after the work completes."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was seen
        raise cancelled
    return task.result()

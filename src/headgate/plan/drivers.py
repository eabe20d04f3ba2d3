"""The two drivers. They differ in one word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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

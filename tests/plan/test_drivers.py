"""Plans driven by hand and by both drivers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.plan import Call, Ping, Plan, Sleep, arun, run


def careful_plan(log: list[str]) -> Plan[str]:
    try:
        yield from Ping()
        log.append("answered")
    except OSError:
        log.append("failed")
        yield from Sleep(0)
    return "done"


def test_a_plan_driven_by_hand_handles_a_thrown_error() -> None:
    log: list[str] = []
    plan = careful_plan(log)
    assert next(plan) == Ping()
    assert plan.throw(OSError()) == Sleep(0)
    with pytest.raises(StopIteration) as finished:
        plan.send(None)
    assert finished.value.value == "done"
    assert log == ["failed"]


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("driver", ["run", "arun"])
def test_both_drivers_make_the_same_calls(driver: str, failing: bool) -> None:
    calls: list[Call[Any]] = []
    log: list[str] = []

    def perform(call: Call[Any]) -> None:
        calls.append(call)
        if failing and call == Ping():
            raise OSError

    async def aperform(call: Call[Any]) -> None:
        perform(call)

    plan = careful_plan(log)
    result = run(plan, perform) if driver == "run" else asyncio.run(_await(arun(plan, aperform)))
    assert result == "done"
    assert log == (["failed"] if failing else ["answered"])
    assert calls == ([Ping(), Sleep(0)] if failing else [Ping()])


async def _await(coroutine: Any) -> Any:
    return await coroutine


def test_an_error_the_plan_does_not_handle_gets_out() -> None:
    def perform(call: Call[Any]) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(careful_plan([]), perform)

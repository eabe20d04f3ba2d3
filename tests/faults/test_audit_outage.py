"""A penalty that fails after its event was written: the audit trail tells of nothing that did not happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fault_helpers import Place

from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter, ValidationError
from headgate.core.decide import Answer, Mode, Request

RPM = Limit.per_day("rpm", 60)
Settle = Callable[[Sequence[Request], "int | None"], list[Answer]]


def fail_penalties(limiter: SyncRateLimiter, error: Exception, *, done: bool) -> None:
    """From now on, `done` or not, the store's answer to a penalty is an error."""
    settle: Settle = limiter.engine.store.settle

    def failing(batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        penalty = any(request.mode is Mode.PENALIZE for request in batch)
        answers = settle(batch, now_ms) if done or not penalty else []
        if penalty:
            raise error
        return answers

    limiter.engine._ask = failing


def penalties(place: Place) -> list[dict[str, Any] | None]:
    with place.limiter() as operator:
        return [event.after for event in operator.get_audit_events("e")]


def test_penalty_that_the_store_refused_leaves_no_event(place: Place) -> None:
    with place.limiter() as limiter:
        limiter.set_system_defaults([RPM])
        fail_penalties(limiter, ValidationError("not so"), done=False)
        with pytest.raises(ValidationError, match="not so"):
            limiter.penalize("e", "api", seconds=60)
    assert penalties(place) == []


@pytest.mark.parametrize("done", [True, False])
def test_penalty_whose_answer_was_lost_is_told_as_not_confirmed(place: Place, done: bool) -> None:
    with place.limiter() as limiter:
        limiter.set_system_defaults([RPM])
        fail_penalties(limiter, RateLimiterUnavailable("no answer"), done=done)
        with pytest.raises(RateLimiterUnavailable):
            limiter.penalize("e", "api", seconds=60)
    assert penalties(place) == [{"seconds": 60.0, "factor": None, "confirmed": False}]


def test_penalty_that_happened_is_told_once(place: Place) -> None:
    with place.limiter() as limiter:
        limiter.set_system_defaults([RPM])
        limiter.penalize("e", "api", seconds=60)
        assert not limiter.try_acquire("e", "api", {"rpm": 1})
    assert penalties(place) == [{"seconds": 60.0, "factor": None}]

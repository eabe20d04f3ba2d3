"""Scenarios with exact answers."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import Conformance


def scenarios() -> list[dict[str, Any]]:
    text = files("headgate.testing").joinpath("vectors/token_bucket.json").read_text()
    return json.loads(text)["scenarios"]  # type: ignore[no-any-return]


def answer(limiter: Any, entity_id: str, limit: Limit, step: dict[str, Any]) -> dict[str, Any]:
    """What the limiter says to a step, in the words of the vectors."""
    said: dict[str, Any] = {}
    if step["op"] == "consume":
        decision = limiter.try_acquire(entity_id, "vectors", {"x": step["amount"]}, [limit])
        (status,) = decision.statuses
        said = {"allowed": decision.allowed, "retry_after_ms": decision.retry_after_ms}
        assert status.available == limiter.available(entity_id, "vectors", [limit])["x"]
    elif step["op"] == "adjust":
        limiter.adjust(entity_id, "vectors", {"x": step["amount"]}, [limit])
    return said | {"available": limiter.available(entity_id, "vectors", [limit])["x"]}


class VectorConformance(Conformance):
    def test_vectors(self, limiter: Any, clock: ManualClock) -> None:
        for scenario in scenarios():
            limit = Limit.custom(
                "x", scenario["capacity"], scenario["refill_amount"], scenario["refill_period_ms"] / 1000
            )
            clock.set(scenario["start_ms"])
            limiter.available(scenario["id"], "vectors", [limit])  # the bucket is born here
            for step in scenario["steps"]:
                clock.set(scenario["start_ms"] + step["at_ms"])
                expected = {key: step[key] for key in ("allowed", "retry_after_ms", "available") if key in step}
                assert answer(limiter, scenario["id"], limit, step) == expected, (scenario["id"], step)

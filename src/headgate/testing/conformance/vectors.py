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


def answer(limiter: Any, entity_id: str, limit: Limit, step: dict[str, Any], *, looks: bool) -> dict[str, Any]:
    """What the limiter says to a step, in the words of the vectors. `looks`: and whether a look agrees with it."""
    if step["op"] == "consume":
        decision = limiter.try_acquire(entity_id, "vectors", {"x": step["amount"]}, [limit])
        (status,) = decision.statuses
        if looks:
            assert status.available == limiter.available(entity_id, "vectors", [limit])["x"]
        return {
            "allowed": decision.allowed,
            "retry_after_ms": decision.retry_after_ms,
            "available": status.available,
        }
    if step["op"] == "adjust":
        limiter.adjust(entity_id, "vectors", {"x": step["amount"]}, [limit])
    return {"available": limiter.available(entity_id, "vectors", [limit])["x"]}


class VectorConformance(Conformance):
    scenarios_every = 1  # of how many scenarios one is played

    def test_every_scenario_of_the_vectors_has_its_exact_answers(self, limiter: Any, clock: ManualClock) -> None:
        for scenario in scenarios()[:: self.scenarios_every]:
            limit = Limit.custom(
                "x", scenario["capacity"], scenario["refill_amount"], scenario["refill_period_ms"] / 1000
            )
            clock.set(scenario["start_ms"])
            limiter.available(scenario["id"], "vectors", [limit])  # the bucket is born here
            for number, step in enumerate(scenario["steps"]):
                clock.set(scenario["start_ms"] + step["at_ms"])
                expected = {key: step[key] for key in ("allowed", "retry_after_ms", "available") if key in step}
                said = answer(limiter, scenario["id"], limit, step, looks=number % self.looks_every == 0)
                assert said == expected, (scenario["id"], step)

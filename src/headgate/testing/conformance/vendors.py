"""A vendor's quota: several dimensions at once, and what the vendor itself says is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance

PARALLEL = Limit.concurrent("parallel", 2)


class Response:
    def __init__(self, status_code: int, **headers: Any) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): str(value) for name, value in headers.items()}


class VendorConformance(Conformance):
    @pytest.fixture
    def vendors(self, limiter: Any) -> Any:
        limiter.set_limits("openai", [RPM, TPM, PARALLEL])
        limiter.set_limits("anthropic", [RPM, PARALLEL])
        return limiter

    def test_a_slot_of_a_dimension(self, vendors: Any) -> None:
        with vendors.slot("openai#gpt-4o") as lease:
            assert lease.consumed == {"rpm": 1, "tpm": 1, "parallel": 1}, "one of everything there is"
            lease.adjust(tpm=99)
            with vendors.slot("openai#gpt-4o", consume={"tpm": 500, "parallel": 1}, timeout=0):
                assert vendors.available("openai", "gpt-4o") == {"rpm": 59, "tpm": 900, "parallel": 0}
                with pytest.raises(RateLimitExceeded), vendors.slot("openai#gpt-4o", timeout=0):
                    pytest.fail("the body ran")
        assert vendors.available("openai", "gpt-4o") == {"rpm": 59, "tpm": 900, "parallel": 2}

    def test_several_dimensions_all_or_nothing(self, vendors: Any) -> None:
        wish = {"openai#gpt-4o": {"rpm": 1, "tpm": 500}, "anthropic#opus": None}
        with vendors.acquire_many(wish) as leases:
            assert {dimension: lease.consumed for dimension, lease in leases.items()} == {
                "openai#gpt-4o": {"rpm": 1, "tpm": 500},
                "anthropic#opus": {"rpm": 1, "parallel": 1},
            }
            assert vendors.available("anthropic", "opus") == {"rpm": 59, "parallel": 1}
        assert vendors.available("anthropic", "opus") == {"rpm": 59, "parallel": 2}
        assert vendors.available("openai", "gpt-4o") == {"rpm": 59, "tpm": 1000, "parallel": 2}

        vendors.penalize("anthropic", "opus", seconds=20)
        with pytest.raises(RateLimitExceeded) as caught, vendors.acquire_many(wish):
            pytest.fail("the body ran")
        assert {(status.entity_id, status.limit_name, status.exceeded) for status in caught.value.statuses} == {
            ("openai", "rpm", False),
            ("openai", "tpm", False),
            ("anthropic", "rpm", True),
            ("anthropic", "parallel", True),
        }
        assert caught.value.retry_after_seconds == 20.0
        assert vendors.available("openai", "gpt-4o") == {"rpm": 59, "tpm": 1000, "parallel": 2}

    def test_an_error_gives_back_all_of_them(self, vendors: Any) -> None:
        with vendors.acquire_many(["openai#gpt-4o", "anthropic#opus"]) as leases:
            assert leases["openai#gpt-4o"].consumed == {"rpm": 1, "tpm": 1, "parallel": 1}
            vendors.reset("openai", "gpt-4o")
            vendors.reset("anthropic", "opus")
        wish = {"openai#gpt-4o": {"rpm": 5, "parallel": 1}, "anthropic#opus": {"rpm": 5, "parallel": 1}}
        for on_error, rpm in (("rollback", 60), ("keep", 55)):
            with pytest.raises(ValueError), vendors.acquire_many(wish, on_error=on_error):
                raise ValueError
            for entity_id, resource in (("openai", "gpt-4o"), ("anthropic", "opus")):
                left = vendors.available(entity_id, resource)
                assert (left["rpm"], left["parallel"]) == (rpm, 2)

    def test_where_dimensions_meet_they_add_up(self, limiter: Any) -> None:
        limiter.create_entity("budget")
        limiter.set_limits("budget", [Limit.per_minute("rpm", 10), Limit.concurrent("parallel", 3)])
        for entity_id in ("a", "b"):
            limiter.create_entity(entity_id, parent_id="budget", cascade=True)
            limiter.set_limits(entity_id, [Limit.per_minute("rpm", 8), PARALLEL])
        wish = {"a#r": {"rpm": 4, "parallel": 1}, "b#r": {"rpm": 4, "parallel": 2}}
        with limiter.acquire_many(wish) as leases:
            assert limiter.available("budget", "r") == {"rpm": 2, "parallel": 0}
            with pytest.raises(RateLimitExceeded) as caught, limiter.acquire_many(wish):
                pytest.fail("the body ran")
            assert {status.entity_id for status in caught.value.violations} == {"budget", "b"}
            assert len(leases) == 2
        assert limiter.available("budget", "r") == {"rpm": 2, "parallel": 3}
        with pytest.raises(RateLimitExceeded), limiter.acquire_many({"a#r": {"rpm": 2}, "b#r": {"rpm": 1}}):
            pytest.fail("together they are too many")
        assert limiter.available("budget", "r") == {"rpm": 2, "parallel": 3}

    def test_bad_dimensions_are_refused(self, vendors: Any) -> None:
        for wish in (
            {},
            [],
            "openai#gpt-4o",
            ["openai"],
            {"openai": None},
            {"#gpt-4o": None},
            {"openai#": None},
            {1: None},
        ):
            with pytest.raises(ValidationError, match="openai#gpt-4o"), vendors.acquire_many(wish):
                pytest.fail("the body ran")
        calls: list[Callable[[], Any]] = [
            lambda: vendors.slot("gpt-4o"),
            lambda: vendors.sync_from_headers("gpt-4o", {}),
            lambda: vendors.acquire_many({"openai#r": None, "anthropic#r": {"tpm": 1}}).__enter__(),
            lambda: vendors.acquire_many({"openai#r": None}, limits={"anthropic#r": [RPM]}).__enter__(),
            lambda: vendors.acquire_many({"openai#r": None}, on_error="drop"),
        ]
        for call in calls:
            with pytest.raises(ValidationError):
                call()
        assert vendors.available("openai", "r") == {"rpm": 60, "tpm": 1500, "parallel": 2}

    def test_the_vendors_count_lowers_and_never_raises(self, vendors: Any, clock: ManualClock) -> None:
        learnt = vendors.sync_from_headers(
            "openai#gpt-4o", {"x-ratelimit-remaining-requests": "40", "x-ratelimit-remaining-tokens": "2000"}
        )
        assert {name: reading.remaining for name, reading in learnt.readings.items()} == {"rpm": 40, "tpm": 2000}
        assert learnt.penalized_seconds is None
        assert vendors.available("openai", "gpt-4o") == {"rpm": 40, "tpm": 1500, "parallel": 2}
        vendors.sync_from_headers("openai#gpt-4o", Response(200, x_ratelimit_remaining_requests=50, retry_after=9))
        assert vendors.available("openai", "gpt-4o")["rpm"] == 40
        clock.advance(10)
        assert vendors.available("openai", "gpt-4o")["rpm"] == 50, "it refills from there"
        vendors.adjust("openai", "gpt-4o", {"rpm": 70})
        vendors.sync_from_headers("openai#gpt-4o", {"x-ratelimit-remaining-requests": "0"})
        assert vendors.available("openai", "gpt-4o")["rpm"] == -20, "a debt stays a debt"

    def test_a_429_lets_nothing_pass_for_as_long_as_it_says(self, vendors: Any, clock: ManualClock) -> None:
        inside = vendors.slot("openai#gpt-4o").__enter__()
        answer = Response(429, retry_after=7, x_ratelimit_remaining_requests=0)
        assert vendors.sync_from_headers("openai#gpt-4o", answer).penalized_seconds == 7.0
        assert inside.renew()
        assert inside.sync_from_headers(Response(200, x_ratelimit_remaining_tokens=2000)).penalized_seconds is None
        assert vendors.time_until_available("openai", "gpt-4o", {"parallel": 1}) == 7.0
        assert vendors.available("anthropic", "opus") == {"rpm": 60, "parallel": 2}
        clock.advance(7)
        assert vendors.available("openai", "gpt-4o") == {"rpm": 7, "tpm": 1500, "parallel": 1}
        inside.commit()

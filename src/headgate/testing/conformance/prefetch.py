"""Prefetch: what is decided in the process was counted in the store before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import Conformance
from .usage import consumed

PREFETCH = 0.05
HARDLY = (0.001, 366 * 86_400)  # is refilled: every token is accounted for
RPM, TPM = Limit.custom("rpm", 400, *HARDLY), Limit.custom("tpm", 2000, *HARDLY)
MOST = 500


class PrefetchConformance(Conformance):
    @pytest.fixture
    def local(self, url: str) -> bool:
        """Whether there is anything to prefetch: not from a store in the process."""
        return not url.startswith("memory:")

    @pytest.fixture
    def ahead(self, open_limiter: Callable[..., Any]) -> Any:
        limiter = open_limiter(prefetch=PREFETCH)
        limiter.set_system_defaults([RPM, TPM])
        return limiter

    def test_the_next_ones_are_decided_here_and_all_are_counted(
        self, ahead: Any, open_limiter: Callable[..., Any], local: bool, clock: ManualClock
    ) -> None:
        decisions = [ahead.try_acquire("e", "r", {"rpm": 1, "tpm": 2}) for _ in range(60)]
        assert all(decisions)
        assert (sum(decision.local for decision in decisions) > 30) == local
        clock.advance(PREFETCH)
        assert ahead.available("e", "r") == {"rpm": 340, "tpm": 1880}
        assert open_limiter().available("e", "r") == {"rpm": 340, "tpm": 1880}
        assert consumed(ahead) == {"rpm": 60, "tpm": 120}

    def test_what_it_knows_is_what_is_left(self, ahead: Any) -> None:
        for count in range(1, 40):
            statuses = ahead.try_acquire("e", "r", {"rpm": 1, "tpm": 2}).statuses
            assert [status.available for status in statuses] == [400 - count, 2000 - 2 * count]

    def test_a_refusal_is_the_stores(self, ahead: Any) -> None:
        for amount in (1, 3, 40):
            passed = 0
            while ahead.try_acquire("e", "r", {"rpm": amount}):
                passed += 1
                assert passed <= MOST
            assert passed == 400 // amount
            assert ahead.available("e", "r")["rpm"] == 400 % amount
            ahead.reset("e", "r")

    def test_two_take_what_there_is_and_no_more(
        self, ahead: Any, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        others = [ahead, open_limiter(prefetch=PREFETCH)]
        passed = 0
        for number in range(2 * MOST):
            passed += bool(others[number % 7 % 2].try_acquire("e", "r", {"rpm": 1}))
            if number % 5 == 0:
                clock.advance(0.003)
        assert passed <= 400
        clock.advance(PREFETCH)
        for limiter in others:  # what they hold is late: each gives it back
            limiter.available("e", "r")
        while ahead.try_acquire("e", "r", {"rpm": 1}):
            passed += 1
        assert 399 <= passed <= 400  # what came back late may have been less by a millitoken

    def test_many_at_once_take_what_there_is_and_no_more(self, ahead: Any) -> None:
        call = ("try_acquire", ("e", "r", {"rpm": 1}))
        answers = [bool(answer) for _ in range(20) for answer in ahead.together([call] * 24)]
        assert sum(answers) == 400
        assert ahead.available("e", "r")["rpm"] == 0

    def test_a_cascade_takes_ahead_on_all_levels(self, ahead: Any, clock: ManualClock, local: bool) -> None:
        ahead.create_entity("org")
        ahead.set_limits("org", [Limit.custom("rpm", 300, *HARDLY)])
        for name in ("left", "right"):
            ahead.create_entity(name, parent_id="org", cascade=True)
        decisions = [ahead.try_acquire(("left", "right")[number % 2], "r", {"rpm": 1}) for number in range(MOST)]
        assert sum(map(bool, decisions)) == 300
        assert any(decision.local for decision in decisions) == local
        taken = {
            name: sum(one.limit.capacity - one.available for one in ahead.get_buckets(name) if one.limit.name == "rpm")
            for name in ("left", "right", "org")
        }
        assert taken["left"] + taken["right"] == taken["org"] == 300

    def test_a_rollback_is_given_back_once(self, ahead: Any, clock: ManualClock) -> None:
        for pause in (0, PREFETCH):
            for _ in range(20):
                decision = ahead.try_acquire("e", "r", {"rpm": 1})
                clock.advance(pause if decision.local else 0)
                decision.lease.rollback()
        assert ahead.available("e", "r")["rpm"] in (399, 400)

    def test_a_penalty_and_a_reset_end_what_was_taken_ahead(self, ahead: Any) -> None:
        for _ in range(30):
            assert ahead.try_acquire("e", "r", {"rpm": 1})
        ahead.penalize("e", "r", seconds=5)
        assert not ahead.try_acquire("e", "r", {"rpm": 1})
        ahead.reset("e", "r")
        assert ahead.available("e", "r")["rpm"] == 400

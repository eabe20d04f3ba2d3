"""Which parts of the conformance suite run on which stores.

What the limiter alone decides is the same on every store: it runs on memory and on one server. Of a store with two
transports the one for tasks runs everything, and the one for threads what depends on the transport.
"""

from __future__ import annotations

from typing import Any

import pytest

from headgate.testing.conformance.acquire import AcquireConformance
from headgate.testing.conformance.changing_limits import ChangingLimitConformance
from headgate.testing.conformance.concurrency import ConcurrencyConformance
from headgate.testing.conformance.hashed_ids import HashedIdConformance
from headgate.testing.conformance.input import InputConformance
from headgate.testing.conformance.leases import LeaseConformance
from headgate.testing.conformance.levels import LevelsConformance
from headgate.testing.conformance.quotas import QuotaConformance
from headgate.testing.conformance.slot_queue import SlotQueueConformance
from headgate.testing.conformance.slots import SlotConformance
from headgate.testing.conformance.vectors import VectorConformance
from headgate.testing.conformance.waiting import WaitingConformance
from headgate.testing.conformance.zero_amounts import ZeroAmountConformance

# The store has a part in these: what it can hold, and how it opens and closes.
OF_THE_STORE = {
    "test_every_allowed_character_of_identifiers_works",
    "test_metadata_has_a_largest_size_and_depth",
    "test_a_closed_limiter_refuses_every_call_and_its_leases_too",
    "test_setup_can_be_repeated_and_ping_answers",
}


class Tasks:
    @pytest.fixture(params=["async"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class Threads:
    @pytest.fixture(params=["sync"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


def _without(*suites: type) -> dict[str, None]:
    names = {name for suite in suites for name in vars(suite) if name.startswith("test_")}
    return dict.fromkeys(names - OF_THE_STORE)


# Before the suite in a class: without what the limiter alone decides.
LimiterElsewhere: Any = type("LimiterElsewhere", (), _without(InputConformance, LevelsConformance, HashedIdConformance))


class ThreadsOnly:
    """Before the suite in a class: without what is asked of tasks, which the other kind has answered."""

    test_a_cancelled_adjustment_lands_all_the_same = None
    test_an_event_loop_that_ends_amid_acquires = None
    test_an_event_loop_that_ends_amid_releases = None
    test_adjustment_cancelled_while_limits_are_read_still_lands = None
    test_cancelled_acquire_raises_its_callers_own_cancellation = None
    test_cancelled_acquires_leave_nothing_taken_when_the_event_loop_ends_at_once = None
    test_cancelled_at_any_moment_nothing_stays_taken = None
    test_cancelled_twice_it_still_gives_back = None
    test_coalescing_changes_no_answer = None
    test_first_come_first_served = None


class Transport(
    ThreadsOnly,
    VectorConformance,
    QuotaConformance,
    AcquireConformance,
    ChangingLimitConformance,
    ZeroAmountConformance,
    LeaseConformance,
    WaitingConformance,
    SlotConformance,
    SlotQueueConformance,
    ConcurrencyConformance,
):
    """What depends on the transport of a server that decides. What both transports carry is made by the same plans."""

"""Many decisions in one call: the same answers as one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...limiter import Ask
from .fixtures import RPM, TPM, Conformance

PARALLEL = Limit.concurrent("parallel", 3)
LIMITS = [Limit.per_minute("rpm", 5), Limit.per_minute("tpm", 400), PARALLEL]


def some_asks(rng: random.Random) -> list[Any]:
    def ask() -> Ask:
        wish = rng.choice([{"rpm": 1}, {"rpm": 2, "tpm": rng.randint(1, 200)}, {"rpm": 1, "parallel": 1}, {"tpm": 500}])
        return Ask(rng.choice("ab"), rng.choice(["r", "s"]), wish, LIMITS)

    return [ask() if rng.random() < 0.6 else [ask() for _ in range(rng.randint(1, 3))] for _ in range(8)]


def one_after_the_other(limiter: Any, element: Any) -> bool:
    taken: list[Any] = []
    for ask in [element] if isinstance(element, Ask) else element:
        decision = limiter.try_acquire(*ask)
        if not decision:
            for lease in taken:
                lease.rollback()
            return False
        taken.append(decision.lease)
    return True


def left(limiter: Any) -> list[Any]:
    return [limiter.available(entity_id, resource, LIMITS) for entity_id in "ab" for resource in "rs"]


class BatchConformance(Conformance):
    @pytest.mark.parametrize("seed", range(3))
    def test_the_same_as_one_after_the_other(self, open_limiter: Callable[..., Any], seed: int) -> None:
        many, single = open_limiter(namespace="many"), open_limiter(namespace="single")
        rng = random.Random(seed)
        for _ in range(2):
            asks = some_asks(rng)
            expected = [one_after_the_other(single, element) for element in asks]
            kept = many.try_acquire_each(asks)
            assert [bool(decision) for decision in kept] == expected
            assert left(many) == left(single)

    def test_statuses_and_waits_are_those_of_each(self, limiter: Any) -> None:
        first, second, both = limiter.try_acquire_each(
            [
                Ask("a", "r", {"rpm": 60}, [RPM]),
                Ask("a", "r", {"rpm": 2}, [RPM]),
                [Ask("b", "r", {"tpm": 1500}, [TPM]), Ask("b", "s", None, [RPM])],
            ]
        )
        assert (first.allowed, first.retry_after_ms) == (True, 0)
        assert (second.allowed, second.retry_after_ms) == (False, 2_000)
        assert second.leases == []
        assert [(status.resource, status.limit_name, status.available) for status in both.statuses] == [
            ("r", "tpm", 0),
            ("s", "rpm", 59),
        ]
        assert [[status.limit_name for status in statuses] for statuses in both.statuses_by_ask] == [["tpm"], ["rpm"]]
        assert second.statuses_by_ask == [second.statuses]
        assert [lease.consumed for lease in both.leases] == [{"tpm": 1500}, {"rpm": 1}]

    def test_a_group_passes_or_fails_as_a_whole(self, limiter: Any) -> None:
        (group,) = limiter.try_acquire_each([[Ask("a", "r", {"rpm": 60}, [RPM]), Ask("b", "r", {"rpm": 61}, [RPM])]])
        assert (group.allowed, group.retry_after_ms) == (False, None)
        assert limiter.available("a", "r", [RPM]) == {"rpm": 60}
        (twice,) = limiter.try_acquire_each([[Ask("a", "r", {"rpm": 40}, [RPM]), Ask("a", "r", {"rpm": 21}, [RPM])]])
        assert not twice.allowed, "where they meet, what they take adds up"
        assert limiter.available("a", "r", [RPM]) == {"rpm": 60}

    def test_the_slots_of_a_group_come_back_with_its_leases(self, limiter: Any) -> None:
        (group,) = limiter.try_acquire_each([[Ask("a", "r", None, [PARALLEL, RPM]), Ask("b", "r", None, [PARALLEL])]])
        assert limiter.available("a", "r", [PARALLEL]) == limiter.available("b", "r", [PARALLEL]) == {"parallel": 2}
        for lease in group.leases:
            lease.commit()
        assert limiter.available("a", "r", [PARALLEL]) == limiter.available("b", "r", [PARALLEL]) == {"parallel": 3}
        assert limiter.available("a", "r", [RPM]) == {"rpm": 59}

    def test_a_limit_of_one_kind_in_one_ask_and_of_the_other_in_the_next(self, limiter: Any) -> None:
        tokens, slots = [Limit.per_minute("x", 5)], [Limit.concurrent("x", 2)]
        wishes = [(2, slots), (1, slots), (4, tokens), (2, tokens), (1, slots), (1, slots), (1, slots)]
        asks = [Ask("a", "r", {"x": amount}, limits) for amount, limits in wishes]
        kept = limiter.try_acquire_each(asks)
        assert [bool(decision) for decision in kept] == [True, False, True, False, True, True, False]
        assert limiter.available("a", "r", slots) == {"x": 0}

    def test_one_that_cannot_be_asked_and_none_is(self, limiter: Any) -> None:
        good = Ask("a", "r", {"rpm": 1}, [RPM])
        no_such_limit, no_such_id, no_limits = (
            Ask("a", "r", {"tpm": 1}, [RPM]),
            Ask("a b", "r", None, [RPM]),
            Ask("a", "r"),
        )
        bad: Any
        for bad in (no_such_limit, no_such_id, no_limits, [], "a", ("a", "r")):
            with pytest.raises(ValidationError):
                limiter.try_acquire_each([good, bad])
        nothing: Any
        for nothing in (good, "a", None):
            with pytest.raises(ValidationError, match="list of Ask"):
                limiter.try_acquire_each(nothing)
        assert limiter.try_acquire_each([]) == []
        assert limiter.available("a", "r", [RPM]) == {"rpm": 60}

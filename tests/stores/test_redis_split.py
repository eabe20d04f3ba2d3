"""Requests over several slots, the plan by hand: what is asked of which slot, and what is given back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headgate import Limit, RateLimiterUnavailable
from headgate.core.decide import FORCE, PEEK, TAKE, Answer, Mode, Part, Request
from headgate.core.errors import PartlyAnswered
from headgate.core.names import StoredId, bucket_key
from headgate.core.slots import OVERTAKES
from headgate.plan import Call, Plan
from headgate.stores.redis.keys import Keys
from headgate.stores.redis.split import settle_split_plan
from headgate.stores.server import MoreTime

KEYS = Keys("entity", clustered=True)
X, Y = Limit.per_minute("x", 10), Limit.per_minute("y", 20)
AWAY = RateLimiterUnavailable("the server is away")


def key(entity_id: str) -> str:
    return bucket_key("default", StoredId(entity_id), "r")


def slot(entity_id: str) -> int:
    return KEYS.slot(KEYS.row(key(entity_id)))


@dataclass(frozen=True)
class Asked(Call[Any]):
    """What the plan wants of the slots; in each the amounts by entity and limit."""

    batches: dict[int, Sequence[Request]]

    @property
    def amounts(self) -> dict[int, list[list[tuple[str, str, int]]]]:
        return {
            slot: [
                [(request.keys[part.level], part.limit.name, part.amount_milli) for part in request.parts]
                for request in batch
            ]
            for slot, batch in self.batches.items()
        }

    @property
    def modes(self) -> set[Mode]:
        return {request.mode for batch in self.batches.values() for request in batch}


def ask(batches: dict[int, Sequence[Request]], now_ms: int | None) -> Plan[Any]:
    assert now_ms == 5
    return (yield from Asked(batches))


class Hand:
    """A plan that was begun. `answer` gives it, for each slot it asked, what became of the requests there."""

    def __init__(self, *requests: Request) -> None:
        self._plan = settle_split_plan(ask, KEYS, requests, 5)
        self.answers: list[Answer] | None = None
        self._go(None)

    def answer(self, by_slot: dict[int, Any]) -> None:
        assert self.asked is not None
        self._go([by_slot[slot] for slot in self.asked.batches])

    def _go(self, answer: Any) -> None:
        try:
            call = self._plan.send(answer)
            while isinstance(call, MoreTime):
                call = self._plan.send(None)
        except StopIteration as done:
            self.asked, self.answers = None, done.value
        else:
            assert isinstance(call, Asked)
            self.asked = call


def request(mode: Mode, *entities: str, x: int = 1000, max_wait_ms: int = 0) -> Request:
    """Of each entity `x` of X, of the second one Y too."""
    parts = [Part(level, X, x) for level in range(len(entities))]
    if len(entities) > 1:
        parts.insert(2, Part(1, Y, 2000))
    return Request(mode, tuple(map(key, entities)), tuple(parts), max_wait_ms)


def passed(*left: int, wait_ms: int = 0) -> Answer:
    return Answer(True, wait_ms, [(milli, wait_ms) for milli in left])


def refused(*left: int, wait_ms: int | None = 300) -> Answer:
    return Answer(False, wait_ms, [(milli, wait_ms) for milli in left])


def shown(answer: Answer) -> tuple[Any, ...]:
    return answer.allowed, answer.wait_ms, list(answer.levels)


def test_in_one_slot_it_goes_as_it_is() -> None:
    whole = request(TAKE, "a")
    hand = Hand(whole)
    assert hand.asked is not None
    assert hand.asked.batches == {slot("a"): [whole]}
    answer = passed(9000)
    hand.answer({slot("a"): [answer]})
    assert hand.answers == [answer]


def test_every_slot_is_asked_for_its_part_at_once() -> None:
    hand = Hand(request(TAKE, "a", "b", "c"), request(TAKE, "b"))
    assert hand.asked is not None
    assert hand.asked.amounts == {
        slot("a"): [[(key("a"), "x", 1000)]],
        slot("b"): [[(key("b"), "x", 1000), (key("b"), "y", 2000)], [(key("b"), "x", 1000)]],
        slot("c"): [[(key("c"), "x", 1000)]],
    }
    hand.answer({slot("a"): [passed(1)], slot("b"): [passed(2, 3), passed(4)], slot("c"): [passed(5)]})
    assert hand.answers is not None
    assert [shown(answer) for answer in hand.answers] == [
        (True, 0, [(1, 0), (2, 0), (3, 0), (5, 0)]),
        (True, 0, [(4, 0)]),
    ]


def test_a_reservation_waits_for_the_slowest() -> None:
    hand = Hand(request(TAKE, "a", "b", max_wait_ms=1000))
    hand.answer({slot("a"): [passed(-5, wait_ms=200)], slot("b"): [passed(-6, -7, wait_ms=700)]})
    assert hand.answers is not None
    assert shown(hand.answers[0]) == (True, 700, [(-5, 200), (-6, 700), (-7, 700)])


def test_refused_in_one_slot_it_is_given_back_in_the_others() -> None:
    hand = Hand(request(TAKE, "a", "b", "c"), request(TAKE, "a"))
    hand.answer({slot("a"): [passed(7000), passed(6000)], slot("b"): [refused(0, 9000)], slot("c"): [passed(3000)]})
    assert hand.asked is not None
    assert hand.asked.modes == {FORCE}
    assert hand.asked.amounts == {slot("a"): [[(key("a"), "x", -1000)]], slot("c"): [[(key("c"), "x", -1000)]]}
    hand.answer({slot("a"): [passed(7000)], slot("c"): [passed(4000)]})
    assert hand.answers is not None
    first, second = map(shown, hand.answers)
    assert first == (False, 300, [(8000, 0), (0, 300), (9000, 300), (4000, 0)]), "as if nothing had been taken"
    assert second == (True, 0, [(6000, 0)])


def test_request_refused_for_ever_by_one_slot_is_refused_for_ever() -> None:
    hand = Hand(request(TAKE, "a", "b"))
    hand.answer({slot("a"): [refused(0, wait_ms=100)], slot("b"): [refused(0, 0, wait_ms=None)]})
    assert hand.answers is not None
    assert shown(hand.answers[0])[:2] == (False, None)


def test_without_an_answer_from_one_slot_it_is_given_back_in_the_others() -> None:
    hand = Hand(request(TAKE, "a", "b", "c"))
    hand.answer({slot("a"): [passed(1)], slot("b"): AWAY, slot("c"): [refused(2)]})
    assert hand.asked is not None
    assert hand.asked.amounts == {slot("a"): [[(key("a"), "x", -1000)]]}, "whether b took anything nobody knows"
    with pytest.raises(PartlyAnswered, match="the server is away"):  # for a breaker, the cluster is there
        hand.answer({slot("a"): [passed(1)]})


def test_the_others_of_the_batch_get_their_answers() -> None:
    hand = Hand(request(TAKE, "a", "b"), request(TAKE, "a"), request(TAKE, "b"))
    hand.answer({slot("a"): [passed(2), passed(1)], slot("b"): AWAY})
    with pytest.raises(PartlyAnswered, match="the server is away") as caught:
        hand.answer({slot("a"): [passed(3)]})
    assert [isinstance(one, Answer) and shown(one) for one in caught.value.results] == [
        False,
        (True, 0, [(1, 0)]),
        False,
    ]


def test_what_cannot_be_given_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand(request(TAKE, "a", "b"))
    hand.answer({slot("a"): [passed(5000)], slot("b"): [refused(0, 0)]})
    with caplog.at_level(logging.WARNING, "headgate"):
        hand.answer({slot("a"): AWAY})
    assert "could not be given back: the server is away" in caplog.text
    assert hand.answers is not None
    assert not hand.answers[0].allowed


@pytest.mark.parametrize("mode", [FORCE, PEEK])
def test_whoever_takes_nothing_gives_nothing_back(mode: Mode) -> None:
    hand = Hand(request(mode, "a", "b"))
    assert hand.asked is not None
    assert hand.asked.modes == {mode}
    with pytest.raises(PartlyAnswered, match="the server is away"):
        hand.answer({slot("a"): [passed(5000)], slot("b"): AWAY})


def test_equal_callers_go_on_sharing_their_parts() -> None:
    """So that those who meet at an ancestor are told there once."""
    first = request(TAKE, "a", "b")
    hand = Hand(first, first._replace(keys=(key("c"), key("b"))))
    assert hand.asked is not None
    one, other = hand.asked.batches[slot("b")]
    assert one.parts is other.parts


@pytest.mark.parametrize(("concurrent", "place_ms"), [(("a",), 700), (("a", "b"), OVERTAKES)])
def test_a_request_for_slots_joins_a_queue_only_if_there_is_one(concurrent: tuple[str, ...], place_ms: int) -> None:
    """Two requests, each first in one of two queues, would wait for each other."""
    slots = Limit.concurrent("s", 2, 60)
    parts = tuple(Part(level, slots if entity in concurrent else X, 1000) for level, entity in enumerate("ab"))
    hand = Hand(Request(TAKE, (key("a"), key("b")), parts, lease_id="l", place_ms=700))
    assert hand.asked is not None
    assert {request.place_ms for batch in hand.asked.batches.values() for request in batch} == {place_ms}

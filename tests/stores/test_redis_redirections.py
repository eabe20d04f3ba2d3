"""The router by hand, with a cluster or sentinels: who is asked, and what is made of a redirection."""

from __future__ import annotations

from typing import Any

import pytest
from redis_play import (
    HIGH,
    LATE,
    LOST,
    LOW,
    NAMED,
    NOSCRIPT,
    SENTINEL_QUESTION,
    TRYAGAIN,
    UNREACHED,
    A,
    B,
    C,
    again,
    ask,
    deliver,
    in_turn,
    moved,
    new_router,
    nodes,
    once,
)

from headgate import RateLimiterUnavailable
from headgate.stores.redis.exchange import Pipeline, ReplyError, SendPipelines
from headgate.stores.redis.keys import SLOTS
from headgate.stores.redis.router import RedisCommand, Router
from headgate.stores.redis.script import SETTLE
from headgate.stores.redis.url import Address


class TestCluster:
    @pytest.fixture
    def router(self) -> Router:
        return new_router("redis+cluster://a:1,b:2,c:3")

    def test_commands_go_to_the_nodes_of_their_slots_in_one_exchange(self, router: Router) -> None:
        echo = nodes(lambda address, command: (*address, *command))
        play = deliver(router, again("x", HIGH), again("y", LOW), again("z", HIGH), by=echo)
        assert play.replies == [("b", 2, "x"), ("a", 1, "y"), ("b", 2, "z")]
        assert play.exchanges == 2, "where the slots are, and all at once"
        assert deliver(router, again("x", HIGH), by=echo).sent == [(B, ("x",))]

    @pytest.mark.parametrize("place", ["c:3", ":3"])
    def test_moved_slot_is_followed_and_remembered(self, router: Router, place: str) -> None:
        """Without a host it is that of the node that says so."""
        there = C if place == "c:3" else ("a", 3)
        behave = nodes(lambda address, command: 1 if address == there else moved(LOW, place))
        assert deliver(router, once("x", LOW), by=behave).servers == [A, A, there]
        play = deliver(router, once("x", LOW), by=behave)
        assert play.replies == [1]
        assert play.servers == [there]

    @pytest.mark.parametrize("place", ["c:3", ":3"])
    def test_ask_redirection_is_followed_and_not_remembered(self, router: Router, place: str) -> None:
        there = C if place == "c:3" else ("a", 3)
        behave = nodes(lambda address, command: 1 if address == there else ask(LOW, place))
        for _ in range(2):
            play = deliver(router, once("x", LOW), by=behave)
            assert play.replies == [1]
            assert play.sent[-3:] == [(A, ("x",)), (there, ("ASKING",)), (there, ("x",))]

    def test_asked_to_one_that_does_not_know_the_script(self, router: Router) -> None:
        def behave(address: Address, command: Any) -> Any:
            if command == ("ASKING",):
                return b"OK"
            if address == A:
                return ask(LOW, "c:3")
            return NOSCRIPT if command[0] == "EVALSHA" else 1

        play = deliver(
            router, RedisCommand(("EVALSHA", SETTLE.sha, 0), LOW, repeatable=False, script=SETTLE), by=nodes(behave)
        )
        assert play.replies == [1]
        assert play.sent[-2:] == [(C, ("ASKING",)), (C, ("EVAL", SETTLE.source, "0"))]

    def test_a_slot_on_the_move(self, router: Router) -> None:
        errors = [TRYAGAIN, TRYAGAIN, TRYAGAIN]
        play = deliver(router, once("x", LOW), by=nodes(lambda *_: errors.pop() if errors else 1))
        assert play.replies == [1]
        assert play.servers == [A] * 5
        assert play.slept > 0

    def test_a_move_that_ends_at_the_last_moment(self, router: Router) -> None:
        """A redirection is an answer, and following it costs no patience."""
        tries = deliver(router, once("x", LOW), by=nodes(lambda *_: TRYAGAIN)).servers.count(A) - 1
        errors = [TRYAGAIN] * (tries - 1)

        def behave(address: Address, command: Any) -> Any:
            return 1 if address == C else errors.pop() if errors else moved(LOW, "c:3")

        assert deliver(router, once("x", LOW), by=nodes(behave)).replies == [1]

    def test_nodes_that_do_not_agree_for_a_moment(self, router: Router) -> None:
        """One has given the slot away, and the other has not heard of it yet."""
        answers = [moved(LOW, "c:3"), moved(LOW, "a:1")] * 5 + [1]
        play = deliver(router, once("x", LOW), by=nodes(lambda *_: answers.pop(0)))
        assert play.replies == [1]
        assert play.slept > 0

    def test_nodes_that_send_each_other_on_for_ever(self, router: Router) -> None:
        play = deliver(
            router, again("x", LOW), by=nodes(lambda address, _: moved(LOW, "c:3" if address == A else "a:1"))
        )
        assert "MOVED" in play.told

    def test_a_dead_node_is_no_matter_of_the_others(self, router: Router) -> None:
        behave = nodes(lambda address, command: UNREACHED if address == A else command[0])
        play = deliver(router, again("x", LOW), once("y", HIGH), again("z", LOW), by=behave)
        assert play.replies[1] == "y"
        assert play.told == "the Redis server at a:1 cannot be reached"
        assert isinstance(play.replies[2], RateLimiterUnavailable)
        assert [command for _, command in play.sent].count(("y",)) == 1

    def test_after_a_loss_it_asks_where_the_slots_are_now(self, router: Router) -> None:
        halves = [[0, SLOTS - 1, [b"a", 1]]]

        def behave(address: Address, _: Any) -> Any:
            halves[0] = [0, SLOTS - 1, [b"b", 2]]
            return UNREACHED if address == A else 1

        play = deliver(router, once("x", LOW), by=nodes(behave, halves))
        assert play.replies == [1]
        assert play.servers[-1] == B

    @pytest.mark.parametrize("host", [b"", None])
    def test_a_node_that_does_not_say_where_it_is(self, router: Router, host: Any) -> None:
        play = deliver(router, again("x", LOW), by=nodes(lambda *_: 1, [[0, SLOTS - 1, [host, 9]]]))
        assert play.servers == [A, ("a", 9)]

    def test_nobody_tells_the_slots(self, router: Router) -> None:
        answers = in_turn(UNREACHED, [ReplyError("ERR", "This instance has cluster support disabled")], LATE)
        with pytest.raises(RateLimiterUnavailable) as caught:
            deliver(router, again("x", LOW), by=answers)
        for why in ("a:1 cannot be reached", "b:2 This instance has cluster support disabled", "c:3 did not answer"):
            assert why in str(caught.value)

    def test_one_that_does_not_answer_is_asked_last_from_then_on(self, router: Router) -> None:
        def behave(send: Pipeline) -> Any:
            return UNREACHED if send.address == A else nodes(lambda *_: 1)(send)

        assert deliver(router, again("x", HIGH), by=behave).servers == [A, B, B]
        router._forget()
        assert deliver(router, again("x", HIGH), by=behave).servers == [B, B]

    def test_no_answer_of_one_uses_up_the_time_of_all(self, router: Router) -> None:
        plan = router.deliver_plan([again("x", LOW)])
        question = next(plan)
        assert isinstance(question, SendPipelines)
        assert question.share <= 0.5


class TestSentinel:
    @pytest.fixture
    def router(self) -> Router:
        return new_router("redis+sentinel://a:1,b:2,c:3/main")

    def test_sentinels_are_asked_once_for_the_primary(self, router: Router) -> None:
        play = deliver(router, again("x"), by=in_turn(NAMED, [1]))
        assert play.replies == [1]
        assert play.sent == [(A, SENTINEL_QUESTION), (("p", 9), ("x",))]
        assert deliver(router, again("x"), by=in_turn([1])).servers == [("p", 9)]

    def test_the_next_if_one_does_not_know(self, router: Router) -> None:
        play = deliver(router, again("x"), by=in_turn(UNREACHED, [None], NAMED, [1]))
        assert play.servers == [A, B, C, ("p", 9)]

    def test_sentinels_that_know_no_primary_are_all_named(self, router: Router) -> None:
        answers = in_turn(UNREACHED, [None], [ReplyError("NOAUTH", "Authentication required.")])
        with pytest.raises(RateLimiterUnavailable) as caught:
            deliver(router, again("x"), by=answers)
        for why in ("'main'", "a:1 cannot be reached", "b:2 does not know it", "c:3 Authentication required."):
            assert why in str(caught.value)

    @pytest.mark.parametrize("trouble", [[ReplyError("READONLY", "You can't write")], UNREACHED])
    def test_after_a_failover_it_asks_again(self, router: Router, trouble: Any) -> None:
        play = deliver(router, once("x"), by=in_turn(NAMED, trouble, [[b"q", b"8"]], [1]))
        assert play.replies == [1]
        assert play.servers[-1] == ("q", 8)
        assert play.hung_up == ([] if trouble == UNREACHED else [("p", 9)])

    def test_what_may_have_been_done_is_not_sent_to_the_next(self, router: Router) -> None:
        play = deliver(router, once("x"), by=in_turn(NAMED, LOST, [[b"q", b"8"]], [1]))
        assert play.servers == [A, ("p", 9)]
        assert "closed the connection" in play.told

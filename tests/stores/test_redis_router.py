"""The router by hand, with one server: what is sent again, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis_play import (
    HALVES,
    HIGH,
    LATE,
    LOST,
    LOW,
    NAMED,
    NOSCRIPT,
    SENTINEL_QUESTION,
    SLOTS_QUESTION,
    UNREACHED,
    A,
    Play,
    again,
    deliver,
    in_turn,
    new_router,
    once,
)

from headgate import RateLimiterUnavailable
from headgate.stores.redis.exchange import Pipeline, ReplyError
from headgate.stores.redis.router import RedisCommand
from headgate.stores.redis.script import SETTLE
from headgate.stores.server import Lost


class TestOneServer:
    def test_commands_are_answered_in_order(self) -> None:
        play = deliver(new_router(), again("x"), once("y"), by=in_turn([1, 2]))
        assert play.replies == [1, 2]
        assert play.sent == [(A, ("x",)), (A, ("y",))]

    @pytest.mark.parametrize("repeatable", [True, False])
    def test_an_unknown_script_is_sent_along(self, repeatable: bool) -> None:
        command = RedisCommand(("EVALSHA", SETTLE.sha, "1", "key", "[]"), repeatable=repeatable, script=SETTLE)
        play = deliver(new_router(), command, by=in_turn([NOSCRIPT], [[5]]))
        assert play.replies == [[5]]
        assert [arguments for _, arguments in play.sent] == [
            ("EVALSHA", SETTLE.sha, "1", "key", "[]"),
            ("EVAL", SETTLE.source, "1", "key", "[]"),
        ]

    def test_without_a_reply_it_is_sent_again_if_it_may(self) -> None:
        play = deliver(new_router(), again(), by=in_turn(LOST, UNREACHED, [1]))
        assert play.replies == [1]
        assert len(play.sent) == 3

    def test_lost_command_is_sent_again_three_times_at_most(self) -> None:
        play = deliver(new_router(), again(), by=in_turn(LOST))
        assert len(play.sent) == 3
        assert play.told == "the Redis server at a:1 closed the connection"

    def test_and_not_what_may_have_been_done(self) -> None:
        play = deliver(new_router(), once(), by=in_turn(LOST))
        assert len(play.sent) == 1
        assert play.told == "the Redis server at a:1 closed the connection"

    def test_what_cannot_have_arrived_is_sent_again(self) -> None:
        play = deliver(new_router(), once(), by=in_turn(UNREACHED, UNREACHED, [1]))
        assert play.replies == [1]

    def test_then_too_it_is_not_sent_again_once_it_may_have_been_done(self) -> None:
        play = deliver(new_router(), once(), by=in_turn(UNREACHED, LOST))
        assert len(play.sent) == 2
        assert "closed the connection" in play.told

    @pytest.mark.parametrize("sent", [True, False])
    @pytest.mark.parametrize("command", [again, once])
    def test_when_it_is_late_nothing_is_sent(self, command: Callable[[], RedisCommand], sent: bool) -> None:
        play = deliver(new_router(), command(), by=in_turn(Lost("did not answer", sent=sent, late=True)))
        assert len(play.sent) == 1
        assert play.slept == 0
        assert "did not answer" in play.told

    def test_of_several_only_those_that_may(self) -> None:
        play = deliver(new_router(), again("x"), once("y"), again("z"), by=in_turn(LOST, [1, 3]))
        assert play.sent[3:] == [(A, ("x",)), (A, ("z",))]
        assert [play.replies[0], play.replies[2]] == [1, 3]
        assert isinstance(play.replies[1], RateLimiterUnavailable)

    def test_an_error_is_the_answer_to_its_command_alone(self) -> None:
        play = deliver(new_router(), once("x"), once("y"), by=in_turn([ReplyError("OOM", "command not allowed"), 2]))
        assert play.replies[1] == 2
        assert play.told.startswith("Redis says OOM command not allowed (the server's memory is full; raise maxmemory")
        assert len(play.sent) == 2

    @pytest.mark.parametrize("code", ["READONLY", "LOADING", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS"])
    def test_what_passes_in_a_moment_is_tried_again(self, code: str) -> None:
        error = ReplyError(code, "not now")
        play = deliver(new_router(), once(), by=in_turn([error], [error], [error], [1]))
        assert play.replies == [1]
        assert 0 < play.slept < 1
        assert play.hung_up == ([A] * 3 if code == "READONLY" else [])

    @pytest.mark.parametrize("code", ["READONLY", "LOADING", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS"])
    def test_but_the_moment_has_an_end(self, code: str) -> None:
        play = deliver(new_router(), once(), by=in_turn([ReplyError(code, "not now")]))
        assert play.told.startswith(f"Redis says {code} not now")
        assert 0 < play.slept < 1

    def test_the_first_attempt_may_have_been_made(self) -> None:
        play = Play(new_router().deliver_plan([again()], [LOST]), in_turn([1]))
        assert play.replies == [1]
        assert len(play.sent) == 1
        play = Play(new_router().deliver_plan([once()], [LOST]), in_turn([1]))
        assert "closed the connection" in play.told
        assert play.sent == []


codes = [
    "NOSCRIPT",
    "READONLY",
    "LOADING",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "NOREPLICAS",
    "OOM",
    "NOPERM",
    "ERR",
]
behaviours = st.one_of(
    st.just("right"),
    st.sampled_from(codes).map(lambda code: ReplyError(code, "so")),
    st.sampled_from([ReplyError(code, f"{slot} {place}") for code in ("MOVED", "ASK") for slot in (LOW, HIGH)
                     for place in ("a:1", "b:2", "c:3")]),
    st.sampled_from([LOST, UNREACHED, LATE]),
)  # fmt: skip


@given(
    st.sampled_from(["redis://a:1", "redis+cluster://a:1,b:2", "redis+sentinel://a:1/main"]),
    st.lists(st.tuples(st.booleans(), st.sampled_from([LOW, HIGH])), min_size=1, max_size=5),
    st.lists(behaviours, max_size=60),
)
@settings(deadline=None)
def test_any_behaviour_of_servers_ends_and_repeats_nothing_in_doubt(
    url: str, kinds: list[tuple[bool, int]], script: list[Any]
) -> None:
    """It comes to an end, replies are never mixed up, and what may have been done and must not be twice is not sent."""
    commands = [
        RedisCommand(("EVALSHA", SETTLE.sha, 0, number), slot, repeatable=repeatable, script=SETTLE)
        for number, (repeatable, slot) in enumerate(kinds)
    ]
    in_doubt: set[int] = set()
    over: set[int] = set()

    def answer(send: Pipeline) -> Any:
        if send.commands[0] in (SLOTS_QUESTION, SENTINEL_QUESTION):
            return [HALVES] if send.commands[0] == SLOTS_QUESTION else NAMED
        numbers = [int(command[-1]) for command in send.commands if command != ("ASKING",)]
        assert not in_doubt.intersection(numbers)
        assert not over.intersection(numbers)
        replies: list[Any] = []
        for command in send.commands:
            reply = script.pop(0) if script else "right"
            if isinstance(reply, Lost):
                over.update(numbers if reply.late else ())
                in_doubt.update(number for number in numbers if reply.sent and not kinds[number][0])
                return reply
            if command == ("ASKING",) or reply == "right" or (reply.code == "NOSCRIPT" and command[0] == "EVAL"):
                replies.append(command[-1])
            else:
                replies.append(reply)
        return replies

    play = deliver(new_router(url), *commands, by=answer)
    for number, reply in enumerate(play.replies):
        assert reply == str(number) or isinstance(reply, RateLimiterUnavailable)

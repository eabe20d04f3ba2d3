"""The Redis router driven by hand: a test plays the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate import RateLimiterUnavailable
from headgate.plan import Plan, Sleep
from headgate.stores.redis.exchange import HangUp, Pipeline, ReplyError, SendPipelines
from headgate.stores.redis.keys import SLOTS
from headgate.stores.redis.router import RedisCommand, Router
from headgate.stores.redis.url import Address, read_url
from headgate.stores.server import Lost

A, B, C = ("a", 1), ("b", 2), ("c", 3)
SLOTS_QUESTION = ("CLUSTER", "SLOTS")
HALVES = [[0, SLOTS // 2 - 1, [b"a", 1, b"id"]], [SLOTS // 2, SLOTS - 1, [b"b", 2, b"id"]]]
LOW, HIGH = 7, SLOTS - 7  # a slot of A and one of B
LOST = Lost("closed the connection", sent=True)
UNREACHED = Lost("cannot be reached", sent=False)
LATE = Lost("did not answer within 1 s", sent=True, late=True)
NOSCRIPT = ReplyError("NOSCRIPT", "No matching script.")
TRYAGAIN = ReplyError("TRYAGAIN", "Multiple keys request during rehashing of slot")
SENTINEL_QUESTION = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
NAMED = [[b"p", b"9"]]  # the primary
MOST = 30


def moved(slot: int, place: str) -> ReplyError:
    return ReplyError("MOVED", f"{slot} {place}")


def ask(slot: int, place: str) -> ReplyError:
    return ReplyError("ASK", f"{slot} {place}")


class Play:
    """What became of a plan. `answer` plays the servers: for a send, the replies to it."""

    def __init__(self, plan: Plan[list[Any]], answer: Callable[[Pipeline], Any]) -> None:
        self.sent: list[tuple[Address, Any]] = []  # command by command
        self.slept = 0.0
        self.hung_up: list[Address] = []
        self.exchanges = 0
        result: Any = None
        try:
            while True:
                result = self._answered(plan.send(result), answer)
        except StopIteration as done:
            self.replies = done.value

    def _answered(self, call: Any, answer: Callable[[Pipeline], Any]) -> Any:
        if isinstance(call, Sleep):
            self.slept += call.seconds
        elif isinstance(call, HangUp):
            self.hung_up.append(call.address)
        else:
            assert isinstance(call, SendPipelines)
            self.exchanges += 1
            assert self.exchanges <= MOST, "there is no end to it"
            self.sent += [(send.address, command) for send in call.pipelines for command in send.commands]
            return [answer(send) for send in call.pipelines]
        return None

    @property
    def servers(self) -> list[Address]:
        return [address for address, _ in self.sent]

    @property
    def told(self) -> str:
        assert isinstance(self.replies[0], RateLimiterUnavailable)
        return str(self.replies[0])


def in_turn(*results: Any) -> Callable[[Pipeline], Any]:
    """One after the other, whoever is asked; the last one for ever."""
    left = list(results)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def new_router(url: str = "redis://a:1") -> Router:
    return Router(read_url(url))


def deliver(to: Router, *commands: RedisCommand, by: Callable[[Pipeline], Any]) -> Play:
    return Play(to.deliver_plan(commands), by)


def once(name: str = "x", slot: int = 0) -> RedisCommand:
    return RedisCommand((name,), slot, repeatable=False)


def again(name: str = "x", slot: int = 0) -> RedisCommand:
    return RedisCommand((name,), slot)


def nodes(behave: Callable[[Address, Any], Any], slots: Any = HALVES) -> Callable[[Pipeline], Any]:
    """Every node tells the slots, and otherwise behaves."""

    def answer(send: Pipeline) -> Any:
        if list(send.commands) == [SLOTS_QUESTION]:
            return [slots]
        replies = [behave(send.address, command) for command in send.commands]
        lost = [reply for reply in replies if isinstance(reply, Lost)]
        return lost[0] if lost else replies

    return answer

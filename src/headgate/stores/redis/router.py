"""Which server a command goes to, and what to do if that was the wrong one, or is down.

A command is sent again if the server said that it was not done, if it cannot have arrived, or if doing it twice does
no harm. Any other command without a reply is not: it may have been done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from ...core.errors import RateLimiterUnavailable, StoreRefused
from ...plan import Plan, Sleep
from ..server import Lost
from .exchange import Arguments, HangUp, Pipeline, Replies, ReplyError, SendPipelines, Unconfirmed
from .keys import SLOTS
from .script import Script
from .url import Address, RedisSettings

# Seconds before each retry, after a server said that it is temporarily unable.
_PAUSES = (0, 0.02, 0.05, 0.1, 0.2, 0.3)
# So many redirections are followed without a pause. Nodes that redirect a command back and forth do not all know of the
# last move yet, but soon will.
_AT_ONCE = 4
# After so many lost replies the server is down. Waiting for it would delay commands for other servers.
_LOSSES = 3
_SKIPPED = Lost("has not answered lately, and is skipped for a moment", sent=False, late=True)
_TIMEOUTS = 2  # in a row, before a node is skipped
_FIRST_BACKOFF = 0.25
_LONGEST_BACKOFF = 5.0
_ELSEWHERE = {"MOVED", "ASK", "NOSCRIPT"}
_IN_A_MOMENT = {"TRYAGAIN", "READONLY", "MASTERDOWN", "NOREPLICAS"}
_ADVICE = {
    "LOADING": "the server is still loading its data",
    "CLUSTERDOWN": "the cluster does not serve this slot; see CLUSTER INFO",
    "READONLY": "this server is a replica; give the address of the primary, or the sentinels",
    "MOVED": "this is a node of a cluster; its URL is redis+cluster://host:port",
    "OOM": "the server's memory is full; raise maxmemory, or give headgate a server of its own",
    "NOREPLICAS": "fewer replicas are connected than min-replicas-to-write asks for, and nothing was changed",
    "NOAUTH": "the server wants a password: redis://user:password@host",
    "WRONGPASS": "the server does not accept the user name or the password",
    "NOPERM": "the user lacks a permission; headgate needs +@all on keys headgate:*",
}


# Mistakes in the URL or on the server: a retry cannot help.
_MISTAKES = {"NOAUTH", "WRONGPASS", "NOPERM"}
_MISTAKEN = (
    "DB index is out of range",
    "SELECT is not allowed in cluster mode",
    "cluster support disabled",
    "unknown command 'SENTINEL'",
)


class Rejected(RateLimiterUnavailable):
    """In place of a reply, among other commands that may have been done. The store's caller gets StoreRefused."""


def raised(error: RateLimiterUnavailable) -> Exception:
    """The exception for an error in place of a reply."""
    return StoreRefused(str(error)) if isinstance(error, Rejected) else error


class RedisCommand:
    __slots__ = ("arguments", "repeatable", "script", "slot")

    def __init__(
        self,
        arguments: Sequence[str | int | bytes],
        slot: int = 0,
        *,
        repeatable: bool = True,
        script: Script | None = None,
    ) -> None:
        self.arguments: Arguments = tuple(str(part) if isinstance(part, int) else part for part in arguments)
        self.slot = slot
        self.repeatable = repeatable
        self.script = script  # that it calls, if any

    @property
    def lasting(self) -> bool:
        return self.script is not None and self.script.lasting

    def with_source(self) -> None:
        """The server does not know the script (any more): send its source from now on."""
        assert self.script is not None
        self.arguments = ("EVAL", self.script.source, *self.arguments[2:])


class _Delivery:
    """The progress of some commands. `redirected`: where to send one of them this once, and whether after ASKING."""

    def __init__(self, commands: Sequence[RedisCommand], in_a_moment: Set[str]) -> None:
        self.commands = commands
        self._in_a_moment = in_a_moment
        self.replies: list[Any] = [None] * len(commands)
        self.waiting: list[int] = list(range(len(commands)))
        self.redirected: dict[int, tuple[Address, bool]] = {}
        self.patient = False
        self._losses = [0] * len(commands)

    def lost(self, number: int, lost: Lost, name: str) -> None:
        if lost.sent or not isinstance(self.replies[number], ReplyError):  # an earlier reply says more
            self.replies[number] = RateLimiterUnavailable(f"{name} {lost.why}")
        self._losses[number] += 1
        unharmed = self.commands[number].repeatable or not lost.sent
        if unharmed and not lost.late and self._losses[number] < _LOSSES:
            self.waiting.append(number)

    def replied(self, number: int, reply: Any) -> None:
        self.replies[number] = reply
        self.redirected.pop(number, None)
        if not isinstance(reply, ReplyError):
            return
        if reply.code == "NOSCRIPT":
            self.commands[number].with_source()
        if reply.code in _ELSEWHERE or reply.code in self._in_a_moment:
            self.waiting.append(number)
        self.patient = self.patient or reply.code in self._in_a_moment


class NodeBackoff:
    """Nodes of a cluster that do not answer are skipped for a while, so that calls to other nodes need not wait."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failed: dict[Address, tuple[int, float]] = {}  # how often in a row, and when to try again

    def skip(self, address: Address) -> bool:
        """Whether not to call it. After a pause one caller tries it; the others go on without."""
        known = self._failed.get(address)
        if known is None or known[0] < _TIMEOUTS:
            return False
        times, retry_at = known
        if self._now() < retry_at:
            return True
        self._failed[address] = times, self._now() + _LONGEST_BACKOFF
        return False

    def answered(self, address: Address) -> None:
        if self._failed:
            self._failed.pop(address, None)

    def timed_out(self, address: Address) -> None:
        times = self._failed.get(address, (0, 0.0))[0] + 1
        pause = min(_FIRST_BACKOFF * 2 ** min(times - _TIMEOUTS, 10), _LONGEST_BACKOFF)
        self._failed[address] = times, self._now() + pause


class Router:
    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        # A node of a cluster may take long to load; calls to the other nodes must not wait for it.
        self._in_a_moment = _IN_A_MOMENT if self.clustered else _IN_A_MOMENT | {"LOADING"}
        self._primary: Address | None = settings.servers[0] if settings.topology == "single" else None
        self._slots: list[Address] = []  # of a cluster, by slot
        self._backoff = NodeBackoff()
        self._wait: Arguments = ("WAIT", *map(str, settings.wait)) if settings.wait else ()
        self._nodes = list(settings.servers)  # nodes to ask about the cluster, or sentinels, in the order to try

    @property
    def clustered(self) -> bool:
        return self._settings.topology == "cluster"

    @property
    def one_server(self) -> Address | None:
        """Where to send a whole batch without a plan; None if that is unknown, or replicas have to confirm it."""
        return None if self._wait else self._primary

    def deliver_plan(self, commands: Sequence[RedisCommand], first: Sequence[Replies] = ()) -> Plan[list[Any]]:
        """The reply to each command, or RateLimiterUnavailable in its place: Rejected if a retry cannot help.

        `first`: the replies to a first attempt that was already made.
        """
        delivery = _Delivery(commands, self._in_a_moment)
        pauses = iter(_PAUSES)
        at_once = 0
        while True:
            pipelines, numbers = yield from self._pipelines_plan(delivery)
            results = first or (yield from self._send_plan(pipelines))
            first = ()
            delivery.waiting, delivery.patient = [], False
            for pipeline, numbers_sent, result in zip(pipelines, numbers, results):
                yield from self._received_plan(delivery, pipeline, numbers_sent, result)
            if not delivery.waiting:
                break
            at_once += not delivery.patient
            if delivery.patient or at_once > _AT_ONCE:
                pause = next(pauses, None)
                if pause is None:
                    break
                yield from Sleep(pause)
        return [self._error(reply) if isinstance(reply, ReplyError) else reply for reply in delivery.replies]

    def _error(self, error: ReplyError) -> RateLimiterUnavailable:
        advice = f" ({_ADVICE[error.code]})" if error.code in _ADVICE else ""
        kind = Rejected if self._is_mistake(error) else RateLimiterUnavailable
        return kind(f"Redis says {error.code} {error.text}{advice}")

    def _is_mistake(self, error: Any) -> bool:
        if not isinstance(error, ReplyError):
            return False
        if error.code == "MOVED":
            return not self.clustered
        said = f"{error.code} {error.text}"
        return error.code in _MISTAKES or any(words in said for words in _MISTAKEN)

    def _send_plan(self, pipelines: Sequence[Pipeline]) -> Plan[Sequence[Replies]]:
        if not self.clustered:
            return (yield from SendPipelines(pipelines))
        sent = [pipeline for pipeline in pipelines if not self._backoff.skip(pipeline.address)]
        replies = dict(zip((pipeline.address for pipeline in sent), (yield from SendPipelines(sent)) if sent else ()))
        for address, reply in replies.items():
            if not isinstance(reply, Lost):
                self._backoff.answered(address)
            elif reply.late:
                self._backoff.timed_out(address)
        return [replies.get(pipeline.address, _SKIPPED) for pipeline in pipelines]

    def _received_plan(
        self, delivery: _Delivery, pipeline: Pipeline, numbers: list[int | None], result: Replies
    ) -> Plan[None]:
        if isinstance(result, Lost):
            self._forget()
            for number in numbers:
                if number is not None:
                    delivery.lost(number, result, _name(pipeline.address))
            return
        unconfirmed = self._unconfirmed(pipeline, result)
        if unconfirmed:
            self._forget()
        for number, reply in zip(numbers, result):
            if number is not None:
                yield from self._replied_plan(delivery, number, reply, pipeline.address, unconfirmed)

    def _replied_plan(
        self,
        delivery: _Delivery,
        number: int,
        reply: Any,
        address: Address,
        unconfirmed: RateLimiterUnavailable | None,
    ) -> Plan[None]:
        if isinstance(reply, ReplyError):
            delivery.replied(number, reply)
            self._learn(reply, number, delivery, address)
            if reply.code == "READONLY":
                yield from HangUp(address)
        elif unconfirmed and delivery.commands[number].lasting:
            delivery.replied(number, Unconfirmed(reply, unconfirmed))
        else:
            delivery.replied(number, reply)

    def _unconfirmed(self, pipeline: Pipeline, replies: list[Any]) -> RateLimiterUnavailable | None:
        """Why the write does not count yet, if it does not."""
        wait = self._settings.wait
        if wait is None or pipeline.commands[-1] is not self._wait:
            return None
        count = replies[-1]
        if isinstance(count, ReplyError):
            why = f"could not ask its replicas: {count.code} {count.text}"
        elif count < wait.replicas:
            why = f"wrote it, and {count} of {wait.replicas} replicas confirmed it within {wait.timeout_ms} ms"
        else:
            return None
        return RateLimiterUnavailable(
            f"{_name(pipeline.address)} {why} (wait_replicas): it counts there, and may be lost"
        )

    def _learn(self, error: ReplyError, number: int, delivery: _Delivery, sender: Address) -> None:
        if error.code in ("ASK", "MOVED"):
            address, slots = _address(error.text, sender), self._slots
            delivery.redirected[number] = address, error.code == "ASK"
            if slots and error.code == "MOVED":
                slots[delivery.commands[number].slot] = address
        elif error.code in _IN_A_MOMENT and error.code != "TRYAGAIN":
            self._forget()

    def _pipelines_plan(self, delivery: _Delivery) -> Plan[tuple[list[Pipeline], list[list[int | None]]]]:
        """What goes to which server; with the number of each command, or None for one that we added."""
        commands, waiting = delivery.commands, delivery.waiting
        if not self.clustered:
            primary = self._primary
            if primary is None:
                primary = self._primary = yield from self._ask_sentinels_plan()
            return self._with_waits({primary: [(number, commands[number].arguments) for number in waiting]}, commands)
        slots = self._slots
        if not slots:
            slots = self._slots = yield from self._ask_cluster_plan()
        sends: dict[Address, list[tuple[int | None, Arguments]]] = {}
        for number in waiting:
            address, asking = delivery.redirected.get(number) or (slots[commands[number].slot], False)
            of_server = sends.setdefault(address, [])
            if asking:
                of_server.append((None, ("ASKING",)))
            of_server.append((number, commands[number].arguments))
        return self._with_waits(sends, commands)

    def _with_waits(
        self, sends: dict[Address, list[tuple[int | None, Arguments]]], commands: Sequence[RedisCommand]
    ) -> tuple[list[Pipeline], list[list[int | None]]]:
        if self._wait:
            for of_server in sends.values():
                if any(number is not None and commands[number].lasting for number, _ in of_server):
                    of_server.append((None, self._wait))
        return (
            [Pipeline(address, [arguments for _, arguments in of_server]) for address, of_server in sends.items()],
            [[number for number, _ in of_server] for of_server in sends.values()],
        )

    def _ask_sentinels_plan(self) -> Plan[Address]:
        service = self._settings.service
        reply, _ = yield from self._ask_plan(
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service), f"no sentinel names a primary of the service {service!r}"
        )
        host, port = reply
        return host.decode(), int(port)

    def _ask_cluster_plan(self) -> Plan[list[Address]]:
        reply, asked = yield from self._ask_plan(("CLUSTER", "SLOTS"), "no node of the cluster returned its slots")
        slots = [asked] * SLOTS
        for first, last, (host, port, *_), *_ in reply:
            slots[first : last + 1] = [((host or b"").decode() or asked[0], port)] * (last + 1 - first)
        self._nodes = list(dict.fromkeys([asked, *slots, *self._settings.servers]))
        return slots

    def _ask_plan(self, question: Arguments, in_vain: str) -> Plan[tuple[Any, Address]]:
        """The first answer from any of the nodes, and the node that gave it."""
        failed: list[tuple[Address, Replies]] = []
        for server in list(self._nodes):
            # A node that hangs must not use up the time of the others.
            pipeline = Pipeline(server, [question], to_sentinel=not self.clustered)
            (result,) = yield from SendPipelines([pipeline], share=0.5)
            if isinstance(result, list) and isinstance(result[0], list):
                return result[0], server
            self._nodes = [*(node for node in self._nodes if node != server), server]
            failed.append((server, result))
        mistaken = all(isinstance(result, list) and self._is_mistake(result[0]) for _, result in failed)
        whys = "; ".join(f"{host}:{port} {_why(result)}" for (host, port), result in failed)
        raise (StoreRefused if mistaken else RateLimiterUnavailable)(f"{in_vain}: {whys}")

    def primaries_plan(self) -> Plan[list[int]]:
        """A slot of every primary there is."""
        if not self.clustered:
            return [0]
        slots = self._slots
        if not slots:
            slots = self._slots = yield from self._ask_cluster_plan()
        return [slots.index(address) for address in sorted(set(slots))]

    def _forget(self) -> None:
        self._slots = []
        if self._settings.topology == "sentinel":
            self._primary = None


def _name(address: Address) -> str:
    host, port = address
    return f"the Redis server at {host}:{port}" if port else f"the Redis server at {host}"


def _why(result: Replies) -> str:
    if isinstance(result, Lost):
        return result.why
    return result[0].text if isinstance(result[0], ReplyError) else "does not know it"


def _address(redirection: str, sender: Address) -> Address:
    """The address in `slot host:port`. Without a host, it is the sender's."""
    host, _, port = redirection.rpartition(" ")[2].rpartition(":")
    return host or sender[0], int(port)

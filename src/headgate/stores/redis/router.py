"""Which server a command goes to, and what to do if it was the wrong one, or is away.

A command is sent again if the server said that it was not done, if it cannot have arrived, or if doing it twice does
no harm. Whatever else gets no reply stays without: it may have been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import RateLimiterUnavailable
from ...plan import Plan, Sleep
from .exchange import Arguments, Exchange, HangUp, Lost, Replies, ReplyError, Send
from .script import Script
from .url import Address, Settings

# Seconds before each attempt. One server is away or it is not; others need a moment to agree on a new primary.
_ATTEMPTS = {"single": (0, 0, 0), "sentinel": (0, 0, 0.02, 0.1, 0.3), "cluster": (0, 0, 0.02, 0.1, 0.3)}
# It was not done here and now, but it may be elsewhere or in a moment.
_TRY_AGAIN = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN"}
_ADVICE = {
    "LOADING": "the server is still loading its data",
    "READONLY": "this server is a replica; give the address of the primary, or the sentinels",
    "MOVED": "this is a node of a cluster; its URL is redis+cluster://host:port",
    "OOM": "the server's memory is full; raise maxmemory, or give headgate a server of its own",
    "NOAUTH": "the server wants a password: redis://user:password@host",
    "WRONGPASS": "the server does not accept the user name or the password",
    "NOPERM": "the user lacks a permission; headgate needs +@all on keys headgate:*",
}


class Command:
    __slots__ = ("arguments", "repeatable", "script", "slot")

    def __init__(
        self, arguments: Arguments, slot: int = 0, *, repeatable: bool = True, script: Script | None = None
    ) -> None:
        self.arguments = arguments
        self.slot = slot
        self.repeatable = repeatable
        self.script = script  # if it is a call of one

    def with_source(self) -> None:
        """The server does not know the script (any more): from now on send it along."""
        assert self.script is not None
        self.arguments = ("EVAL", self.script.source, *self.arguments[2:])


class Router:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._attempts = _ATTEMPTS[settings.topology]
        self._primary: Address | None = settings.servers[0] if settings.topology == "single" else None
        self._slots: list[Address] = []  # of a cluster, by slot
        self._nodes = list(settings.servers)  # of a cluster: whom to ask about it

    @property
    def clustered(self) -> bool:
        return self._settings.topology == "cluster"

    @property
    def one_server(self) -> Address | None:
        """Where everything goes, if that is known."""
        return self._primary

    def deliver_plan(self, commands: Sequence[Command], first: Sequence[Replies] = ()) -> Plan[list[Any]]:
        """The reply to each command, or RateLimiterUnavailable in its place.

        `first`: what became of a first attempt, made already.
        """
        replies: list[Any] = [None] * len(commands)
        asked: dict[int, Address] = {}
        waiting: Sequence[int] = range(len(commands))
        for pause in self._attempts:
            if pause:
                yield from Sleep(pause)
            sends, numbers = yield from self._sends_plan(commands, waiting, asked)
            results = first or (yield from Exchange(sends))
            first = ()
            waiting = []
            for send, sent, result in zip(sends, numbers, results):
                if isinstance(result, Lost):
                    self._forget()
                    for number in filter(None.__ne__, sent):
                        replies[number] = RateLimiterUnavailable(f"{self._name(send.address)} {result.why}")
                        if not result.late and (commands[number].repeatable or not result.sent):
                            waiting.append(number)
                    continue
                for number, reply in zip(sent, result):
                    if number is not None:
                        replies[number] = reply
                        if isinstance(reply, ReplyError) and self._again(number, reply, commands[number], asked):
                            waiting.append(number)
                            if reply.code == "READONLY":
                                yield from HangUp(send.address)
            if not waiting:
                break
        return [self._unavailable(reply) if isinstance(reply, ReplyError) else reply for reply in replies]

    def _again(self, number: int, reply: ReplyError, command: Command, asked: dict[int, Address]) -> bool:
        asked.pop(number, None)
        if reply.code == "NOSCRIPT":
            command.with_source()
            return True
        if reply.code not in _TRY_AGAIN:
            return False
        if reply.code == "ASK":  # only this once: the slot is on the move
            asked[number] = _address(reply.text.rpartition(" ")[2])
        elif reply.code == "MOVED" and self._slots:
            _, slot, moved_to = f"MOVED {reply.text}".rsplit(" ", 2)
            self._slots[int(slot)] = _address(moved_to)
        else:
            self._forget()
        return True

    def _sends_plan(
        self, commands: Sequence[Command], waiting: Sequence[int], asked: dict[int, Address]
    ) -> Plan[tuple[list[Send], list[list[Any]]]]:
        """What goes to whom; for each command the number of the reply it gets, or None."""
        if self._primary is not None:
            return [Send(self._primary, [commands[number].arguments for number in waiting])], [list(waiting)]
        if self._settings.topology == "sentinel":
            self._primary = yield from self._ask_sentinels_plan()
            return (yield from self._sends_plan(commands, waiting, asked))
        if not self._slots:
            self._slots = yield from self._ask_cluster_plan()
        arguments: dict[Address, list[Arguments]] = {}
        numbers: dict[Address, list[Any]] = {}
        for number in waiting:
            address = asked.get(number) or self._slots[commands[number].slot]
            of_server, its_numbers = arguments.setdefault(address, []), numbers.setdefault(address, [])
            if number in asked:
                of_server.append(("ASKING",))
                its_numbers.append(None)
            of_server.append(commands[number].arguments)
            its_numbers.append(number)
        return [Send(address, of_server) for address, of_server in arguments.items()], list(numbers.values())

    def _ask_sentinels_plan(self) -> Plan[Address]:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._settings.service)
        whys = []
        for sentinel in self._settings.servers:
            (result,) = yield from Exchange([Send(sentinel, [question], to_sentinel=True)])
            if isinstance(result, Lost):
                whys.append(f"{sentinel[0]}:{sentinel[1]} {result.why}")
            elif isinstance(result[0], list):
                host, port = result[0]
                return host.decode(), int(port)
            else:
                why = result[0].text if isinstance(result[0], ReplyError) else "does not know it"
                whys.append(f"{sentinel[0]}:{sentinel[1]} {why}")
        raise RateLimiterUnavailable(
            f"no sentinel names a primary of the service {self._settings.service!r}: {'; '.join(whys)}"
        )

    def _ask_cluster_plan(self) -> Plan[list[Address]]:
        whys = []
        for server in self._nodes:
            (result,) = yield from Exchange([Send(server, [("CLUSTER", "SLOTS")])])
            if isinstance(result, Lost):
                whys.append(f"{server[0]}:{server[1]} {result.why}")
            elif isinstance(result[0], ReplyError):
                whys.append(f"{server[0]}:{server[1]} {result[0].text}")
            else:
                slots = [server] * 16_384
                for first, last, (host, port, *_), *_ in result[0]:
                    slots[first : last + 1] = [(host.decode() or server[0], port)] * (last + 1 - first)
                self._nodes = list(dict.fromkeys([*slots, *self._settings.servers]))
                return slots
        raise RateLimiterUnavailable(f"no node of the cluster tells its slots: {'; '.join(whys)}")

    def primaries_plan(self) -> Plan[list[int]]:
        """A slot of every primary there is."""
        if not self.clustered:
            return [0]
        if not self._slots:
            self._slots = yield from self._ask_cluster_plan()
        return [self._slots.index(address) for address in sorted(set(self._slots))]

    def _forget(self) -> None:
        self._slots = []
        if self._settings.topology == "sentinel":
            self._primary = None

    def _name(self, address: Address) -> str:
        host, port = address
        return f"the Redis server at {host}:{port}" if port else f"the Redis server at {host}"

    def _unavailable(self, error: ReplyError) -> RateLimiterUnavailable:
        advice = f" ({_ADVICE[error.code]})" if error.code in _ADVICE else ""
        return RateLimiterUnavailable(f"Redis says {error.code} {error.text}{advice}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)

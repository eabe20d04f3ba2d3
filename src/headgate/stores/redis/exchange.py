"""The one thing the transports do: send commands to servers, and bring what they reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable
from ...plan import Call
from .url import Address

# No numbers: hiredis runs Python code to pack one, and crashes if a signal handler raises in it.
Arguments: TypeAlias = "tuple[str | bytes, ...]"


class ReplyError(NamedTuple):
    """An error as a reply: the server did not do it."""

    code: str
    text: str


class Lost(NamedTuple):
    """No reply. If it was `sent`, nobody knows whether it was done. `late`: there is no time left for more."""

    why: str
    sent: bool
    late: bool = False


class Unconfirmed(NamedTuple):
    """A reply that came, to a write that too few replicas have confirmed: a failover may undo it."""

    reply: Any
    error: RateLimiterUnavailable


class Send(NamedTuple):
    """Commands for one server, on one connection, without waiting in between."""

    address: Address
    commands: Sequence[Arguments]
    to_sentinel: bool = False


Replies: TypeAlias = "list[Any] | Lost"


@dataclass(frozen=True, slots=True)
class Exchange(Call[list[Replies]]):
    """All at once; the replies to each, or why there are none. `share`: of the time that is left."""

    sends: Sequence[Send]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class MoreTime(Call[None]):
    """Begin the deadline anew: what was taken has to be given back, even if the time was spent in taking it."""


@dataclass(frozen=True, slots=True)
class HangUp(Call[None]):
    """Close the connections to a server that are not in use: the next one may lead elsewhere."""

    address: Address

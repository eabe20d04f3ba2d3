"""What the two transports do: send commands to servers, and return their replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable
from ...plan import Call
from ..server import Lost
from .url import Address

# No numbers: hiredis runs Python code to pack one, and crashes if a signal handler raises in it.
Arguments: TypeAlias = "tuple[str | bytes, ...]"


class ReplyError(NamedTuple):
    """An error as a reply: the server did not do it."""

    code: str
    text: str


class Unconfirmed(NamedTuple):
    """The reply to a write that too few replicas have confirmed: a failover may undo it."""

    reply: Any
    error: RateLimiterUnavailable


class Pipeline(NamedTuple):
    """Commands for one server, on one connection, without waiting in between."""

    address: Address
    commands: Sequence[Arguments]
    to_sentinel: bool = False


Replies: TypeAlias = "list[Any] | Lost"


@dataclass(frozen=True, slots=True)
class SendPipelines(Call[list[Replies]]):
    """All at once. Returns the replies to each, or why there are none. `share`: of the time that is left."""

    pipelines: Sequence[Pipeline]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class HangUp(Call[None]):
    """Close the idle connections to a server: its address may lead elsewhere now."""

    address: Address

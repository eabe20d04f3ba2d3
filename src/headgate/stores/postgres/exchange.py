"""The one thing the transports do: ask the server something, and bring what it replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from ...plan import Call

Row: TypeAlias = "tuple[bytes | None, ...]"


class Statement:
    """`script`: several statements in one transaction, without parameters."""

    __slots__ = ("name", "script", "sql")

    def __init__(self, sql: str, schema: str, *, script: bool = False) -> None:
        self.sql = in_schema(sql, schema).encode()
        self.script = script
        # Behind PgBouncer others may have prepared something on the same connection: one name is one statement.
        self.name = b"headgate_" + sha256(self.sql).hexdigest()[:24].encode()


def in_schema(sql: str, schema: str) -> str:
    """Our SQL names its things `headgate.something`."""
    return sql.replace("headgate.", f'"{schema}".')


class Refusal(NamedTuple):
    """An error as a reply: the server did not do it."""

    code: str
    text: str


class Lost(NamedTuple):
    """No reply. If it was `sent`, nobody knows whether it was done."""

    why: str
    sent: bool


Reply: TypeAlias = "list[Row] | Refusal | Lost"


@dataclass(frozen=True, slots=True)
class Ask(Call[Reply]):
    statement: Statement
    parameters: Sequence[bytes | None] = ()


@dataclass(frozen=True, slots=True)
class TimeLeft(Call[int]):
    """Milliseconds until the deadline, 0 if it is over."""


@dataclass(frozen=True, slots=True)
class MoreTime(Call[None]):
    """Begin the deadline anew: for each page of what may take long."""

"""What the two transports do: execute a statement, and return the server's reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from ...plan import Call
from ..server import Lost

Row: TypeAlias = "tuple[bytes | None, ...]"


class Statement:
    """`script`: several statements in one transaction, without parameters."""

    __slots__ = ("name", "script", "sql")

    def __init__(self, sql: str, schema: str, *, script: bool = False) -> None:
        self.sql = in_schema(sql, schema).encode()
        self.script = script
        # Behind PgBouncer other clients prepare statements on the same connection: a name means one statement only.
        self.name = b"headgate_" + sha256(self.sql).hexdigest()[:24].encode()


def in_schema(sql: str, schema: str) -> str:
    """Our SQL refers to its objects as `headgate.something`."""
    return sql.replace("headgate.", f'"{schema}".')


class ErrorResponse(NamedTuple):
    """An error as a reply: the server did not do it."""

    code: str
    text: str


Reply: TypeAlias = "list[Row] | ErrorResponse | Lost"


@dataclass(frozen=True, slots=True)
class Execute(Call[Reply]):
    statement: Statement
    parameters: Sequence[bytes | None] = ()

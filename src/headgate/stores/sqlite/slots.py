"""The table of those who hold slots."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TypeAlias

from ...core.decide import State
from ...core.limit import OWN
from ...core.slots import Slots
from .connection import fetched
from .keys import Place

Holders: TypeAlias = dict[str, tuple[int, int]]  # by lease id: millislots, and when they run out

READ_RANGE = "SELECT key, limit_name, lease_id, held_milli, expires_at_ms FROM slots WHERE key >= ? AND key <= ?"
_EXPIRED = "FROM slots WHERE expires_at_ms <= ? AND key >= ? AND key < ?"


def by_place(rows: Iterable[tuple[str, str, str, int, int]]) -> dict[Place, Holders]:
    held: dict[Place, Holders] = {}
    for key, limit_name, lease_id, held_milli, expires_at_ms in rows:
        held.setdefault((key, limit_name), {})[lease_id] = (held_milli, expires_at_ms)
    return held


def read(connection: sqlite3.Connection, place: Place) -> Holders:
    query = "SELECT lease_id, held_milli, expires_at_ms FROM slots WHERE key = ? AND limit_name = ?"
    rows = fetched(connection, query, *place)
    return {lease_id: (held_milli, expires_at_ms) for lease_id, held_milli, expires_at_ms in rows}


def save(connection: sqlite3.Connection, place: Place, state: State) -> None:
    """Write what is new, and let go of what has run out or was given back."""
    before = read(connection, place)
    after = state.holders if isinstance(state, Slots) else {}
    connection.executemany(
        "DELETE FROM slots WHERE key = ? AND limit_name = ? AND lease_id = ?",
        [(*place, lease_id) for lease_id in before.keys() - after.keys()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO slots (key, limit_name, lease_id, held_milli, expires_at_ms) VALUES (?, ?, ?, ?, ?)",
        [(*place, lease_id, *held) for lease_id, held in after.items() if before.get(lease_id) != held],
    )


def sweep(connection: sqlite3.Connection, now_ms: int, start: str, end: str) -> int:
    """Let go of what has run out under keys from `start` to before `end`. How many leases that was."""
    expired = (now_ms, start, end)
    names = connection.execute(f"SELECT limit_name {_EXPIRED}", expired).fetchall()
    connection.execute(f"DELETE {_EXPIRED}", expired)
    return sum(not name.startswith(OWN) for (name,) in names)

"""The table of records."""

from __future__ import annotations

import json
import sqlite3

from ...core.errors import VersionConflict
from ...core.records import ABSENT, Change, Check, Put

_LIVE = "(expires_at_ms IS NULL OR expires_at_ms > ?)"
GET = f"SELECT key, value, version FROM records WHERE key IN (SELECT value FROM json_each(?)) AND {_LIVE}"
LIST = (
    f"SELECT key, value, version FROM records WHERE key > ? AND key >= ? AND key < ? AND {_LIVE} ORDER BY key LIMIT ?"
)


def apply(connection: sqlite3.Connection, change: Change) -> None:
    row = connection.execute("SELECT version FROM records WHERE key = ?", (change.key,)).fetchone()
    version = row[0] if row and type(row[0]) is int and row[0] >= 0 else ABSENT  # one that cannot be read is none
    if change.expected is not None and change.expected != version:
        raise VersionConflict(change.key)
    if isinstance(change, Put):
        connection.execute(
            "INSERT OR REPLACE INTO records (key, value, version, expires_at_ms) VALUES (?, ?, ?, ?)",
            (change.key, json.dumps(change.value), version + 1, change.expires_at_ms),
        )
    elif not isinstance(change, Check):
        connection.execute("DELETE FROM records WHERE key = ?", (change.key,))

"""Opening the file: whether it is ours, writable, and of a known format. And SQLite's errors as ours."""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeVar

from ...core.errors import HeadgateError, RateLimiterUnavailable, ValidationError

T = TypeVar("T")

APPLICATION_ID = int.from_bytes(b"HGat", "big")
FORMAT = 4
_SINCE = {"slots": 2, "slots_expiring": 2, "usage": 3}  # which format brought a table or an index; 1 all others
_SINCE_3 = "ALTER TABLE buckets ADD COLUMN used_milli INTEGER NOT NULL DEFAULT 0"
_CREATED = re.compile(r"^CREATE (?:TABLE|INDEX) (\w+)", re.MULTILINE)


def connect(path: str, timeout_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_seconds, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, timeout_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int] | None:
    """Which file the path leads to; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare(connection: sqlite3.Connection, path: str, timeout_seconds: float) -> None:
    connection.execute("BEGIN")  # one consistent read: another process may be creating it just now
    try:
        current = _format(connection, path) == FORMAT
    finally:
        connection.execute("ROLLBACK")
    if not current:
        _create(connection, path)
    # Kill -9 loses nothing in this mode; a power cut may lose the last moments, never the file.
    patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"), timeout_seconds)
    connection.execute("PRAGMA synchronous = NORMAL")
    # At most 128 MiB of pages in memory, and 32 MiB of log before it is worked into the file: with a million buckets
    # every decision is on another page.
    connection.execute("PRAGMA cache_size = -131072")
    connection.execute("PRAGMA wal_autocheckpoint = 8192")
    # Fails now, with a clear message, rather than at the first acquire.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")
    connection.execute("PRAGMA busy_timeout = 0")


def patiently(statement: Callable[[], T], timeout_seconds: float) -> T:
    """Retry while another process holds the lock.

    SQLite's own wait backs off to 100 ms and starves the first waiter; a lock here is held for microseconds.
    """
    deadline = None
    while True:
        try:
            return statement()
        except sqlite3.OperationalError as error:
            now = time.monotonic()
            deadline = deadline or now + timeout_seconds
            if "locked" not in str(error) or now >= deadline:
                raise
        time.sleep(random.uniform(0.0001, 0.001))


def fetched(connection: sqlite3.Connection, query: str, *parameters: object) -> list[Any]:
    """All rows. Text that is not UTF-8 is read anyway, so that it affects only its own row."""
    try:
        return connection.execute(query, parameters).fetchall()
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if "decode" not in str(error):
            raise
    connection.text_factory = _undamaged
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.text_factory = str


def _undamaged(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _format(connection: sqlite3.Connection, path: str) -> int:
    """The format of the file, 0 if it is new."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id == APPLICATION_ID:
        if not 1 <= version <= FORMAT:
            raise ValidationError(
                f"{path!r} is in format {version} and this headgate reads format {FORMAT}: "
                "upgrade headgate in every process that shares the file"
            )
        return int(version)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id or tables:
        raise ValidationError(f"{path!r} is a database of another program: choose a file of its own for headgate")
    return 0


def _create(connection: sqlite3.Connection, path: str) -> None:
    """Create all tables, or those that an older file lacks."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _format(connection, path)
        if found != FORMAT:  # no other process was faster
            for statement in files(__package__).joinpath("schema.sql").read_text().split(";\n"):
                name = _CREATED.search(statement)
                if name and found < _SINCE.get(name[1], 1):
                    connection.execute(statement)
            if 0 < found < 3:
                connection.execute(_SINCE_3)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def damaged(path: str, why: str) -> HeadgateError:
    return RateLimiterUnavailable(f"{path!r} is damaged ({why}): move it away, and headgate starts a new one")


def busy(path: str) -> HeadgateError:
    return RateLimiterUnavailable(f"{path!r} was locked by another process for longer than store_timeout")


def explained(error: sqlite3.Error | UnicodeDecodeError, path: str) -> HeadgateError:
    """SQLite's error as one of ours, with what to do about it."""
    text = str(error)
    if "not a database" in text:
        return ValidationError(f"{path!r} is not an SQLite database: choose another file, or move this one away")
    if "unable to open" in text:
        folder = os.path.dirname(os.path.abspath(path))
        why = "it is a directory" if os.path.isdir(path) else f"is {folder!r} there, and writable?"
        return ValidationError(f"{path!r} cannot be opened: {why}")
    if "readonly" in text:
        return ValidationError(f"{path!r} cannot be written: check the permissions of the file and of its folder")
    if "malformed" in text:
        return damaged(path, text)
    if "locked" in text or "busy" in text:
        return busy(path)
    return RateLimiterUnavailable(f"{path!r} failed: {text}")

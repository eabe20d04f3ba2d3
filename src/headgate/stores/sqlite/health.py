"""Health of the file and its folder: permissions, journal and free space."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ..health import Finding
from . import path_of
from .connection import FORMAT, explained

_LEAST_FREE = 100_000_000


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    return list(_findings(Path(path_of(url)), timeout_seconds))


def _findings(path: Path, timeout_seconds: float) -> Iterator[Finding]:
    yield _mode(path)
    try:
        with closing(sqlite3.connect(path, timeout=timeout_seconds)) as connection:
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    except sqlite3.Error as error:
        raise explained(error, str(path)) from error
    yield _journal(journal)
    yield _room(path)


def _mode(path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    size = sum(part.stat().st_size for part in _parts(path))
    found = f"{path}: {size / 1000:,.0f} KB, mode {mode:04o}, format {FORMAT}"
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        advice = f"let this user write the file and its folder: chmod u+rw {path}, chmod u+w {path.parent}"
        return Finding("file", "fail", found, advice)
    if mode & stat.S_IWOTH:
        return Finding("file", "warn", found, f"every user of this machine can change limits: chmod o-w {path}")
    return Finding("file", "ok", found)


def _parts(path: Path) -> Iterator[Path]:
    for name in (path.name, f"{path.name}-wal"):
        if (part := path.with_name(name)).exists():
            yield part


def _journal(journal: str) -> Finding:
    found = f"SQLite {sqlite3.sqlite_version}, journal_mode {journal}"
    if journal == "wal":
        return Finding("journal", "ok", found)
    return Finding("journal", "warn", found, "writers and readers block each other: is the file on a network drive?")


def _room(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    found = f"{free / 1_000_000_000:,.1f} GB free on its disk"
    if free < _LEAST_FREE:
        return Finding("disk", "warn", found, "a full disk makes the store unavailable: make room")
    return Finding("disk", "ok", found)

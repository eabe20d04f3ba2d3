"""Files that are read again when they change, or on SIGHUP. An invalid file changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from ..core.errors import HeadgateError

log = logging.getLogger("headgate")

T = TypeVar("T")
Stamp: TypeAlias = "tuple[int, int, int] | None"

_TELL_AGAIN_SECONDS = 60.0


def stamp_of(path: str | Path) -> Stamp:
    """A value that differs after every change of the file; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class ReloadedFile(Generic[T]):
    """`load` reads the file, and raises if it is invalid; `use` applies its contents, all or nothing.

    `read`: the stamp of the file before it was first read. `reloads` has, by `name`, whether the last reload worked.
    """

    def __init__(
        self,
        name: str,
        path: str | Path,
        load: Callable[[str | Path], T],
        use: Callable[[T], object],
        reloads: dict[str, bool],
        read: Stamp,
    ) -> None:
        self.path = path
        self._name = name
        self._load = load
        self._use = use
        self._reloads = reloads
        self._read = self._seen = read
        self._tell_again = 0.0
        reloads[name] = True

    def has_changed(self) -> bool:
        """Whether it has changed since it was read, and no longer changes: it may still be being written."""
        before, self._seen = self._seen, stamp_of(self.path)
        return self._seen != self._read and self._seen == before

    async def reload(self) -> None:
        self._read = stamp_of(self.path)  # first: a change while it is being read is another one
        try:
            self._use(await asyncio.to_thread(self._load, self.path))
        except Exception as error:
            self._failed(error)
        else:
            self._reloads[self._name] = True
            log.info("reloaded the %s from %s", self._name, self.path)

    def _failed(self, error: Exception) -> None:
        self._reloads[self._name] = False
        self._tell_again = time.monotonic() + _TELL_AGAIN_SECONDS
        log.error(
            "the %s could not be reloaded, and the previous ones apply: %s",
            self._name,
            error,
            exc_info=None if isinstance(error, HeadgateError) else error,
        )

    def tell_again(self) -> None:
        """Repeat the error while the file is invalid: its author may believe that the edit applies."""
        if not self._reloads[self._name] and time.monotonic() >= self._tell_again:
            self._tell_again = time.monotonic() + _TELL_AGAIN_SECONDS
            log.error("the %s in use are still not those of %s", self._name, self.path)


class Reloader:
    def __init__(self, files: Sequence[ReloadedFile[Any]], every_seconds: float) -> None:
        self._files = files
        self._every_seconds = every_seconds
        self._one_at_a_time = asyncio.Lock()

    async def watch(self) -> None:
        while self._files and self._every_seconds:
            await asyncio.sleep(self._every_seconds)
            for file in self._files:
                if file.has_changed():
                    await self._reload(file)
                file.tell_again()

    async def reload(self) -> None:
        """Reload all files, changed or not."""
        for file in self._files:
            await self._reload(file)

    async def _reload(self, file: ReloadedFile[Any]) -> None:
        async with self._one_at_a_time:
            await file.reload()

"""A log of acquires, which `headgate replay` plays under other limits.

    limiter = RateLimiter(url, on_event=RequestLog("requests.jsonl", sample=0.1))

Sampling is by entity: the log has all requests of an entity, or none. With a tenth of the requests of every entity,
each would seem to use a tenth of what it does, and any limit would seem large enough.

An acquire only puts the request into a queue, and a thread writes the file. If the thread cannot keep up, or the disk
is full, requests are left out and counted (`dropped`); no acquire waits.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from zlib import crc32

from ...core.errors import ValidationError
from ..clock import Clock
from ..fork import anew_after_fork
from .observers import Event

log = logging.getLogger("headgate")

_MOST_QUEUED = 100_000
_PAUSE_SECONDS = 0.5  # from one look into the queue to the next
_ALLOWED = {"acquire.granted": True, "acquire.refused": False}

_Queued: TypeAlias = "tuple[int, bool, Mapping[str, Any]]"


def log_line(at_ms: int, entity_id: str, resource: str, consume: Mapping[str, Any], allowed: bool | None = None) -> str:
    """A request as a line of a log."""
    at = datetime.fromtimestamp(at_ms // 1000, timezone.utc)
    line = {
        "at": f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z",
        "entity": entity_id,
        "resource": resource,
        "consume": consume,
    }
    return json.dumps(line if allowed is None else line | {"allowed": allowed}) + "\n"


class RequestLog:
    """Give it to a limiter, or to several, as `on_event`, and close it at the end.

    `sample`: the part of the entities that is recorded, above 0 and up to 1. `max_bytes`: when the file is that long it
    becomes `path.1`, what was `path.1` becomes `path.2`, and of these `keep` are kept. Each process needs a file of its
    own: `{pid}` in the path is its number. Ids are recorded as they are stored, hashed if the limiter hashes them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sample: float = 1.0,
        max_bytes: int = 100_000_000,
        keep: int = 4,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(sample, (int, float)) or isinstance(sample, bool) or not 0 < sample <= 1:
            raise ValidationError(f"sample must be a number above 0 and up to 1, not {sample!r}")
        for name, value, least in (("max_bytes", max_bytes, 1000), ("keep", keep, 0)):
            if type(value) is not int or value < least:
                raise ValidationError(f"{name} must be a whole number from {least:,} on, not {value!r}")
        self.dropped = 0
        self._path = os.fspath(path)
        self._sample = float(sample)
        self._up_to = int(sample * 2**32)
        self._max_bytes = max_bytes
        self._keep = keep
        self._now_ms = clock.now_ms if clock else lambda: time.time_ns() // 1_000_000
        self._closed = False
        self.after_fork()
        anew_after_fork(self)
        atexit.register(self.close)

    def after_fork(self) -> None:
        """A child has a queue, a file and a thread of its own."""
        self._queue: deque[_Queued] = deque()
        self._wake = threading.Event()
        self._writing = threading.RLock()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._complained = False

    def __call__(self, event: Event) -> None:
        allowed = _ALLOWED.get(event.name)
        if allowed is None or self._closed:
            return
        fields = event.fields
        if crc32(fields["entity_id"].encode()) >= self._up_to or not fields["consume"]:
            return
        if len(self._queue) >= _MOST_QUEUED:
            self.dropped += 1
            return
        self._queue.append((self._now_ms(), allowed, fields))
        if self._thread is None:
            self._start()

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left, and record nothing more."""
        self._closed = True
        atexit.unregister(self.close)
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.flush()

    def flush(self) -> None:
        """Write what there is."""
        with self._writing:
            if self._queue:
                self._write()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="headgate-request-log", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wake = self._wake
        while not wake.wait(_PAUSE_SECONDS):
            self.flush()

    def _write(self) -> None:
        """As one piece, so that a file has whole lines whatever happens."""
        queued = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            lines = [
                log_line(at_ms, fields["entity_id"], fields["resource"], fields["consume"], allowed)
                for at_ms, allowed, fields in queued
            ]
            self._append(lines)
            self._complained = False
        except Exception as error:
            self.dropped += len(queued)
            if not self._complained:
                self._complained = True
                log.warning("requests cannot be recorded in %s, and are left out: %s", self._path, error)

    def _append(self, lines: list[str]) -> None:
        path = Path(self._path.replace("{pid}", str(os.getpid())))
        size = path.stat().st_size if path.exists() else 0
        if size >= self._max_bytes:
            self._rotate(path)
            size = 0
        head = "" if size else json.dumps({"headgate_log": 1, "sample": self._sample}) + "\n"
        with path.open("ab") as file:
            file.write((head + "".join(lines)).encode())

    def _rotate(self, path: Path) -> None:
        if not self._keep:
            path.unlink()
            return
        for number in range(self._keep, 0, -1):
            older = path if number == 1 else Path(f"{path}.{number - 1}")
            if older.exists():
                older.replace(f"{path}.{number}")

"""A clock for one process that a test can step, with libfaketime."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..process import NotInstalledError, installed


class SteppedClock:
    """The time of day of a process started in `environment`. Its timers run on the real clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset_seconds = 0.0
        self.environment = {
            # Between libfaketime, which allocates to read the clock, and jemalloc, which reads the clock to allocate,
            # a server hangs. This library of glibc's takes jemalloc's place.
            "LD_PRELOAD": f"libc_malloc_debug.so.0:{_library()}",
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.step(0)

    def step(self, seconds: float) -> None:
        self._offset_seconds += seconds
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._offset_seconds:+.6f}\n")
        os.replace(new, self._file)


def _library() -> str:
    faketime = installed("faketime", "apt-get install faketime (on Linux only)")
    show = [faketime, "-f", "+0", "sh", "-c", 'printf %s "$LD_PRELOAD"']
    for _ in range(10):  # two that start at the same moment may get in each other's way
        library = subprocess.run(show, capture_output=True, text=True, check=False).stdout
        if library:
            return library
    raise NotInstalledError("faketime preloads no library here: a server's clock can be stepped on Linux only")

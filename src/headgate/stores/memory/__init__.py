"""`memory://`: a store inside the process. Threads and tasks share it, processes do not.

`memory://` is private to its limiter; all limiters opened with the same `memory://name` share one.
"""

from __future__ import annotations

import threading

from ...core.errors import ValidationError
from ..contract import InProcessStore
from .store import MemoryStore

_named: dict[str, MemoryStore] = {}
_named_lock = threading.RLock()


def open_blocking(url: str, timeout_seconds: float) -> InProcessStore:
    name = url.removeprefix("memory://")
    if not name:
        return MemoryStore()
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ValidationError(f"store URL {url!r} is not allowed: write memory:// or memory://name")
    with _named_lock:
        return _named.setdefault(name, MemoryStore())

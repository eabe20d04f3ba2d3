"""No connection goes through a fork.

SQLite would take the parent's locks for the child's own, and the parent's closing would remove the log under the
child. So both sides open anew. A store's lock is held across the fork: no thread is then in the middle of a
transaction, and the child does not inherit it from a thread it does not have.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    lock: threading.Lock

    def disconnect(self) -> None: ...


_stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[Forkable] = []


def open_anew_after_fork(store: Forkable) -> None:
    _stores.add(store)


def _before() -> None:
    for store in list(_stores):
        store.lock.acquire()
        _held.append(store)
        store.disconnect()


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    while _held:
        _held.pop().lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)

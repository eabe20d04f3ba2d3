"""A store's lock is held across a fork: no thread is then in the middle of a change, and the child does not inherit the
lock from a thread that it does not have."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from .locks import OwnedLock

_PATIENCE_SECONDS = 10.0  # then the fork goes on: the child must not inherit a lock that it waits for


class Forkable(Protocol):
    lock: OwnedLock

    def before_fork(self) -> None:
        """Leave nothing open that must not go through the fork. The lock is held."""


_stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[Forkable] = []


def locked_during_fork(store: Forkable) -> None:
    _stores.add(store)


def _before() -> None:
    for store in list(_stores):
        if store.lock.acquire(timeout=_PATIENCE_SECONDS):
            _held.append(store)
            store.before_fork()


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()


def _after_in_child() -> None:
    _held.clear()
    for store in list(_stores):
        store.lock = OwnedLock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)

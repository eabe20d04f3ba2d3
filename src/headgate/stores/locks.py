"""The lock of a store in the process. It knows its owner, and is held across a fork.

A signal handler may call the limiter while its own thread is in the middle of a call. Waiting for the lock of that call
would never end, so the second call is refused.

While the lock is held across a fork, no thread is in the middle of a change, and the child does not inherit the lock
from a thread that it does not have.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import RateLimiterUnavailable

_PATIENCE_SECONDS = 10.0  # then the fork continues, and the child gets a new lock

if TYPE_CHECKING:

    class OwnedLock:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def owned(self) -> bool: ...
        def __enter__(self) -> bool: ...
        def __exit__(self, *error: Any) -> None: ...

else:
    _RLock = type(threading.RLock())

    class OwnedLock(_RLock):
        owned = _RLock._is_owned


def reentered() -> RateLimiterUnavailable:
    return RateLimiterUnavailable(
        "a signal handler called the limiter while the call that it interrupted was under way in the same thread: "
        "let the handler set a flag, and call the limiter outside of it"
    )


class Forkable(Protocol):
    lock: OwnedLock

    def before_fork(self) -> None:
        """Close what must not survive the fork. The lock is held."""


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

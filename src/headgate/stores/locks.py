"""A lock that knows its owner.

A signal handler may call the limiter while its own thread is in the middle of a call. Waiting for a lock of that call
would never end: the second call is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..core.errors import RateLimiterUnavailable

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

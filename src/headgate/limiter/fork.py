"""After a fork the child has copies of its parent's locks, and none of the threads that would release them."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    def after_fork(self) -> None:
        """Begin anew, in the child."""


_known: weakref.WeakSet[Forked] = weakref.WeakSet()


def anew_after_fork(thing: Forked) -> None:
    _known.add(thing)


forks = 0  # so many lie between this process and the first one that imported headgate


def _after_fork() -> None:
    global forks
    forks += 1
    for thing in _known:
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_after_fork)

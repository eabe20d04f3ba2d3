"""A store that fails when told to, and ways to wait for what happens in the background."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headgate import RateLimiterUnavailable, register_store
from headgate.core.decide import Mode
from headgate.stores.memory.store import MemoryStore

DEADLINE = 30.0  # of what takes no time unless it is broken
METHODS = (
    "settle", "delete_buckets", "list_buckets", "get_records", "write_records", "list_records", "sweep", "ping",
)  # fmt: skip


class FailingStore(MemoryStore):
    """`error`: what every call raises. `calls`: how many were made. `gate`: what every call waits for.

    `lost_answers`: names of methods whose next calls are made, but whose answers get lost.
    `renewed`: the leases of renewals that came through, in batches.
    """

    in_process = False

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.calls = 0
        self.renewed: list[list[str]] = []
        self.lost_answers: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def renewals(self, lease: Any) -> int:
        return sum(batch.count(lease.id) for batch in self.renewed)


def _failing(name: str) -> Callable[..., Any]:
    def method(store: FailingStore, *arguments: Any) -> Any:
        store.calls += 1
        error = store.error
        assert store.gate.wait(DEADLINE)
        if error is not None:
            raise error
        answer = getattr(MemoryStore, name)(store, *arguments)
        if name == "settle":
            renewals = [request.lease_id for request in arguments[0] if request.mode is Mode.RENEW]
            store.renewed += [renewals] if renewals else []
        if name in store.lost_answers:
            store.lost_answers.remove(name)
            raise RateLimiterUnavailable("the answer was lost")
        return answer

    return method


for _name in METHODS:
    setattr(FailingStore, _name, _failing(_name))


def failing_store() -> FailingStore:
    """What `failing://` opens from now on."""
    store = FailingStore()
    register_store("failing", lambda url, timeout: store)
    return store


def eventually(there: Callable[[], Any]) -> bool:
    until = time.monotonic() + DEADLINE
    while not there() and time.monotonic() < until:
        time.sleep(0.005)
    return bool(there())


async def soon(there: Callable[[], Any]) -> bool:
    """The same for tasks."""
    for _ in range(int(DEADLINE * 200)):
        if there():
            break
        await asyncio.sleep(0.005)
    return bool(there())


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headgate-keeper"]


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Do something meanwhile. What it returned is in the list after the block."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    yield found
    thread.join(DEADLINE)
    assert not thread.is_alive()

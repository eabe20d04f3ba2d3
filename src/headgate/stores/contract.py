"""What a store must do: fourteen methods, in two kinds of state.

*Buckets*, the hot path. `settle` answers a batch of independent requests in order, each atomic, in one round
trip. *Records*, the cold path: small documents with versions, and their changes, all or nothing.

Beside the buckets a store keeps what was used of them by the hour (core/usage.py), and it can say of which namespaces
something is stored, and remove all of one.

Everything else (leases, hierarchy, configuration, waiting, coalescing) is built on these once, above.
`headgate.testing.conformance` checks a store against all of it. Adding a store: docs/stores.md.

Rules
- A request's decision is `core.decide`, or a script held to it by a differential test.
- `get_records` sees all keys at one moment, or one after the other in their order.
- A `settle` that is cancelled either has not happened, or ends with SettledThenCancelled, or with LostThenCancelled.
- Requests of a batch see each other in order. A refused one changes nothing but a bucket's limit.
- A part whose limit is concurrent is about slots (core/slots.py), kept by lease id with the moment they run out. A
  limit that becomes one of the other kind starts anew.
- A store that has no `hearing` keeps no queue for slots, and may ignore `place_ms`.
- `now_ms` is the caller's clock, or None for a store with `own_clock`, which then uses its own.
- No exception of a driver gets out: RateLimiterUnavailable when the store did not answer in time (the batch may
  then have happened or not), PartlyAnswered when some requests of it have an error instead of an answer,
  ValidationError when what the URL names cannot be used.
- A row that cannot be read, or makes no sense (core/stored.py), concerns the requests on it alone: CorruptState in the
  place of their answers, nothing changed for them, and the others answered as if it were not there. Lists name it
  (`Page.corrupt`, `Record.flaw`) and go on; `delete_buckets` and `write_records` replace it, `sweep` leaves it alone.
- Buckets that are full again may be forgotten at any time; `sweep` does it for what a store does not forget by itself,
  and lets go of the slots that have run out.
- A page may be empty; the last one is the one without a cursor. `list_buckets` may list a row twice, in any order.
- A `write_records` has at most MAX_CHANGES changes, and no record twice.
- `usage_ms` says how long usage is kept, 0 that none is counted. Whoever opens a store sets it before it is used. A
  bucket that is forgotten or deleted leaves its usage behind. `list_usage` may give a row in parts, and nothing twice.
- `purge` removes some of what there is of a namespace, and says how much: 0 when nothing is left. It may be stopped at
  any point and gone on with. `_` is the namespace of the namespaces, and is not listed by `list_stored`.
- Keys start with a namespace and a slash. A store keeps namespaces apart by that alone; the records of one call are of
  one namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from ..core.decide import Answer, Parts, Request
from ..core.errors import HeadgateError
from ..core.records import BucketRow, Change, Page, Record, Swept
from ..core.usage import UsageRow

MAX_CHANGES = 100


class CancelledLate(asyncio.CancelledError):
    """A coroutine's `settle` was cancelled when it could no longer be stopped.

    `own` is the cancellation itself. It is what the caller has to see: `asyncio.timeout` and anyio's scopes recognize
    no other.
    """

    def __init__(self, own: asyncio.CancelledError) -> None:
        super().__init__()
        self.own = own


class SettledThenCancelled(CancelledLate):
    """These are its answers."""

    def __init__(self, answers: Sequence[Answer | HeadgateError], own: asyncio.CancelledError) -> None:
        super().__init__(own)
        self.answers = answers


class LostThenCancelled(CancelledLate):
    """Whether it has happened is not known."""


class Store(Protocol):
    """A store as blocking calls, safe to use from many threads."""

    own_clock: bool
    in_process: bool  # it is an InProcessStore
    usage_ms: int

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]: ...
    def delete_buckets(self, keys: Sequence[str]) -> None: ...
    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]: ...
    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]: ...
    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None: ...
    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]: ...
    def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        """From the first of two hours until before the second."""

    def sweep(self, namespace: str, now_ms: int | None) -> Swept: ...
    def list_stored(self) -> list[str]: ...
    def count_stored(self, namespace: str) -> int:
        """How many rows of buckets and records: about as many as `purge` will say."""

    def purge(self, namespace: str) -> int: ...
    def setup(self) -> None: ...
    def ping(self) -> None: ...
    def close(self) -> None: ...


class Ear(Protocol):
    """A waiter for slots. `hears`: the store will call it, so that there is no need to ask in between."""

    @property
    def hears(self) -> bool: ...
    def close(self) -> None: ...


class Hearing(Protocol):
    """The attribute `hearing` of a store of either kind that keeps a queue for slots (`Request.place_ms`)."""

    @property
    def listener(self) -> str:
        """The name under which this process hears about its waiters; nothing if it cannot. When it changes, all of
        them are called, so that they ask again under the new one."""

    def hear(self, lease_id: str, heard: Callable[[], None]) -> Ear:
        """Call `heard` whenever the take of that lease may pass now. A blocking store calls it in another thread, the
        other in the event loop."""


class InProcessStore(Store, Protocol):
    """A store that answers without waiting for anything is called directly, and never batched."""

    def take(self, keys: Sequence[str], parts: Parts, now_ms: int) -> Answer:
        """`settle` of one take, without the Request."""


class AsyncStore(Protocol):
    """The same, as coroutines."""

    own_clock: bool
    usage_ms: int

    async def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]: ...
    async def delete_buckets(self, keys: Sequence[str]) -> None: ...
    async def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]: ...
    async def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]: ...
    async def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None: ...
    async def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]: ...
    async def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]: ...
    async def sweep(self, namespace: str, now_ms: int | None) -> Swept: ...
    async def list_stored(self) -> list[str]: ...
    async def count_stored(self, namespace: str) -> int: ...
    async def purge(self, namespace: str) -> int: ...
    async def setup(self) -> None: ...
    async def ping(self) -> None: ...
    async def close(self) -> None: ...

"""What a store must do: fourteen methods, on two kinds of state.

*Buckets* are the hot path. `settle` answers a batch of independent requests in order, each atomically, in one round
trip. *Records* are the cold path: small documents with versions, written all or nothing.

Besides buckets, a store keeps their usage by the hour (core/usage.py). It can also list the namespaces that have data,
and remove all data of one.

Everything else (leases, hierarchy, configuration, waiting, coalescing) is built once, on top of these methods.
`headgate.testing.conformance` checks a store against all rules. How to add a store: docs/stores.md.

Rules
- A request's decision is `core.decide`, or a script that a differential test compares with it.
- `get_records` sees all keys at one moment, or one after the other in their order.
- A `settle` that is cancelled either has not happened, or ends with SettledThenCancelled, or with LostThenCancelled.
- Requests of a batch see each other in order. A refused one changes nothing but a bucket's limit.
- A part whose limit is concurrent is about slots (core/slots.py), stored by lease id with their expiry. A limit that
  changes its kind starts anew.
- A store without `notifications` keeps no queue for slots, and may ignore `place_ms`.
- `now_ms` is the caller's clock. It is None for a store with `own_clock`, which then uses its own.
- No driver exception leaves a store: RateLimiterUnavailable means that the store did not answer in time (the batch may
  or may not have happened), PartlyAnswered that some requests of it have an error instead of an answer,
  ValidationError that the URL names something unusable.
- A row that cannot be read, or makes no sense (core/stored.py), affects only the requests on it: they get CorruptState
  instead of an answer and change nothing; the others are answered as if it did not exist. Lists report it
  (`Page.corrupt`, `Record.flaw`) and continue; `delete_buckets` and `write_records` replace it; `sweep` ignores it.
- Buckets that are full again may be forgotten at any time. `sweep` does it for a store that does not do it by itself,
  and frees expired slots.
- A page may be empty; the last page is the one without a cursor. `list_buckets` may list a row twice, in any order.
- A `write_records` has at most MAX_CHANGES changes, and no record twice.
- `usage_ms` is how long usage is kept; 0: none is counted. It is set once, before the store is used. Usage stays when
  its bucket is forgotten or deleted. `list_usage` may return a row in parts, but nothing twice.
- `purge` removes some of a namespace's data and returns how much; 0: nothing is left. It can be interrupted at any
  point and resumed. `_` is the namespace of the namespaces; `list_stored` does not list it.
- Keys start with a namespace and a slash. That alone separates namespaces; the records of one call are of one
  namespace.

Each method has its signature once, in `Store`. The other interfaces derive theirs from it: add a method to all four.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from ..core.decide import Answer, Parts, Request
from ..core.errors import HeadgateError, PartlyAnswered
from ..core.records import BucketRow, Change, Page, Record, Swept
from ..core.usage import UsageRow
from ..plan import Plan

P = ParamSpec("P")
T = TypeVar("T")

MAX_CHANGES = 100


class CancelledLate(asyncio.CancelledError):
    """A coroutine's `settle` was cancelled when it could no longer be stopped.

    `own` is the original cancellation. Raise it to the caller: `asyncio.timeout` and anyio's scopes recognize no other.
    """

    def __init__(self, own: asyncio.CancelledError) -> None:
        super().__init__()
        self.own = own


class SettledThenCancelled(CancelledLate):
    """It has happened; these are its answers."""

    def __init__(self, answers: Sequence[Answer | HeadgateError], own: asyncio.CancelledError) -> None:
        super().__init__(own)
        self.answers = answers


class LostThenCancelled(CancelledLate):
    """Whether it has happened is unknown."""


def cancelled_late(error: BaseException | None, own: asyncio.CancelledError) -> CancelledLate:
    """What a `settle` raises that was cancelled and then failed."""
    return SettledThenCancelled(error.results, own) if isinstance(error, PartlyAnswered) else LostThenCancelled(own)


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
        """From the first of the two hours to just before the second."""

    def sweep(self, namespace: str, now_ms: int | None) -> Swept: ...
    def list_stored(self) -> list[str]: ...
    def count_stored(self, namespace: str) -> int:
        """The number of bucket rows and records: about what `purge` will return in total."""

    def purge(self, namespace: str) -> int: ...
    def setup(self) -> None: ...
    def ping(self) -> None: ...
    def close(self) -> None: ...


class InProcessStore(Store, Protocol):
    """A store that never waits. It is called directly, and never batched."""

    def take(self, keys: Sequence[str], parts: Parts, now_ms: int) -> Answer:
        """`settle` of one take, without the Request."""


def _as_coroutine(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]]:
    return lambda declared: declared


def _as_plan(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Any, P], Plan[T]]]:
    return lambda declared: declared


Rest: TypeAlias = "Callable[[], Coroutine[Any, Any, list[Answer]]]"
# What becomes of a batch that was sent by `start`: the answers, or what has to be called and awaited for them.
Landed: TypeAlias = "Callable[[Sequence[Answer | HeadgateError], Rest | None], None]"


class OverlappingStore(Protocol):
    """A store for coroutines that can have several batches in progress, and does them in the order they were sent."""

    def start(self, batch: Sequence[Request], now_ms: int | None, landed: Landed) -> bool:
        """Send a batch without waiting for anything. False: it was not sent, and `settle` has to do it."""
        ...


class AsyncStore(Protocol):
    """The same methods as coroutines. Their parameters and results are those of Store."""

    own_clock: bool
    usage_ms: int

    @_as_coroutine(Store.settle)
    def settle(self) -> Any: ...
    @_as_coroutine(Store.delete_buckets)
    def delete_buckets(self) -> Any: ...
    @_as_coroutine(Store.list_buckets)
    def list_buckets(self) -> Any: ...
    @_as_coroutine(Store.get_records)
    def get_records(self) -> Any: ...
    @_as_coroutine(Store.write_records)
    def write_records(self) -> Any: ...
    @_as_coroutine(Store.list_records)
    def list_records(self) -> Any: ...
    @_as_coroutine(Store.list_usage)
    def list_usage(self) -> Any: ...
    @_as_coroutine(Store.sweep)
    def sweep(self) -> Any: ...
    @_as_coroutine(Store.list_stored)
    def list_stored(self) -> Any: ...
    @_as_coroutine(Store.count_stored)
    def count_stored(self) -> Any: ...
    @_as_coroutine(Store.purge)
    def purge(self) -> Any: ...
    @_as_coroutine(Store.setup)
    def setup(self) -> Any: ...
    @_as_coroutine(Store.ping)
    def ping(self) -> Any: ...
    @_as_coroutine(Store.close)
    def close(self) -> Any: ...


class StorePlans(Protocol):
    """The methods of a server's store as plans, with the parameters of Store. `settle` and `close` are its own."""

    usage_ms: int

    @_as_plan(Store.delete_buckets)
    def delete_buckets_plan(self) -> Any: ...
    @_as_plan(Store.list_buckets)
    def list_buckets_plan(self) -> Any: ...
    @_as_plan(Store.get_records)
    def get_records_plan(self) -> Any: ...
    @_as_plan(Store.write_records)
    def write_records_plan(self) -> Any: ...
    @_as_plan(Store.list_records)
    def list_records_plan(self) -> Any: ...
    @_as_plan(Store.list_usage)
    def list_usage_plan(self) -> Any: ...
    @_as_plan(Store.sweep)
    def sweep_plan(self) -> Any: ...
    @_as_plan(Store.list_stored)
    def list_stored_plan(self) -> Any: ...
    @_as_plan(Store.count_stored)
    def count_stored_plan(self) -> Any: ...
    @_as_plan(Store.purge)
    def purge_plan(self) -> Any: ...
    @_as_plan(Store.setup)
    def setup_plan(self) -> Any: ...
    @_as_plan(Store.ping)
    def ping_plan(self) -> Any: ...


class _Method(Generic[P, T]):
    """A method of Store that is implemented by the `_call` of its class."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        self._name = method.__name__

    @overload
    def __get__(self, store: BlockingMethods, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, store: CoroutineMethods, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, store: Any, owner: Any) -> Any:
        return self if store is None else partial(store._call, self._name)


class StoreMethods:
    """The methods that a class implements all at once, in `_call`."""

    delete_buckets = _Method(Store.delete_buckets)
    list_buckets = _Method(Store.list_buckets)
    get_records = _Method(Store.get_records)
    write_records = _Method(Store.write_records)
    list_records = _Method(Store.list_records)
    list_usage = _Method(Store.list_usage)
    sweep = _Method(Store.sweep)
    list_stored = _Method(Store.list_stored)
    count_stored = _Method(Store.count_stored)
    purge = _Method(Store.purge)
    setup = _Method(Store.setup)
    ping = _Method(Store.ping)


class BlockingMethods(StoreMethods):
    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class CoroutineMethods(StoreMethods):
    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Subscription(Protocol):
    """A waiter for slots. `active`: the store will notify it, so that it need not poll."""

    @property
    def active(self) -> bool: ...
    def close(self) -> None: ...


class Notifications(Protocol):
    """The attribute `notifications` of a store, of either kind, that keeps a queue for slots (`Request.place_ms`)."""

    @property
    def listener(self) -> str:
        """The name under which the server notifies this process; empty if it cannot. When it changes, all waiters are
        notified, so that they ask again under the new one."""

    def subscribe(self, lease_id: str, notify: Callable[[], None]) -> Subscription:
        """Call `notify` whenever the take of that lease may pass now: in another thread by a blocking store, in the
        event loop by the other kind."""

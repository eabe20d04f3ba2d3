"""The typed calls a plan may make. `answer = yield from SomeCall(...)` has the call's type."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from ..core.decide import Answer, Request
from ..core.errors import Unanswered, ValidationError
from ..core.forms import checked
from ..core.names import StoredId
from ..core.records import BucketRow, Change, Page, Record, Swept
from ..core.usage import UsageRow

T_co = TypeVar("T_co", covariant=True)
Plan: TypeAlias = "Generator[Call[Any], Any, T_co]"


class Call(Generic[T_co]):
    __slots__ = ()

    def __iter__(self) -> Plan[T_co]:
        return (yield self)  # type: ignore[no-any-return]  # the driver sends what the call's type says


@dataclass(frozen=True, slots=True)
class Settle(Call[Answer]):
    request: Request


@dataclass(frozen=True, slots=True)
class SettleAll(Call[list[Answer]]):
    """Many requests in one go, apart from those of others."""

    batch: Sequence[Request]


@dataclass(frozen=True, slots=True)
class SettleEach(Call[list[Answer | Unanswered]]):
    """Many requests in one go, together with those of others. Each has an answer, or says why there is none."""

    batch: Sequence[Request]


@dataclass(frozen=True, slots=True)
class SettleHere(Call[Answer]):
    """While the store is away: in this process, on its share of the limits."""

    request: Request


@dataclass(frozen=True, slots=True)
class Nap(Call[None]):
    """Sleep until the bell rings (a threading.Event or an asyncio.Event), and no longer than so many seconds."""

    bell: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep(Call[None]):
    seconds: float


@dataclass(frozen=True, slots=True)
class SingleFlight(Call[T_co]):
    """Run a plan, or wait for the result of the same plan if it is running already."""

    key: Hashable
    plan: Callable[[], Plan[T_co]]


@dataclass(frozen=True, slots=True)
class Whole(Call[T_co]):
    """Run a plan to its end. A cancellation is re-raised after it."""

    plan: Callable[[], Plan[T_co]]


class StoreCall(Call[T_co]):
    """A call that is one method of the store (see stores/contract.py)."""

    __slots__ = ()
    method: ClassVar[str]
    writes: ClassVar[bool] = False

    def place(self) -> str:
        """A key, a prefix or the namespace that it is about; nothing if it is about the store."""
        return ""

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class GetRecords(StoreCall[list[Record | None]]):
    """A corrupt one is an error, unless `even_corrupt`: to be overwritten or deleted it need not be read."""

    method: ClassVar[str] = "get_records"
    keys: Sequence[str]
    even_corrupt: bool = False

    def __iter__(self) -> Plan[list[Record | None]]:
        records: list[Record | None] = [record and checked(record) for record in (yield self)]
        for record in records:
            if record is not None and record.flaw and not self.even_corrupt:
                raise record.error
        return records

    def place(self) -> str:
        return self.keys[0] if self.keys else ""

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.keys, now_ms


@dataclass(frozen=True, slots=True)
class WriteRecords(StoreCall[None]):
    """All changes or none; VersionConflict if an expected version is not there."""

    method: ClassVar[str] = "write_records"
    writes: ClassVar[bool] = True
    changes: Sequence[Change]

    def place(self) -> str:
        return self.changes[0].key if self.changes else ""

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.changes, now_ms


@dataclass(frozen=True, slots=True)
class ListRecords(StoreCall[Page[Record]]):
    """A cursor comes from outside, and must not lead into other lists. What is corrupt is listed beside the page or, if
    `even_corrupt`, in it."""

    method: ClassVar[str] = "list_records"
    prefix: str
    cursor: str | None = None
    limit: int = 100
    even_corrupt: bool = False

    def __post_init__(self) -> None:
        if self.cursor is not None and not (isinstance(self.cursor, str) and self.cursor.startswith(self.prefix)):
            raise ValidationError(
                f"cursor {self.cursor!r} is not of this list: pass the one that the page before it has"
            )

    def __iter__(self) -> Plan[Page[Record]]:
        page: Page[Record] = yield self
        records = [checked(record) for record in page]
        if self.even_corrupt:
            return Page(records, page.cursor)
        corrupt = [record.error for record in records if record.flaw]
        return Page([record for record in records if not record.flaw], page.cursor, corrupt)

    def place(self) -> str:
        return self.prefix

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.prefix, self.cursor, self.limit, now_ms


@dataclass(frozen=True, slots=True)
class ListBuckets(StoreCall[Page[BucketRow]]):
    method: ClassVar[str] = "list_buckets"
    namespace: str
    entity_id: StoredId | None = None
    resource: str | None = None
    cursor: str | None = None

    def place(self) -> str:
        return self.namespace

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.namespace, self.entity_id, self.resource, self.cursor, now_ms


@dataclass(frozen=True, slots=True)
class DeleteBuckets(StoreCall[None]):
    method: ClassVar[str] = "delete_buckets"
    keys: Sequence[str]

    def place(self) -> str:
        return self.keys[0] if self.keys else ""

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return (self.keys,)


@dataclass(frozen=True, slots=True)
class Sweep(StoreCall[Swept]):
    method: ClassVar[str] = "sweep"
    namespace: str

    def place(self) -> str:
        return self.namespace

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.namespace, now_ms


@dataclass(frozen=True, slots=True)
class ListUsage(StoreCall[Page[UsageRow]]):
    method: ClassVar[str] = "list_usage"
    namespace: str
    entity_id: StoredId | None
    resource: str | None
    hours: tuple[int, int]
    cursor: str | None = None

    def place(self) -> str:
        return self.namespace

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return self.namespace, self.entity_id, self.resource, self.hours, self.cursor, now_ms


@dataclass(frozen=True, slots=True)
class ListStored(StoreCall[list[str]]):
    """The namespaces of which something is stored."""

    method: ClassVar[str] = "list_stored"


@dataclass(frozen=True, slots=True)
class CountStored(StoreCall[int]):
    method: ClassVar[str] = "count_stored"
    namespace: str

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return (self.namespace,)


@dataclass(frozen=True, slots=True)
class Purge(StoreCall[int]):
    """Remove some of a namespace; 0 if nothing was left."""

    method: ClassVar[str] = "purge"
    namespace: str

    def arguments(self, now_ms: int | None) -> tuple[Any, ...]:
        return (self.namespace,)


@dataclass(frozen=True, slots=True)
class Ping(StoreCall[None]):
    method: ClassVar[str] = "ping"


@dataclass(frozen=True, slots=True)
class Setup(StoreCall[None]):
    method: ClassVar[str] = "setup"

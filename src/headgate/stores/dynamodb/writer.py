"""Sending one round: all writes and reads at once, each in the cheapest way.

A few items: an UpdateItem each, in parallel. Many: PartiQL statements, 25 in a request. Items that must be written
together: a transaction, which costs twice as much. The others cost the same in any way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from ...core.errors import CorruptState, HeadgateError, RateLimiterUnavailable
from ...plan import Plan
from .conditional_writes import Write
from .deliver import THROTTLED, Deliverer, Outcome
from .exchange import Failed, Item, Send
from .ledger import Ledger
from .rows import NEW, Row

_FEW = 4
_STATEMENTS = 25
TOGETHER = 100
_INVALID = ("Validation", "ValidationError")  # alone, and in a transaction or a statement
_EXPECTED = frozenset(THROTTLED | {"AccessDenied", *_INVALID})


class News(NamedTuple):
    """What a reply says of an item: its row now (None: nothing new), whether the write succeeded, and what else
    happened.
    """

    row: Row | None
    done: bool = False
    throttled: bool = False
    error: HeadgateError | None = None
    invalid: Failed | None = None  # the write is invalid, whatever the conditions


Writes: TypeAlias = "Mapping[Ledger, Write]"


class Writer:
    def __init__(self, deliver: Deliverer) -> None:
        self._deliver = deliver
        self._statements = True  # until the credentials turn out not to allow them

    def write_plan(self, writes: Writes, looks: Sequence[Ledger]) -> Plan[dict[Ledger, News]]:
        parcels = [*self._parcels(writes), *(_Look(self._deliver.table, ledger) for ledger in looks)]
        if not parcels:
            return {}
        outcomes = yield from self._deliver.each_plan([parcel.send() for parcel in parcels], _EXPECTED)
        news: dict[Ledger, News] = {}
        for parcel, outcome in zip(parcels, outcomes):
            self._check(parcel, outcome)
            news |= parcel.news(outcome)
        return {ledger: self._looked_into(ledger, one) for ledger, one in news.items()}

    def _looked_into(self, ledger: Ledger, news: News) -> News:
        """A write was invalid. The item may be corrupt, so it is read first. If it is sound, raise the error."""
        if news.invalid is None:
            return news
        if ledger.looked_into:
            return News(None, error=self._deliver.unusable(news.invalid))
        ledger.doubtful = True
        return news

    def _check(self, parcel: _Parcel, outcome: Outcome) -> None:
        """Raise if the table cannot be used at all. Without the permission for statements, stop using them."""
        for one in parcel.each(outcome) if isinstance(parcel, _Statements) else [outcome]:
            if not isinstance(one, Failed) or one.code not in ("AccessDenied", "ResourceNotFound"):
                continue
            if one.code == "ResourceNotFound" or not isinstance(parcel, _Statements):
                raise self._deliver.unusable(one)
            self._statements = False

    def _parcels(self, writes: Writes) -> Iterator[_Parcel]:
        table = self._deliver.table
        together = {ledger: write for ledger, write in writes.items() if ledger.together}
        if 1 < len(together) <= TOGETHER:
            yield _Transaction(table, together)
            writes = {ledger: write for ledger, write in writes.items() if ledger not in together}
        yield from self._alone(table, writes)

    def _alone(self, table: str, alone: Writes) -> Iterator[_Parcel]:
        stated = _stated(table, alone) if self._statements and len(alone) > _FEW else {}
        ledgers = list(stated)
        for start in range(0, len(ledgers), _STATEMENTS):
            yield _Statements({one: stated[one] for one in ledgers[start : start + _STATEMENTS]})
        for ledger, write in alone.items():
            if ledger not in stated:
                yield _Update(table, ledger, write)


def _stated(table: str, writes: Writes) -> dict[Ledger, Mapping[str, Any]]:
    """The writes that can be statements."""
    return {ledger: text for ledger, write in writes.items() if (text := write.statement(table)) is not None}


class _Update(NamedTuple):
    table: str
    ledger: Ledger
    write: Write

    def send(self) -> Send:
        return self.write.update(self.table)

    def news(self, outcome: Outcome) -> dict[Ledger, News]:
        return {self.ledger: _news(self.ledger, outcome)}


class _Look(NamedTuple):
    table: str
    ledger: Ledger

    def send(self) -> Send:
        parameters = {"TableName": self.table, "Key": self.ledger.place.key, "ConsistentRead": True}
        return Send("GetItem", parameters, repeatable=True)

    def news(self, outcome: Outcome) -> dict[Ledger, News]:
        if isinstance(outcome, (Failed, RateLimiterUnavailable)):
            return {self.ledger: _news(self.ledger, outcome)}
        return {self.ledger: _read(self.ledger, outcome.get("Item"))}


class _Statements(NamedTuple):
    statements: Mapping[Ledger, Mapping[str, Any]]

    def send(self) -> Send:
        return Send("BatchExecuteStatement", {"Statements": list(self.statements.values())})

    def news(self, outcome: Outcome) -> dict[Ledger, News]:
        return {ledger: _news(ledger, one) for ledger, one in zip(self.statements, self.each(outcome))}

    def each(self, outcome: Outcome) -> list[Outcome]:
        """The outcome of each statement."""
        if isinstance(outcome, (Failed, RateLimiterUnavailable)):
            return [outcome] * len(self.statements)
        return [_statement(response) for response in outcome["Responses"]]


class _Transaction(NamedTuple):
    table: str
    writes: Writes

    def send(self) -> Send:
        items = [{"Update": write.transact(self.table)} for write in self.writes.values()]
        # With its own token it is done once, no matter how often it is sent.
        return Send("TransactWriteItems", {"TransactItems": items, "ClientRequestToken": str(uuid4())}, repeatable=True)

    def news(self, outcome: Outcome) -> dict[Ledger, News]:
        if isinstance(outcome, RateLimiterUnavailable):
            return {ledger: _news(ledger, outcome) for ledger in self.writes}
        if isinstance(outcome, Failed):
            reasons = outcome.reasons or [outcome] * len(self.writes)
            return {ledger: _news(ledger, reason) for ledger, reason in zip(self.writes, reasons)}
        # A transaction does not return the items: they are as assumed, or a little emptier.
        return {ledger: News(ledger.written(write), done=True) for ledger, write in self.writes.items()}


_Parcel: TypeAlias = "_Update | _Look | _Statements | _Transaction"


def _news(ledger: Ledger, outcome: Outcome) -> News:
    if isinstance(outcome, RateLimiterUnavailable):
        return News(None, error=outcome)
    if not isinstance(outcome, Failed):
        return _read(ledger, outcome["Attributes"], done=True)
    if outcome.code == "ConditionalCheckFailed":
        return _read(ledger, outcome.item)
    if outcome.code in _INVALID:
        return News(None, invalid=outcome)
    return News(None, throttled=outcome.code in THROTTLED)


def _statement(response: Mapping[str, Any]) -> Outcome:
    error = response.get("Error")
    if error is None:
        return {"Attributes": response["Item"]}
    failed = Failed(error["Code"], error.get("Message", ""), error.get("Item"))
    if failed.code == "InternalServerError":
        return RateLimiterUnavailable(f"DynamoDB: {failed.code}: {failed.message}")
    return failed


def _read(ledger: Ledger, item: Item | None, *, done: bool = False) -> News:
    try:
        return News(ledger.read(item) if item else NEW, done)
    except CorruptState as error:
        return News(None, error=error)

"""Namespaces and audit events as records of the table, and removing all of a namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dynamodb_helpers import request
from dynamodb_tables import NOW, Driven, a_table

from headgate import Limit, ValidationError, VersionConflict
from headgate.core.decide import TAKE
from headgate.core.errors import NamespaceNotFound
from headgate.core.records import ABSENT, Delete, Put, Record
from headgate.stores.dynamodb import stored
from headgate.stores.dynamodb.exchange import Failed, Reply, Send
from headgate.stores.dynamodb.items import values_of
from headgate.stores.dynamodb.plans import DynamoDBPlans
from headgate.stores.dynamodb.table import SCHEMA, Versions
from local_servers.dynamodb import Engine

REGISTRY = "_/SYSTEM#"
KEY = "_/namespace#acme"
ACTIVE = {"id": "id-of-acme", "status": "active", "created_at_ms": NOW, "deleted_at_ms": None}
DELETED = ACTIVE | {"status": "deleted", "deleted_at_ms": NOW + 1}
RPM = Limit.per_minute("rpm", 60)


@pytest.fixture
def driven(ministack: Engine, aws_credentials: str) -> Iterator[Driven]:
    with a_table(ministack) as driven:
        yield driven


class Client:
    """A store on the table, as its plans."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.plans = DynamoDBPlans(driven.deliver.settings)

    def get(self, key: str = KEY) -> Record | None:
        (record,) = self.driven.run(self.plans.get_records_plan([key], NOW))
        return record

    def write(self, *changes: Any) -> None:
        self.driven.run(self.plans.write_records_plan(changes, NOW))

    def list(self, prefix: str, limit: int = 10, cursor: str | None = None, now_ms: int = NOW) -> Any:
        return self.driven.run(self.plans.list_records_plan(prefix, cursor, limit, now_ms))

    def take(self, entity_id: str = "e", namespace: str = "acme") -> None:
        self.driven.run(self.plans.settle_plan([request(RPM, 1, TAKE, f"{namespace}/{entity_id}#r")], NOW))

    def fill(self, namespace: str, count: int) -> None:
        """So many items of several kinds."""
        for number in range(count - 1):
            self.take(f"e{number}", namespace)
        self.write(Put(f"{namespace}/anything", {}))

    def stored(self) -> list[str]:
        return self.driven.run(self.plans.list_stored_plan())

    def count(self, namespace: str) -> int:
        return self.driven.run(self.plans.count_stored_plan(namespace))

    def purge(self, namespace: str) -> int:
        return self.driven.run(self.plans.purge_plan(namespace))


@pytest.fixture
def client(driven: Driven) -> Client:
    return Client(driven)


# Namespaces as records


def test_both_ways_to_register_write_the_same(driven: Driven, client: Client) -> None:
    client.write(Put(KEY, ACTIVE, ABSENT))
    client.take(namespace="by-itself")
    items = {sk: values_of(item) for (_, sk), item in driven.items().items() if sk.startswith("#NAMESPACE#")}
    mine, other = items["#NAMESPACE#acme"], items["#NAMESPACE#by-itself"]
    assert mine.keys() == other.keys()
    assert {mine[name] == other[name] for name in ("PK", "status", "version", "GSI4PK", "GSI4SK")} == {True}
    record = client.get("_/namespace#by-itself")
    assert record is not None
    assert (record.value.keys(), record.version) == (ACTIVE.keys(), 1)
    assert client.get() == Record(KEY, ACTIVE, 1)
    assert [found.key for found in client.list("_/namespace#")] == [KEY, "_/namespace#by-itself"]


def test_its_id_is_the_one_it_was_registered_with(driven: Driven, client: Client) -> None:
    client.write(Put(KEY, ACTIVE, ABSENT))
    driven.operations()
    client.get()
    client.take()
    assert driven.operations() == ["BatchGetItem", "UpdateItem"], "who has read it knows it"
    assert ("id-of-acme/BUCKET#e#r#0", "#STATE") in driven.items()


def test_one_that_is_deleted_cannot_be_used(driven: Driven, client: Client) -> None:
    """Whoever has deleted it notices at once, others when they look again."""
    client.take()
    record, other = client.get(), Client(driven)
    assert record is not None
    other.take()
    client.write(Put(KEY, record.value | {"status": "purging"}, 1))
    for refused in (client.take, lambda: client.write(Put("acme/x", {})), lambda: client.list("acme/x")):
        with pytest.raises(NamespaceNotFound, match="'acme'"):
            refused()
    other.take()
    assert other.get() is not None
    with pytest.raises(NamespaceNotFound, match="'acme'"):
        other.take()
    assert client.count("acme") == 1
    assert client.stored() == ["acme"]
    client.write(Put(KEY, record.value, 2))
    client.take()


def test_the_first_record_of_all_marks_the_table(driven: Driven, client: Client) -> None:
    driven.client.delete_item(TableName=driven.table, Key={"PK": {"S": REGISTRY}, "SK": {"S": "#VERSION"}})
    assert client.get() is None
    client.write(Put(KEY, ACTIVE, ABSENT), Put("_/audit#1", {}))
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)
    driven.put(PK={"S": REGISTRY}, SK={"S": "#VERSION"}, schema_version={"N": "3"}, min_client_schema={"N": "3"})
    for refused in (client.get, lambda: client.write(Put(KEY, DELETED))):
        with pytest.raises(ValidationError, match="has layout 3"):
            refused()


def test_whoever_may_not_register_is_told_so(driven: Driven, client: Client) -> None:
    driven.meddle_once("PutItem", lambda send: Failed("AccessDenied", "not authorized"))
    with pytest.raises(ValidationError, match=r"'acme' is not registered.*administrator.*not authorized"):
        client.write(Put(KEY, ACTIVE, ABSENT))


class TestOnEveryEngine:
    @pytest.fixture
    def driven(self, dynamodb_engine: Engine, aws_credentials: str) -> Iterator[Driven]:
        with a_table(dynamodb_engine) as driven:
            yield driven

    def test_one_from_before_there_were_versions(self, driven: Driven, client: Client) -> None:
        client.write(Put(KEY, ACTIVE, ABSENT))
        key = {"PK": {"S": REGISTRY}, "SK": {"S": "#NAMESPACE#acme"}}
        driven.client.update_item(TableName=driven.table, Key=key, UpdateExpression="REMOVE version")
        assert client.get() == Record(KEY, ACTIVE, 1)
        for wrong in (ABSENT, 2):
            with pytest.raises(VersionConflict):
                client.write(Put(KEY, DELETED, wrong))
        client.write(Put(KEY, DELETED, 1))
        assert client.get() == Record(KEY, DELETED, 2)
        with pytest.raises(VersionConflict):
            client.write(Delete(KEY, 1))
        client.write(Delete(KEY, 2), Put("_/audit#1", {"action": "purged"}))
        assert client.get() is None
        with pytest.raises(VersionConflict):
            client.write(Put(KEY, DELETED, 1))

    def test_events_are_listed_in_order_and_by_entity(self, driven: Driven, client: Client) -> None:
        for number in (3, 1, 2):
            event = {"action": "limits.set", "number": number}
            expires = NOW + number * 1000
            client.write(
                Put(f"acme/audit#00{number}", event, expires_at_ms=expires),
                Put(f"acme/audited#e#00{number}", event, expires_at_ms=expires),
            )
        sent = [send.operation for send in driven.sent[-2:]]
        assert sent == ["TransactWriteItems"] * 2, "no event is looked for before it is written"
        page = client.list("acme/audit#", limit=2)
        rest = client.list("acme/audit#", cursor=page.cursor)
        assert [record.value["number"] for record in [*page, *rest]] == [1, 2, 3]
        assert [record.key for record in client.list("acme/audited#e#")] == [f"acme/audited#e#00{n}" for n in (1, 2, 3)]
        assert [record.value["number"] for record in client.list("acme/audit#", now_ms=NOW + 1000)] == [2, 3]
        assert client.list("acme/audited#other#") == client.list("_/audit#") == []
        items = {key: item for key, item in driven.items().items() if "/AUDIT#" in key[0]}
        assert {(pk.partition("/")[2], sk) for pk, sk in items} == {
            (pk, f"{sk}00{number}")
            for number in (1, 2, 3)
            for pk, sk in (("AUDIT#", "#AUDIT#"), ("AUDIT#e", "#AUDITED#"))
        }
        assert all("ttl" in item for item in items.values())
        with pytest.raises(ValidationError, match="audited"):
            client.list("acme/audited#")

    def test_stored_namespaces_are_listed_counted_and_purged(self, driven: Driven, client: Client) -> None:
        client.fill("acme", 6)
        client.fill("other", 3)
        driven.put(PK={"S": "gone/ENTITY#e"}, SK={"S": "#META"}, GSI4PK={"S": "gone"}, GSI4SK={"S": "gone/ENTITY#e"})
        assert client.stored() == ["_gone", "acme", "other"]
        assert [client.count(name) for name in ("acme", "other", "_gone", "never", "_")] == [6, 3, 1, 0, 0]
        assert client.purge("_gone") == 1
        assert client.stored() == ["acme", "other"]
        with pytest.raises(ValidationError):
            client.purge("no/name")


# All of a namespace


def test_purge_in_steps_removes_one_namespace_and_no_other(
    driven: Driven, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_STEP", 4)
    client.fill("acme", 6)
    client.fill("other", 3)
    before = {key: item for key, item in driven.items().items() if not key[0].startswith(id_of(client, "acme"))}
    assert [client.purge("acme") for _ in range(3)] == [4, 2, 0]
    assert driven.items() == before
    assert client.stored() == ["other"]


def test_purging_what_dynamodb_leaves_undone(driven: Driven, client: Client) -> None:
    client.fill("acme", 5)

    def some(send: Send) -> Reply:
        requests = send.parameters["RequestItems"][driven.table]
        done = {"RequestItems": {driven.table: requests[:2]}}
        reply = driven.reply(send._replace(parameters=done))
        assert not isinstance(reply, Failed)
        return {**reply, "UnprocessedItems": {driven.table: requests[2:]}}  # type: ignore[dict-item]

    driven.meddle_once("BatchWriteItem", some)
    assert client.purge("acme") == 5
    assert client.count("acme") == 0


def test_an_index_that_is_behind(driven: Driven, client: Client) -> None:
    client.fill("acme", 2)
    driven.meddle_once("Query", lambda send: {"Items": [], "Count": 0})
    assert client.purge("acme") == 2


def test_killed_at_any_point_and_purged_again(driven: Driven, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_STEP", 2)
    for killed_after in itertools.count():
        client.fill("acme", 3)
        try:
            driven.meddle = killer(killed_after)
            while client.purge("acme"):
                pass
        except Killed:
            driven.meddle = lambda send: None
            while client.purge("acme"):
                pass
        else:
            break
        assert client.count("acme") == 0
    driven.meddle = lambda send: None
    assert killed_after > 5
    assert client.stored() == []


class Killed(Exception):
    pass


def killer(after: int) -> Callable[[Send], None]:
    turns = itertools.count()

    def meddle(send: Send) -> None:
        if next(turns) == after:
            raise Killed

    return meddle


def id_of(client: Client, name: str) -> str:
    found = client.plans.namespaces.known(name)
    assert found is not None
    return found

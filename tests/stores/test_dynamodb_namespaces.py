"""Namespaces of a table, and whether the table can be used at all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dynamodb_tables import NOW, Driven, a_table

from headgate import Limit, ValidationError
from headgate.core.decide import TAKE, Part, Request
from headgate.core.errors import CorruptState, NamespaceNotFound, PartlyAnswered
from headgate.stores.dynamodb.exchange import Failed, Lost, Reply, Send
from headgate.stores.dynamodb.items import values_of
from headgate.stores.dynamodb.namespaces import KEPT_SECONDS, Namespaces
from headgate.stores.dynamodb.plans import DynamoDBPlans
from headgate.stores.dynamodb.table import SCHEMA, DynamoDBTable, Versions
from local_servers.dynamodb import Engine

REGISTRY = "_/SYSTEM#"


@pytest.fixture
def driven(dynamodb_engine: Engine, aws_credentials: str) -> Iterator[Driven]:
    with a_table(dynamodb_engine) as driven:
        yield driven


def namespaces(driven: Driven) -> Namespaces:
    return Namespaces(driven.deliver, now_ms=lambda: NOW)


def test_a_name_gets_an_id_once(driven: Driven) -> None:
    ours = namespaces(driven)
    assert ours.known("acme") is None
    ns = driven.run(ours.id_plan("acme"))
    assert driven.operations() == ["BatchGetItem", "TransactWriteItems"]
    assert len(ns) == 11
    assert ours.known("acme") == driven.run(ours.id_plan("acme")) == driven.run(ours.find_plan("acme")) == ns
    assert driven.operations() == []
    assert driven.run(namespaces(driven).id_plan("acme")) == ns
    assert driven.operations() == ["BatchGetItem"], "the name and the table's version together"
    assert driven.run(ours.id_plan("other")) != ns


def test_the_item_of_a_namespace(driven: Driven) -> None:
    ns = driven.run(namespaces(driven).id_plan("acme"))
    told = {"namespace": "acme", "namespace_id": ns, "status": "active", "created_at_ms": NOW, "version": 1}
    key, index = {"PK": REGISTRY, "SK": "#NAMESPACE#acme"}, {"GSI4PK": "_", "GSI4SK": REGISTRY}
    assert values_of(driven.items()[REGISTRY, "#NAMESPACE#acme"]) == {**key, **told, **index}


def test_many_who_register_at_once_get_the_same_id(driven: Driven) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(lambda _: driven.run(namespaces(driven).id_plan("acme")), range(6)))
    assert len(found) == 1
    assert sorted(sk.split("#")[1] for _, sk in driven.items()) == ["NAMESPACE", "VERSION"]


def test_whoever_loses_the_race_takes_the_winners_id(driven: Driven) -> None:
    won: list[str] = []

    def overtaken(send: Send) -> Reply:
        won.append(driven.run(namespaces(driven).id_plan("acme")))
        return driven.reply(send)

    driven.meddle_once("TransactWriteItems", overtaken)
    assert driven.run(namespaces(driven).id_plan("acme")) == won[0]
    assert len(driven.items()) == 2


def test_a_lost_reply_does_not_register_twice(driven: Driven) -> None:
    def lose(send: Send) -> Reply:
        driven.reply(send)
        return Lost("closed the connection", sent=True)

    driven.meddle_once("TransactWriteItems", lose)
    driven.run(namespaces(driven).id_plan("acme"))
    assert set(driven.items()) == {(REGISTRY, "#NAMESPACE#acme"), (REGISTRY, "#VERSION")}


def test_a_namespace_that_was_purged_and_registered_again_is_seen(driven: Driven) -> None:
    now = [0.0]
    ours = Namespaces(driven.deliver, monotonic=lambda: now[0])
    ns = driven.run(ours.id_plan("acme"))
    driven.client.delete_item(TableName=driven.table, Key={"PK": {"S": REGISTRY}, "SK": {"S": "#NAMESPACE#acme"}})
    newer = driven.run(namespaces(driven).id_plan("acme"))
    assert newer != ns
    now[0] = KEPT_SECONDS - 0.001
    assert ours.known("acme") == ns
    now[0] = KEPT_SECONDS
    assert ours.known("acme") is None
    assert driven.run(ours.id_plan("acme")) == ours.known("acme") == newer
    ours.forget("acme")
    assert ours.known("acme") is None


def test_only_an_active_namespace_can_be_used(driven: Driven) -> None:
    driven.run(namespaces(driven).id_plan("acme"))
    driven.client.update_item(
        TableName=driven.table,
        Key={"PK": {"S": REGISTRY}, "SK": {"S": "#NAMESPACE#acme"}},
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "status"},
        ExpressionAttributeValues={":s": {"S": "deleted"}},
    )
    for plan in (namespaces(driven).id_plan("acme"), namespaces(driven).find_plan("acme")):
        with pytest.raises(NamespaceNotFound, match=r"'acme'.*is deleted: recover it"):
            driven.run(plan)
    (listed,) = driven.run(namespaces(driven).list_plan())
    assert listed.status == "deleted"


def test_namespaces_are_listed_by_name_in_pages(driven: Driven) -> None:
    ids = {name: driven.run(namespaces(driven).id_plan(name)) for name in ("c", "a", "b")}
    ours = namespaces(driven)
    first = driven.run(ours.list_plan(limit=2))
    rest = driven.run(ours.list_plan(first.cursor, limit=2))
    assert [(found.name, found.id) for found in [*first, *rest]] == sorted(ids.items())
    assert (first.cursor, rest.cursor) == ("b", None)


def test_a_name_that_is_not_allowed(driven: Driven) -> None:
    for name in ("", "_a", "a#b", "a/b"):
        for plan in (namespaces(driven).id_plan(name), namespaces(driven).find_plan(name)):
            with pytest.raises(ValidationError, match="namespace"):
                driven.run(plan)
    assert driven.operations() == []


def test_whoever_may_not_register_is_told_so(driven: Driven) -> None:
    driven.meddle_once("TransactWriteItems", lambda send: Failed("AccessDenied", "not authorized"))
    with pytest.raises(ValidationError, match=r"'acme' is not registered.*administrator.*not authorized"):
        driven.run(namespaces(driven).id_plan("acme"))


# Versions


def set_version(driven: Driven, schema: int, min_client: int) -> None:
    numbers = {"schema_version": {"N": str(schema)}, "min_client_schema": {"N": str(min_client)}}
    driven.put(PK={"S": REGISTRY}, SK={"S": "#VERSION"}, **numbers)


@pytest.mark.parametrize(
    ("schema", "min_client", "told"),
    [
        (SCHEMA - 1, SCHEMA - 1, r"is being filled by `headgate aws migrate`, which has not finished"),
        (SCHEMA + 1, SCHEMA + 1, r"has layout 3, this headgate knows layouts up to 2: upgrade"),
    ],
)
def test_a_table_of_another_layout_is_not_used(driven: Driven, schema: int, min_client: int, told: str) -> None:
    driven.run(namespaces(driven).id_plan("acme"))
    set_version(driven, schema, min_client)
    before = driven.items()
    plans: list[Any] = [
        namespaces(driven).id_plan("acme"),
        namespaces(driven).find_plan("acme"),
        namespaces(driven).id_plan("new"),
        DynamoDBTable(driven.deliver).ping_plan(),
        DynamoDBTable(driven.deliver).setup_plan(),
    ]
    for plan in plans:
        with pytest.raises(ValidationError, match=told):
            driven.run(plan)
    assert driven.items() == before


def test_a_newer_layout_that_this_code_can_use(driven: Driven) -> None:
    set_version(driven, SCHEMA + 1, SCHEMA)
    driven.run(namespaces(driven).id_plan("acme"))
    driven.run(DynamoDBTable(driven.deliver).setup_plan())
    version = driven.run(Versions(driven.deliver).check_plan())
    assert version == (SCHEMA + 1, SCHEMA)


def unmarked(driven: Driven) -> None:
    """As a stack makes it: nobody has said yet which layout the table has."""
    driven.client.delete_item(TableName=driven.table, Key={"PK": {"S": REGISTRY}, "SK": {"S": "#VERSION"}})


def test_the_first_namespace_marks_a_table_that_nobody_has_used(driven: Driven) -> None:
    unmarked(driven)
    driven.run(namespaces(driven).id_plan("acme"))
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_two_namespaces_that_mark_the_table_at_once(driven: Driven) -> None:
    unmarked(driven)

    def overtaken(send: Send) -> Reply:
        driven.run(namespaces(driven).id_plan("other"))
        return driven.reply(send)

    driven.meddle_once("TransactWriteItems", overtaken)
    driven.run(namespaces(driven).id_plan("acme"))
    assert len(driven.items()) == 3


@pytest.mark.parametrize("key", [("SYSTEM#", "#VERSION"), ("ENTITY#acme", "#META")])
def test_a_table_with_items_of_the_older_layout(driven: Driven, key: tuple[str, str]) -> None:
    unmarked(driven)
    driven.put(PK={"S": key[0]}, SK={"S": key[1]})
    with pytest.raises(ValidationError, match="headgate aws migrate"):
        driven.run(DynamoDBTable(driven.deliver).setup_plan())
    if key[1] == "#VERSION":
        with pytest.raises(ValidationError, match="headgate aws migrate"):
            driven.run(namespaces(driven).id_plan("acme"))
    assert list(driven.items()) == [key]


def test_a_corrupt_namespace_leaves_the_other_requests_of_a_batch_answered(driven: Driven) -> None:
    driven.run(namespaces(driven).id_plan("bad"))
    (item,) = [item for item in driven.items().values() if item.get("namespace") == {"S": "bad"}]
    driven.put(**{name: value for name, value in item.items() if name != "namespace_id"})
    limit = Limit.per_minute("rpm", 5)
    batch = [Request(TAKE, (f"{name}/e#r",), (Part(0, limit, 1000),)) for name in ("good", "bad", "good")]
    with pytest.raises(PartlyAnswered) as partly:
        driven.run(DynamoDBPlans(driven.deliver.settings).settle_plan(batch, NOW))
    first, error, second = partly.value.results
    assert isinstance(error, CorruptState)
    assert error.record_key == "_/namespace#bad"
    assert [answer.levels for answer in (first, second)] == [[(4000, 0)], [(3000, 0)]]

"""Making the table."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dynamodb_tables import Driven, a_table

from headgate import RateLimiterUnavailable, ValidationError
from headgate.stores import open_store
from headgate.stores.dynamodb.exchange import Failed, Reply, Send
from headgate.stores.dynamodb.table import INDEXES, STREAM, TABLE, TTL, DynamoDBTable, version_item
from local_servers.dynamodb import Engine


@pytest.fixture
def driven(dynamodb_engine: Engine, aws_credentials: str) -> Iterator[Driven]:
    with a_table(dynamodb_engine, made=False) as driven:
        yield driven


def set_up(driven: Driven) -> None:
    driven.run(DynamoDBTable(driven.deliver).setup_plan())


def create(driven: Driven, **different: Any) -> None:
    driven.client.create_table(TableName=driven.table, **{**TABLE, **different})
    driven.client.get_waiter("table_exists").wait(TableName=driven.table, WaiterConfig={"Delay": 0.1})


def check_complete(driven: Driven) -> None:
    table = driven.client.describe_table(TableName=driven.table)["Table"]
    assert table["TableStatus"] == "ACTIVE"
    assert table["KeySchema"] == TABLE["KeySchema"]
    assert table["StreamSpecification"] == STREAM
    indexes = {index["IndexName"]: index for index in table["GlobalSecondaryIndexes"]}
    assert sorted(indexes) == sorted(INDEXES)
    for wanted in TABLE["GlobalSecondaryIndexes"]:
        assert indexes[wanted["IndexName"]]["KeySchema"] == wanted["KeySchema"]
    ttl = driven.client.describe_time_to_live(TableName=driven.table)["TimeToLiveDescription"]
    assert ttl["TimeToLiveStatus"] in ("ENABLED", "ENABLING")
    assert ttl["AttributeName"] == TTL["AttributeName"]
    assert ("_/SYSTEM#", "#VERSION") in driven.items()


def test_setup_makes_the_table_with_all_indexes(driven: Driven) -> None:
    set_up(driven)
    check_complete(driven)
    table = driven.client.describe_table(TableName=driven.table)["Table"]
    assert {index["Projection"]["ProjectionType"] for index in table["GlobalSecondaryIndexes"]} == {"KEYS_ONLY"}
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_a_table_that_is_complete_stays_as_it_is(driven: Driven) -> None:
    set_up(driven)
    before = driven.items()
    driven.operations()
    set_up(driven)
    assert set(driven.operations()) == {"DescribeTable", "BatchGetItem", "DescribeTimeToLive"}
    assert driven.items() == before


def test_what_is_missing_is_added(driven: Driven) -> None:
    """A table of ours that lacks indexes."""
    attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK", "GSI1PK", "GSI1SK")]
    index = TABLE["GlobalSecondaryIndexes"][0] | {"Projection": {"ProjectionType": "ALL"}}
    create(driven, AttributeDefinitions=attributes, GlobalSecondaryIndexes=[index])
    driven.put(**version_item())
    driven.put(PK={"S": "abc/RECORD#"}, SK={"S": "#RECORD#x"}, GSI4PK={"S": "abc"}, GSI4SK={"S": "abc/RECORD#"})
    set_up(driven)
    check_complete(driven)
    assert ("abc/RECORD#", "#RECORD#x") in driven.items()
    found = driven.client.query(
        TableName=driven.table,
        IndexName="GSI4",
        KeyConditionExpression="GSI4PK = :ns",
        ExpressionAttributeValues={":ns": {"S": "abc"}},
    )
    assert found["Count"] == 1


def test_an_index_that_somebody_else_adds_at_the_same_time(driven: Driven) -> None:
    create(driven, GlobalSecondaryIndexes=TABLE["GlobalSecondaryIndexes"][:3], AttributeDefinitions=[
        attribute for attribute in TABLE["AttributeDefinitions"] if not attribute["AttributeName"].startswith("GSI4")
    ])  # fmt: skip
    answers: list[Reply] = []

    def overtaken(send: Send) -> Reply:
        driven.reply(send)
        answers.append(driven.reply(send))
        return answers[0]

    driven.meddle_once("UpdateTable", overtaken)
    set_up(driven)
    assert isinstance(answers[0], Failed)
    check_complete(driven)


def test_an_index_while_the_table_is_being_changed(driven: Driven) -> None:
    create(driven, GlobalSecondaryIndexes=TABLE["GlobalSecondaryIndexes"][:3], AttributeDefinitions=[
        attribute for attribute in TABLE["AttributeDefinitions"] if not attribute["AttributeName"].startswith("GSI4")
    ])  # fmt: skip
    driven.meddle_once("UpdateTable", lambda send: Failed("ResourceInUse", "the table is being updated"))
    set_up(driven)
    check_complete(driven)


def test_a_change_that_is_refused_is_told(driven: Driven) -> None:
    create(driven)
    driven.meddle_once("UpdateTable", lambda send: Failed("Validation", "too many indexes"))
    with pytest.raises(ValidationError, match="cannot be changed: too many indexes"):
        set_up(driven)


def test_concurrent_setups_make_one_complete_table(driven: Driven) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: set_up(driven), range(3)))
    check_complete(driven)


def test_a_table_that_is_still_being_made_is_waited_for(driven: Driven) -> None:
    """As on AWS: for a while it is not there at all, then it is not ready, and then an index is not."""
    states: list[str | None] = ["nothing", "CREATING", "CREATING", "index", None]

    def slow(send: Send) -> Reply | None:
        if send.operation != "DescribeTable" or not any(sent.operation == "CreateTable" for sent in driven.sent):
            return None
        state = states.pop(0) if states else None
        if state == "nothing":
            return Failed("ResourceNotFound", "not there yet")
        reply = driven.reply(send)
        assert isinstance(reply, dict)
        if state == "index":
            reply["Table"]["GlobalSecondaryIndexes"][1]["IndexStatus"] = "CREATING"
        elif state:
            reply["Table"]["TableStatus"] = state
        return reply

    driven.meddle = slow
    set_up(driven)
    assert states == []
    assert driven.slept >= 4
    assert driven.more_time >= 5, "the deadline of one call is not for all of it"
    check_complete(driven)


def test_patience_has_an_end(driven: Driven) -> None:
    create(driven)
    description = driven.client.describe_table(TableName=driven.table)["Table"] | {"TableStatus": "UPDATING"}
    driven.meddle = lambda send: {"Table": description} if send.operation == "DescribeTable" else None
    with pytest.raises(RateLimiterUnavailable, match=r"still not ready after 60\d seconds \(the table is UPDATING\)"):
        set_up(driven)


def test_a_table_of_something_else_is_left_alone(driven: Driven) -> None:
    keys = [{"AttributeName": "id", "KeyType": "HASH"}]
    driven.client.create_table(
        TableName=driven.table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=keys,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    with pytest.raises(ValidationError):
        set_up(driven)
    table = driven.client.describe_table(TableName=driven.table)["Table"]
    assert not table.get("GlobalSecondaryIndexes")


def test_an_index_of_something_else_is_left_alone(driven: Driven) -> None:
    index = {
        "IndexName": "GSI2",
        "KeySchema": [{"AttributeName": "GSI1PK", "KeyType": "HASH"}, {"AttributeName": "PK", "KeyType": "RANGE"}],
        "Projection": {"ProjectionType": "ALL"},
    }
    attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK", "GSI1PK")]
    create(driven, AttributeDefinitions=attributes, GlobalSecondaryIndexes=[index])
    with pytest.raises(ValidationError, match=r"index GSI2 has the keys GSI1PK, PK, not GSI2PK, GSI2SK"):
        set_up(driven)


def test_another_attribute_for_the_time_to_live_is_told(driven: Driven) -> None:
    create(driven, StreamSpecification=STREAM)
    other = {"AttributeName": "expires", "Enabled": True}
    driven.client.update_time_to_live(TableName=driven.table, TimeToLiveSpecification=other)
    with pytest.raises(ValidationError, match="expire by 'expires' and must expire by 'ttl'"):
        set_up(driven)


def test_another_stream_is_told(driven: Driven) -> None:
    create(driven, StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"})
    with pytest.raises(ValidationError, match="KEYS_ONLY, but usage needs NEW_AND_OLD_IMAGES"):
        set_up(driven)


def test_a_table_that_is_not_there(driven: Driven) -> None:
    with pytest.raises(ValidationError, match=r"does not exist.*headgate aws deploy --name .*setup\(\)"):
        driven.run(DynamoDBTable(driven.deliver).ping_plan())


def test_setup_by_the_store_makes_a_table_that_pings(dynamodb_engine: Engine, driven: Driven) -> None:
    store = open_store(dynamodb_engine.url(driven.table), 5.0)
    try:
        with pytest.raises(ValidationError, match="does not exist"):
            store.ping()
        store.setup()
        store.ping()
    finally:
        store.close()
    check_complete(driven)

"""The proxy that makes DynamoDB fail on demand, with both kinds of client."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from dynamodb_clients import KEY, AsyncClient, SyncClient, adding, create_table, settings, total

from headgate.testing.servers.process import eventually
from local_servers.dynamodb import Engine, Proxy, Request, ServerFailedError

pytestmark = pytest.mark.usefixtures("aws_credentials")

Call = Callable[..., Any]


@pytest.fixture
def proxy(ministack: Engine) -> Iterator[Proxy]:
    with Proxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(params=[SyncClient, AsyncClient], ids=["sync", "async"])
def call(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Call]:
    with closing(request.param(proxy)) as client:
        yield client


@pytest.fixture(params=[SyncClient, AsyncClient], ids=["sync", "async"])
def hasty_call(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Call]:
    with closing(request.param(proxy, read_timeout=2)) as client:
        yield client


@pytest.fixture(scope="module")
def direct(ministack: Engine, aws_credentials: str) -> Iterator[Any]:
    with closing(ministack.client()) as client:
        yield client


@pytest.fixture
def table(direct: Any) -> str:
    return create_table(direct)


class TestPassing:
    def test_every_engine_is_understood(self, dynamodb_engine: Engine) -> None:
        with Proxy(dynamodb_engine.endpoint_url) as proxy:
            for kind in (SyncClient, AsyncClient):
                with closing(kind(proxy)) as call, closing(dynamodb_engine.client()) as direct:
                    table = create_table(direct)
                    for _ in range(3):
                        call("update_item", **adding(table))
                    assert total(direct, table) == 3
                    with pytest.raises(ClientError) as error:
                        call("put_item", TableName=table, Item=KEY, ConditionExpression="attribute_not_exists(PK)")
                    assert error.value.response["Error"]["Code"] == "ConditionalCheckFailedException"

    def test_a_connection_is_used_again(self, call: Call, proxy: Proxy, table: str) -> None:
        for _ in range(5):
            call("update_item", **adding(table))
        assert proxy.connections == 1

    def test_what_passed_is_known(self, call: Call, proxy: Proxy, table: str) -> None:
        call("update_item", **adding(table, 3))
        call("get_item", TableName=table, Key=KEY)
        assert [request.operation for request in proxy.requests] == ["UpdateItem", "GetItem"]
        assert proxy.requests[0].body["ExpressionAttributeValues"] == {":n": {"N": "3"}}
        assert (proxy.count(), proxy.count("GetItem")) == (2, 1)
        assert proxy.consumed == []
        proxy.forget()
        assert (proxy.requests, proxy.count()) == ([], 0)

    def test_what_was_consumed_is_known(self, call: Call, proxy: Proxy, table: str) -> None:
        call("update_item", **adding(table), ReturnConsumedCapacity="TOTAL")
        items = [{"Update": adding(table)}]
        call("transact_write_items", TransactItems=items, ReturnConsumedCapacity="TOTAL")
        assert [(operation, one["TableName"]) for operation, one in proxy.consumed] == [
            ("UpdateItem", table),
            ("TransactWriteItems", table),
        ]
        assert proxy.units() == sum(one["CapacityUnits"] for _, one in proxy.consumed) > 0

    def test_concurrent_requests_all_pass_the_proxy(self, proxy: Proxy, table: str, direct: Any) -> None:
        client = proxy.client(**settings(max_pool_connections=10))
        threads = [threading.Thread(target=client.update_item, kwargs=adding(table)) for _ in range(30)]
        with closing(client):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert total(direct, table) == proxy.count("UpdateItem") == 30


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("ProvisionedThroughputExceededException", 400),
            ("ThrottlingException", 400),
            ("ResourceNotFoundException", 400),
            ("AccessDeniedException", 400),
            ("InternalServerError", 500),
            ("ServiceUnavailable", 503),
        ],
    )
    def test_an_error_on_demand_is_answered_once_and_changes_nothing(
        self, code: str, status: int, call: Call, proxy: Proxy, table: str, direct: Any
    ) -> None:
        proxy.fail(1, code, "as you wish")
        with pytest.raises(ClientError) as error:
            call("update_item", **adding(table))
        assert error.value.response["Error"] == {"Code": code, "Message": "as you wish"}
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert total(direct, table) == 0
        call("update_item", **adding(table))
        assert total(direct, table) == 1

    def test_a_transaction_that_is_cancelled(self, call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        reasons = ["None", "TransactionConflict", {"Code": "ConditionalCheckFailed", "Message": "no", "Item": KEY}]
        proxy.cancel(1, *reasons)
        call("update_item", **adding(table))
        with pytest.raises(ClientError) as error:
            call("transact_write_items", TransactItems=[{"Update": adding(table)}])
        assert error.value.response["Error"]["Code"] == "TransactionCanceledException"
        assert "[None, TransactionConflict, ConditionalCheckFailed]" in error.value.response["Error"]["Message"]
        assert error.value.response["CancellationReasons"][1:] == [{"Code": "TransactionConflict"}, reasons[2]]
        assert total(direct, table) == 1

    def test_any_answer_on_demand_has_a_valid_checksum(self, call: Call, proxy: Proxy, table: str) -> None:
        proxy.answer(1, 200, {"Item": KEY})
        answer = call("get_item", TableName=table, Key=KEY)
        assert answer["Item"] == KEY
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        assert headers["x-amz-crc32"] == str(zlib.crc32(b'{"Item": {"PK": {"S": "a"}}}'))

    def test_in_order_and_by_operation(self, call: Call, proxy: Proxy, table: str) -> None:
        proxy.fail(1, "ThrottlingException", operation="GetItem")
        proxy.fail(2, "InternalServerError")
        proxy.fail(1, "AccessDeniedException")
        met = []
        for name in ("update_item", "get_item", "get_item", "get_item"):
            arguments = adding(table) if name == "update_item" else {"TableName": table, "Key": KEY}
            with pytest.raises(ClientError) as error:
                call(name, **arguments)
            met.append(error.value.response["Error"]["Code"])
        assert met == ["InternalServerError", "ThrottlingException", "InternalServerError", "AccessDeniedException"]
        assert proxy.left == 0

    def test_what_did_not_happen_can_be_forgotten(self, call: Call, proxy: Proxy, table: str) -> None:
        proxy.fail(3, "ThrottlingException")
        assert proxy.left == 3
        proxy.forget()
        assert proxy.left == 0
        call("update_item", **adding(table))


class TestLostReplies:
    def test_it_was_done_and_the_connection_is_cut(self, call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.lose_replies(2)
        for done in (1, 2):
            with pytest.raises(ConnectionClosedError):
                call("update_item", **adding(table))
            assert total(direct, table) == proxy.count() == done
        call("update_item", **adding(table))

    def test_it_was_not_done_and_the_connection_is_cut(self, call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.refuse()
        with pytest.raises(ConnectionClosedError):
            call("update_item", **adding(table))
        assert (total(direct, table), proxy.count()) == (0, 1)
        call("update_item", **adding(table))

    def test_it_was_done_and_nothing_comes(self, hasty_call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.lose_replies(silently=True)
        with pytest.raises(ReadTimeoutError):
            hasty_call("update_item", **adding(table))
        assert total(direct, table) == 1

    def test_it_was_not_done_and_nothing_comes(self, hasty_call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.refuse(silently=True)
        with pytest.raises(ReadTimeoutError):
            hasty_call("update_item", **adding(table))
        assert total(direct, table) == 0

    def test_late_reply_times_out_after_the_engine_has_done_it(
        self, hasty_call: Call, proxy: Proxy, table: str, direct: Any
    ) -> None:
        proxy.delay(30)
        with pytest.raises(ReadTimeoutError):
            hasty_call("update_item", **adding(table))
        assert total(direct, table) == 1
        proxy.delay(0)
        hasty_call("update_item", **adding(table))

    def test_proxy_that_is_down_refuses_connections_until_it_is_up(self, call: Call, proxy: Proxy, table: str) -> None:
        call("update_item", **adding(table))
        proxy.down()
        with pytest.raises(EndpointConnectionError):
            call("update_item", **adding(table))
        proxy.up()
        call("update_item", **adding(table))
        assert proxy.count() == 2

    def test_proxy_without_an_engine_closes_the_connection(self, own_ministack: Engine, table: str) -> None:
        with Proxy(own_ministack.endpoint_url) as proxy, closing(SyncClient(proxy)) as call:
            own_ministack.kill()
            with pytest.raises(ConnectionClosedError):
                call("update_item", **adding(table))


class TestActions:
    def test_another_writer_slips_in(self, call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.before(lambda request: direct.put_item(TableName=table, Item=request.body["Item"]), operation="PutItem")
        with pytest.raises(ClientError, match="ConditionalCheckFailed"):
            call("put_item", TableName=table, Item=KEY, ConditionExpression="attribute_not_exists(PK)")

    def test_another_writer_comes_after(self, call: Call, proxy: Proxy, table: str, direct: Any) -> None:
        proxy.after(lambda request: direct.update_item(**adding(table, 10)))
        answer = call("update_item", **adding(table), ReturnValues="ALL_NEW")
        assert answer["Attributes"]["n"] == {"N": "1"}
        assert total(direct, table) == 11

    def test_one_that_fails_is_not_overlooked(self, ministack: Engine, table: str) -> None:
        def fail(request: Request) -> None:
            raise ZeroDivisionError(request.operation)

        proxy = Proxy(ministack.endpoint_url)
        proxy.before(fail)
        with closing(SyncClient(proxy)) as call, pytest.raises(ConnectionClosedError):
            call("update_item", **adding(table))
        with pytest.raises(ServerFailedError) as error:
            proxy.close()
        assert isinstance(error.value.__cause__, ZeroDivisionError)


class TestEnd:
    def test_closed_proxy_leaves_no_thread_and_cuts_its_connections(self, own_ministack: Engine) -> None:
        def fail_to_list() -> None:
            with pytest.raises(ConnectionClosedError):
                call("list_tables")

        before = threading.active_count()
        with Proxy(own_ministack.endpoint_url) as proxy, closing(SyncClient(proxy)) as call:
            call("list_tables")
            own_ministack.pause()
            waiting = threading.Thread(target=fail_to_list)
            waiting.start()
            eventually(lambda: proxy.count() == 2, "the engine is being waited for")
        waiting.join()
        assert threading.active_count() == before
        with socket.create_server(("127.0.0.1", proxy.port)):
            pass

    def test_it_needs_a_port(self) -> None:
        with pytest.raises(ValueError, match="has no port"):
            Proxy("http://127.0.0.1")

"""No table, no index, no permission, no credentials: a ValidationError that says what to do, at once and every time."""

from __future__ import annotations

import gc
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dynamodb_helpers import START_MS, request
from dynamodb_limiters import (
    FAR_TOO_LONG_SECONDS,
    TEN,
    Scene,
    Table,
    both_kinds,
    limiter_of,
    new_entity,
    scene_on,
    store_of,
    take,
    told,
)

from headgate import Limit, ValidationError
from headgate.core.decide import TAKE
from headgate.stores.dynamodb.namespaces import Known
from headgate.stores.dynamodb.table import TABLE
from local_servers.dynamodb import Engine
from local_servers.dynamodb.listener import Reply

MINUTE = Limit.per_minute("n", 10)  # for a store, which is told the time


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


def refused(kind: str, url: str, *parts: str, on_unavailable: str = "block") -> None:
    """Every call says so, the second one too, and not even `allow` lets it pass."""
    with limiter_of(kind, url, on_unavailable=on_unavailable) as limiter:
        for call in (
            lambda: take(limiter, "e"),
            lambda: take(limiter, "e"),
            lambda: limiter.set_limits("e", [TEN]),
            lambda: limiter.get_buckets("e"),
            lambda: limiter.ping(),
        ):
            started = time.monotonic()
            with pytest.raises(ValidationError) as caught:
                call()
            assert time.monotonic() - started < FAR_TOO_LONG_SECONDS
            assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


@both_kinds
@pytest.mark.parametrize("on_unavailable", ["block", "allow"])
def test_a_missing_table_is_an_error_that_says_how_to_make_it(
    kind: str, on_unavailable: str, ministack: Engine, aws_credentials: str
) -> None:
    url = ministack.url("never-made")
    refused(
        kind,
        url,
        "table 'never-made' in http://127.0.0.1",
        "headgate aws deploy --name never-made",
        "limiter.setup()",
        on_unavailable=on_unavailable,
    )


@both_kinds
def test_a_table_that_is_made_later(kind: str, ministack: Engine, aws_credentials: str) -> None:
    with limiter_of(kind, ministack.url(f"later-{kind}")) as limiter:
        with pytest.raises(ValidationError):
            take(limiter, "e")
        limiter.setup()
        assert take(limiter, "e")


@both_kinds
def test_a_table_that_is_deleted(kind: str, ministack: Engine, aws_credentials: str) -> None:
    """Statements have an error of their own for it."""
    name = f"deleted-{kind}"
    with store_of(kind, ministack.url(name)) as store, limiter_of(kind, ministack.url(name)) as limiter:
        limiter.setup()
        batch = [request(MINUTE, 1, TAKE, f"default/e{number}#r") for number in range(8)]
        store.settle(batch, START_MS)
        store.settle(batch, START_MS)
        client = ministack.client()
        client.delete_table(TableName=name)
        client.close()
        for some in (batch, batch[:1]):
            with pytest.raises(ValidationError, match=f"table '{name}'.*headgate aws deploy"):
                store.settle(some, START_MS)


@both_kinds
def test_a_missing_index_fails_what_needs_it_and_no_acquire(kind: str, ministack: Engine, aws_credentials: str) -> None:
    """An acquire needs none."""
    name = f"without-{kind}"
    client = ministack.client()
    indexes = [index for index in TABLE["GlobalSecondaryIndexes"] if index["IndexName"] != "GSI3"]
    used = {part["AttributeName"] for schema in [TABLE, *indexes] for part in schema["KeySchema"]}
    attributes = [one for one in TABLE["AttributeDefinitions"] if one["AttributeName"] in used]
    client.create_table(
        TableName=name, **{**TABLE, "GlobalSecondaryIndexes": indexes, "AttributeDefinitions": attributes}
    )
    client.close()
    with limiter_of(kind, ministack.url(name)) as limiter:
        assert take(limiter, "e")
        for _ in range(2):
            with pytest.raises(ValidationError) as caught:
                limiter.get_buckets("e")
            for part in (f"table '{name}'", "GSI3", f"headgate aws update --name {name}", "limiter.setup()"):
                assert part in str(caught.value)
        limiter.setup()
        assert [bucket.available for bucket in limiter.get_buckets("e")] == [9]


@both_kinds
@pytest.mark.parametrize(
    "code",
    ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException"],
)
def test_a_missing_permission_is_an_error_that_names_the_template(kind: str, code: str, scene: Scene) -> None:
    scene.proxy.fail(100_000, code, "not for you")
    refused(kind, scene.url, f"table {scene.table.name!r}", "not for you", "headgate aws template")


@both_kinds
def test_no_permission_for_one_operation(kind: str, scene: Scene) -> None:
    entity = new_entity()
    with limiter_of(kind, scene.url) as limiter:
        assert take(limiter, entity)
        scene.proxy.fail(100_000, "AccessDeniedException", "no dynamodb:UpdateItem", operation="UpdateItem")
        for call in (lambda: take(limiter, entity), lambda: limiter.adjust(entity, "r", {"n": -1}, [TEN])):
            with pytest.raises(ValidationError, match=r"no dynamodb:UpdateItem.*headgate aws template"):
                call()
        assert limiter.available(entity, "r", [TEN]) == {"n": 9}


DENIED = {"Error": {"Code": "AccessDenied", "Message": "no dynamodb:PartiQLUpdate"}}


@both_kinds
@pytest.mark.parametrize("of", ["the request", "each statement"])
def test_without_statements_it_does_without(kind: str, of: str, scene: Scene) -> None:
    """As for the one namespace of a policy: what many callers want is then one request each."""
    batch = [request(MINUTE, 1, TAKE, f"default/{new_entity()}#r") for _ in range(8)]
    with store_of(kind, scene.url) as store:
        store.settle(batch, START_MS)
        scene.proxy.forget()
        if of == "the request":
            scene.proxy.fail(100, "AccessDeniedException", operation="BatchExecuteStatement")
        else:
            scene.proxy.answer(100, 200, {"Responses": [DENIED] * 8}, operation="BatchExecuteStatement")
        for tokens in (8000, 7000):
            assert [answer.levels for answer in store.settle(batch, START_MS)] == [[(tokens, 0)]] * 8
        assert scene.proxy.count("BatchExecuteStatement") == 1
        assert scene.proxy.count("UpdateItem") == 16


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, aws_credentials: str, tmp_path: Path) -> Path:
    """No credentials, and a configuration of one's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@both_kinds
class TestConfiguration:
    URL = "dynamodb://rates?endpoint_url=http://127.0.0.1:1"

    def test_missing_credentials_are_an_error_that_names_the_profile(self, kind: str, bare: Path) -> None:
        refused(kind, f"{self.URL}&region=eu-west-1", "table 'rates'", "credentials", "profile=")

    def test_a_missing_region_is_an_error(self, kind: str, bare: Path) -> None:
        refused(kind, "dynamodb://rates", "table 'rates'", "region")

    def test_a_region_that_is_none(self, kind: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "no region!")
        refused(kind, "dynamodb://rates", "table 'rates'", "no region!")

    def test_an_unknown_profile_is_an_error_that_names_it(self, kind: str, bare: Path) -> None:
        refused(kind, f"{self.URL}&region=eu-west-1&profile=nobody", "table 'rates'", "nobody", "profile")

    def test_incomplete_credentials_are_an_error(self, kind: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
        refused(kind, f"{self.URL}&region=eu-west-1", "table 'rates'", "redential")

    def test_a_configuration_that_cannot_be_read(self, kind: str, bare: Path) -> None:
        (bare / "config").write_text("[profile\nx")
        refused(kind, f"{self.URL}&region=eu-west-1&profile=x", "table 'rates'")

    def test_one_that_is_put_right(self, kind: str, bare: Path, ministack: Engine) -> None:
        """Without another limiter."""
        with limiter_of(kind, f"{ministack.url(f'right-{kind}')}&profile=me") as limiter:
            for _ in range(2):
                with pytest.raises(ValidationError, match="me"):
                    limiter.setup()
            (bare / "credentials").write_text("[me]\naws_access_key_id = 1\naws_secret_access_key = 2\n")
            limiter.setup()
            assert take(limiter, "e")

    def test_nothing_is_left_behind(self, kind: str, bare: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A cascade asks for several items side by side: each of them fails, and all are heard."""
        with store_of(kind, f"{self.URL}&region=eu-west-1") as store, pytest.raises(ValidationError):
            plans = (store if kind == "sync" else store.store)._plans
            plans.namespaces._known["n"] = Known("id", time.monotonic() + 60, 0)
            store.settle([request(MINUTE, 1, TAKE, "n/a#r", "n/b#r")], START_MS)
        gc.collect()
        assert caplog.text == ""


@both_kinds
class TestParts:
    """DynamoDB answers a part of what it was asked for, and names the rest."""

    def unprocessed(self, scene: Scene, times: int) -> None:
        really = scene.proxy._listener.handle
        left = [times]

        def handle(sent: Any, pass_on: Any) -> Any:
            reply = really(sent, pass_on)
            if sent.operation != "BatchGetItem" or not left[0]:
                return reply
            left[0] -= 1
            return _kept_back(reply, sent.body["RequestItems"])

        scene.proxy._listener.handle = handle

    def test_the_rest_is_asked_for_again(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        scene.direct.set_limits(entity, [TEN])
        with limiter_of(kind, scene.url) as limiter:
            self.unprocessed(scene, 4)
            assert limiter.try_acquire(entity, "r", {"n": 1}).statuses[0].available == 9
            assert scene.proxy.count("BatchGetItem") >= 5

    def test_parts_never_processed_are_unavailable_at_the_deadline(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url, store_timeout=0.2) as limiter:
            self.unprocessed(scene, 100_000)
            started = time.monotonic()
            told(lambda: take(limiter, entity))
            assert time.monotonic() - started < FAR_TOO_LONG_SECONDS
        assert scene.left(entity) == 10


def _kept_back(reply: Reply, asked: dict[str, Any]) -> Reply:
    """The same reply without its last item, which is named as one that was not read."""
    body = json.loads(reply.body)
    ((table, wanted),) = asked.items()
    found = body["Responses"].get(table, [])
    keys = [wanted["Keys"][-1]]
    body["Responses"][table] = [item for item in found if {name: item[name] for name in ("PK", "SK")} not in keys]
    body["UnprocessedKeys"] = {table: {**wanted, "Keys": keys}}
    encoded = json.dumps(body).encode()
    return Reply(reply.status, {**reply.headers, "x-amz-crc32": str(zlib.crc32(encoded))}, encoded)

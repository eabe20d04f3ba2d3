"""The table's stream, read with boto3: its shards, their records, and checkpoints of how far each shard was read.

A lost checkpoint only costs time: records that are read twice are counted once (usage_items.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...plan import Plan
from ...stores.dynamodb import keys
from ...stores.dynamodb.deliver import THROTTLED, Deliverer
from ...stores.dynamodb.exchange import Failed, Send
from ...stores.dynamodb.items import attribute, item_of
from ...stores.dynamodb.url import DynamoDBSettings
from .log import log
from .transport import TIMEOUT_SECONDS, client

END = "end"  # instead of a sequence number: the shard is closed and read
_PK = keys.pk_record(keys.REGISTRY)
_KEPT_SECONDS = 8 * 86400  # a shard is deleted after a day


def is_checkpoint(record: Any) -> bool:
    """Whether a record is about a checkpoint: a checkpoint for reading it would create another record."""
    found = record.get("dynamodb", {}).get("Keys", {}) if isinstance(record, Mapping) else {}
    return bool(found.get("PK") == {"S": _PK} and found.get("SK", {}).get("S", "").startswith(_sk("")))


def load_plan(deliverer: Deliverer, label: str) -> Plan[dict[str, str]]:
    """Sequence number, or END, by shard."""
    parameters: dict[str, Any] = {
        "TableName": deliverer.table,
        "KeyConditionExpression": "PK = :pk AND begins_with(SK, :sk)",
        "ExpressionAttributeValues": {":pk": attribute(_PK), ":sk": attribute(_sk(label + "/"))},
        "ConsistentRead": True,
    }
    found: dict[str, str] = {}
    while True:
        reply = yield from deliverer.one_plan(Send("Query", parameters, repeatable=True))
        assert not isinstance(reply, Failed)  # a query has no condition
        for item in reply["Items"]:
            found[item["SK"]["S"].rpartition("/")[2]] = item["position"]["S"]
        if "LastEvaluatedKey" not in reply:
            return found
        parameters["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


def save_plan(deliverer: Deliverer, label: str, positions: Mapping[str, str]) -> Plan[None]:
    now = int(time.time())
    yield from deliverer.all_plan(
        [
            Send(
                "PutItem",
                {
                    "TableName": deliverer.table,
                    "Item": item_of(
                        {
                            "PK": _PK,
                            "SK": _sk(f"{label}/{shard}"),
                            "position": position,
                            "updated_at_ms": now * 1000,
                            "ttl": now + _KEPT_SECONDS,
                            "GSI4PK": keys.REGISTRY,
                            "GSI4SK": _PK,
                        }
                    ),
                },
                repeatable=True,
            )
            for shard, position in positions.items()
        ]
    )


def _sk(rest: str) -> str:
    return keys.sk_record(f"aggregator/{rest}")


_IMAGES = "NEW_AND_OLD_IMAGES"
_RECORDS_AT_ONCE = 1000
_ATTEMPTS = 3
_EXPIRED = {"ExpiredIterator"}
_TRIMMED = {"TrimmedDataAccess"}
_GONE = {"ResourceNotFound"}
_PASSES = THROTTLED | {"InternalServerError", "InternalFailure", "ServiceUnavailable"}


class ShardReadError(Exception):
    """The error code of DynamoDB Streams for an iterator or a shard."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Shard:
    """`position`: the sequence number up to which everything is counted, or END. `idle`: reads without a record.

    `closed`: it gets no more records.
    """

    id: str
    parent: str | None = None
    position: str | None = None
    closed: bool = False
    idle: int = 0
    unsaved: bool = False
    iterator: str | None = None
    following: str | None = None

    @property
    def ended(self) -> bool:
        return self.position == END

    def advance(self, sequence: str | None) -> None:
        """The records that were read are processed; `sequence` is the last of them."""
        self.iterator = self.following
        self.position = END if self.following is None else sequence or self.position

    def rewind(self) -> None:
        """The records that were read must be read again."""
        self.iterator = None


def newest_stream_plan(deliverer: Deliverer) -> Plan[str]:
    """The ARN of the table's stream."""
    result = yield from deliverer.one_plan(Send("DescribeTable", {"TableName": deliverer.table}, repeatable=True))
    assert not isinstance(result, Failed)
    table = result["Table"]
    needs = f"table {deliverer.table!r} in {deliverer.settings.where} needs a stream of {_IMAGES}"
    view = table.get("StreamSpecification", {}).get("StreamViewType", _IMAGES)
    if view != _IMAGES:
        raise ValidationError(f"{needs}, but has one of {view}: disable it, then call limiter.setup()")
    arn = table.get("LatestStreamArn")
    if not arn:
        raise ValidationError(f"{needs}, but has none: call limiter.setup(), or run `headgate aws update`")
    return str(arn)


class TableStream:
    """A stream, by its ARN."""

    def __init__(self, settings: DynamoDBSettings) -> None:
        self._settings = settings
        self._client = client(settings, "dynamodbstreams")
        self.arn = ""
        self.enabled = True
        self.now = 0  # the stream's time when it was last described

    @property
    def label(self) -> str:
        return self.arn.rpartition("/")[2]

    def shards(self) -> list[Shard]:
        """All shards, without positions."""
        found: list[Shard] = []
        more: dict[str, str] = {}
        while True:
            reply = self._ask(self._client.describe_stream, StreamArn=self.arn, **more)
            described = reply["StreamDescription"]
            for shard in described["Shards"]:
                closed = "EndingSequenceNumber" in shard.get("SequenceNumberRange", {})
                found.append(Shard(shard["ShardId"], shard.get("ParentShardId"), closed=closed))
            if "LastEvaluatedShardId" not in described:
                break
            more = {"ExclusiveStartShardId": described["LastEvaluatedShardId"]}
        self.enabled = described["StreamStatus"] != "DISABLED"
        date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
        self.now = int(parsedate_to_datetime(date).timestamp()) if date else 0
        return found

    def read(self, shard: Shard) -> Sequence[Any]:
        """The next records. Call `advance` or `rewind` of the shard afterwards."""
        for _ in range(_ATTEMPTS):
            try:
                shard.iterator = shard.iterator or self._iterator(shard)
                reply = self._ask(self._client.get_records, ShardIterator=shard.iterator, Limit=_RECORDS_AT_ONCE)
            except ShardReadError as refused:
                shard.iterator = None
                if refused.code in _GONE:
                    shard.following = None
                    return ()
                if refused.code in _TRIMMED and shard.position is not None:
                    log(logging.ERROR, "records lost: read too late", shard=shard.id, after=shard.position)
                    shard.position = None
                continue
            shard.following = reply.get("NextShardIterator")
            found: Sequence[Any] = reply["Records"]
            return found
        raise RateLimiterUnavailable(
            f"the iterators of shard {shard.id!r} of the stream expire before they can be used"
        )

    def _iterator(self, shard: Shard) -> str:
        where = (
            {"ShardIteratorType": "TRIM_HORIZON"}
            if shard.position is None
            else {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": shard.position}
        )
        reply = self._ask(self._client.get_shard_iterator, StreamArn=self.arn, ShardId=shard.id, **where)
        iterator: str = reply["ShardIterator"]
        return iterator

    def _ask(self, operation: Callable[..., Any], **parameters: Any) -> Any:
        from ...stores.dynamodb import driver

        try:
            return operation(**parameters)
        except driver.ErrorReply as error:
            failed = driver.failed(error)
            of_a_shard = not parameters.keys().isdisjoint(("ShardId", "ShardIterator"))
            if of_a_shard and failed.code in _EXPIRED | _TRIMMED | _GONE:
                raise ShardReadError(failed.code) from None
            if failed.code in _PASSES:
                raise RateLimiterUnavailable(f"DynamoDB Streams: {failed.code}: {failed.message}") from error
            table = f"the stream of table {self._settings.table!r} in {self._settings.where}"
            raise ValidationError(f"{table} cannot be read: {failed.code}: {failed.message}") from error
        except driver.ERRORS as error:
            lost = driver.lost(error, TIMEOUT_SECONDS)
            raise RateLimiterUnavailable(f"DynamoDB Streams {lost.why}") from error

    def close(self) -> None:
        self._client.close()

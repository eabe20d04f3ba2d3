"""Writing buckets as the store does, reading usage back, and records of a stream made by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from headgate.aws.aggregator import Counts, Follower, Host
from headgate.aws.aggregator.stream import TableStream, newest_stream_plan
from headgate.stores.dynamodb import keys
from headgate.stores.dynamodb.items import attribute, values_of
from local_servers.dynamodb import Engine, Proxy

ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/rates/stream/2024-01-01T00:00:00.000"
NOON = 1_717_243_200  # 2024-06-01T12:00:00Z, a month's first day


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())


def bucket_image(consumed: Mapping[str, int], *, shards: int = 1, writes: int = 1, at_ms: int = 0) -> dict[str, Any]:
    image = {"shard_count": attribute(shards), "wcu": attribute(writes), "at": attribute(at_ms)}
    for limit, milli in consumed.items():
        image |= {f"b_{limit}_tc": attribute(milli), f"b_{limit}_lm": attribute("1000/1000/1000")}
        image[f"b_{limit}_vt"] = attribute(7)
    return image


def bucket_record(
    sequence: int | str,
    new: Mapping[str, Any] | None,
    old: Mapping[str, Any] | None = None,
    *,
    at: float | datetime = NOON,
    ns: str = "ns",
    entity: str = "alice",
    resource: str = "api",
    shard: int = 0,
) -> dict[str, Any]:
    """As a Lambda gets it."""
    pk = keys.pk_bucket(ns, entity, resource, shard)
    body = {
        "ApproximateCreationDateTime": at,
        "Keys": {"PK": attribute(pk), "SK": attribute(keys.STATE)},
        "SequenceNumber": str(sequence),
        "SizeBytes": 600,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    if new is not None:
        body["NewImage"] = {**new, **body["Keys"]}
    if old is not None:
        body["OldImage"] = {**old, **body["Keys"]}
    name = "REMOVE" if new is None else "INSERT" if old is None else "MODIFY"
    return {"eventName": name, "eventSourceARN": ARN, "dynamodb": body}


def expiry_record(sequence: int, entity: str, happened: str, *, ns: str = "ns", **values: str) -> dict[str, Any]:
    """Of an audit event that DynamoDB has deleted because its time was over."""
    item = {"PK": keys.pk_audit(ns, entity), "SK": keys.sk_audit(happened), **values}
    image = {name: attribute(value) for name, value in item.items()}
    return {
        "eventName": "REMOVE",
        "eventSourceARN": ARN,
        "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "ApproximateCreationDateTime": NOON,
            "Keys": {"PK": image["PK"], "SK": image["SK"]},
            "OldImage": image,
            "SequenceNumber": str(sequence),
        },
    }


@dataclass
class Bucket:
    """An item of buckets in somebody's table, and what was consumed of it."""

    play: Play
    entity: str = "alice"
    resource: str = "api"
    shard: int = 0
    ns: str = "ns"
    shards: int = 1
    consumed: Counter[str] = field(default_factory=Counter)
    writes: int = 0

    def consume(self, **milli: int) -> None:
        """One write, for all of these limits at once; a negative amount gives back."""
        names = {f"#{n}": f"b_{limit}_tc" for n, limit in enumerate(milli)}
        adds = ", ".join(f"#{n} :{n}" for n in range(len(milli)))
        values = {f":{n}": attribute(amount) for n, amount in enumerate(milli.values())}
        self.play.client.update_item(
            TableName=self.play.table,
            Key=self.key,
            UpdateExpression=f"SET #at = :at, shard_count = if_not_exists(shard_count, :sc) ADD wcu :one, {adds}",
            ExpressionAttributeNames={"#at": "at", **names},
            ExpressionAttributeValues={
                ":at": attribute(time.time_ns() // 1_000_000),
                ":one": attribute(1),
                ":sc": attribute(self.shards),
                **values,
            },
        )
        for limit, amount in milli.items():
            self.consumed[limit] += amount
        self.writes += 1

    def reset(self) -> None:
        self.play.client.delete_item(TableName=self.play.table, Key=self.key)

    @property
    def key(self) -> dict[str, Any]:
        pk = keys.pk_bucket(self.ns, self.entity, self.resource, self.shard)
        return {"PK": attribute(pk), "SK": attribute(keys.STATE)}


class Play:
    """A table, a host for it, and a host that meets what the proxy does."""

    def __init__(self, client: Any, table: str, engine: Engine, proxy: Proxy) -> None:
        self.client = client
        self.table = table
        self.engine = engine
        self.proxy = proxy
        self.url = engine.url(table)
        self.host = Host(self.url)
        self.troubled = Host(proxy.url(table))

    def __enter__(self) -> Play:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.host.close()
        self.troubled.close()

    def bucket(self, entity: str = "alice", **settings: Any) -> Bucket:
        return Bucket(self, entity, **settings)

    @contextmanager
    def follower(self, host: Host | None = None, **settings: Any) -> Iterator[Follower]:
        host = host or self.host
        stream = TableStream(host.settings)
        try:
            yield Follower(host.aggregator, stream, host.deliverer, host.perform, **settings)
        finally:
            stream.close()

    def follow_once(self, host: Host | None = None) -> Counts:
        with self.follower(host) as follower:
            return follower.run(once=True)

    def records(self) -> list[Any]:
        """All of the stream, as GetRecords gives them, with the stream's name as a Lambda gets it."""
        stream = TableStream(self.host.settings)
        try:
            stream.arn = self.host.run(newest_stream_plan(self.host.deliverer))
            found: list[Any] = []
            for shard in stream.shards():
                while page := stream.read(shard):
                    found += page
                    shard.advance(None)
            return [{**record, "eventSourceARN": stream.arn} for record in found]
        finally:
            stream.close()

    def usage_items(self, ns: str = "ns", entity: str = "alice") -> list[dict[str, Any]]:
        reply = self.client.query(
            TableName=self.table,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
            ExpressionAttributeValues={":pk": attribute(keys.pk_entity(ns, entity)), ":sk": attribute("#USAGE#")},
            ConsistentRead=True,
        )
        return [values_of(item) for item in reply["Items"]]

    def used(self, window: str, ns: str = "ns", entity: str = "alice", resource: str = "api") -> Counter[str]:
        """Millitokens by limit, and `events`, over all windows of that length."""
        found: Counter[str] = Counter()
        for item in self.usage_items(ns, entity):
            if item["window"] == window and item["resource"] == resource:
                found["events"] += item["total_events"]
                found.update({name[2:]: value for name, value in item.items() if name.startswith("u_")})
        return found


def total(buckets: Iterable[Bucket]) -> Counter[str]:
    """What usage has to say of all of them together."""
    found: Counter[str] = Counter()
    for bucket in buckets:
        found.update(bucket.consumed)
        found["events"] += bucket.writes
    return found

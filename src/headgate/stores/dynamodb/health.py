"""The table as DynamoDB describes it: whether it is complete and can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from ...core.errors import ValidationError
from ...plan import Plan
from ..health import ClockReading, Finding
from .blocking import DynamoDBStore
from .deliver import Deliverer
from .items import key_of
from .table import INDEXES, SCHEMA, STREAM, TTL, VERSION_KEY, Versions
from .url import DynamoDBSettings, read_url

T = TypeVar("T")


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    settings = read_url(url)
    try:
        return _run(settings, timeout_seconds, _examine_plan(Deliverer(settings)))
    except ValidationError as error:
        # An application needs no permission to describe the table. What it does need is tested elsewhere.
        return [
            Finding(
                "table", "warn", f"the table cannot be described: {error}", "try again with the permissions of a reader"
            )
        ]


def read_clock(url: str, timeout_seconds: float) -> ClockReading:
    settings = read_url(url)
    return _run(settings, timeout_seconds, _clock_plan(Deliverer(settings)))


def _run(settings: DynamoDBSettings, timeout_seconds: float, plan: Plan[T]) -> T:
    with closing(DynamoDBStore(settings, timeout_seconds)) as store:
        return store._run(plan)


def _examine_plan(deliver: Deliverer) -> Plan[list[Finding]]:
    described = yield from deliver.read_plan("DescribeTable")
    expiry = yield from deliver.read_plan("DescribeTimeToLive")
    version = yield from Versions(deliver).check_plan()
    layout = f"layout {version.schema if version else SCHEMA}"
    return list(_findings(deliver, described["Table"], expiry["TimeToLiveDescription"], layout))


def _findings(
    deliver: Deliverer, table: Mapping[str, Any], expiry: Mapping[str, Any], layout: str
) -> Iterator[Finding]:
    name, repair = deliver.table, f"run `headgate aws update --name {deliver.table}`, or call limiter.setup()"
    status = table["TableStatus"]
    found = f"{name} in {deliver.settings.where}: {status}, {layout}, about {table.get('ItemCount', 0):,} items"
    yield Finding("table", "ok", found) if status == "ACTIVE" else Finding("table", "warn", found, "wait a moment")
    indexes = {index["IndexName"] for index in table.get("GlobalSecondaryIndexes") or ()}
    missing = [index for index in INDEXES if index not in indexes]
    if missing:
        yield Finding("indexes", "fail", f"missing: {', '.join(missing)}", repair)
    else:
        yield Finding("indexes", "ok", f"all {len(INDEXES)} are there")
    expires = expiry.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    by_ours = expiry.get("AttributeName") == TTL["AttributeName"]
    yield _switch("expiry", expires and by_ours, f"expired items are never removed: {repair}")
    stream = table.get("StreamSpecification", {})
    streams = stream.get("StreamEnabled") and stream.get("StreamViewType") == STREAM["StreamViewType"]
    yield _switch("stream", bool(streams), f"the functions of a stack get no records: {repair}")


def _switch(check: str, on: bool, advice: str) -> Finding:
    return Finding(check, "ok", "on") if on else Finding(check, "warn", "off", advice)


def _clock_plan(deliver: Deliverer) -> Plan[ClockReading]:
    """DynamoDB's time when it answered, in whole seconds."""
    key = key_of(VERSION_KEY)  # every policy allows reading it
    yield from deliver.read_plan("GetItem", Key=key)  # the first call also connects, which takes longer
    reply = yield from deliver.read_plan("GetItem", Key=key)
    date = reply["ResponseMetadata"]["HTTPHeaders"]["date"]
    now_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
    return ClockReading(now_ms, now_ms, grain_ms=1000)

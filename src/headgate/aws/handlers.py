"""The functions that AWS Lambda calls. Their environment says what to work on:

HEADGATE_URL                    dynamodb://table?region=...
HEADGATE_ARCHIVE_BUCKET         the bucket for audit events that expire; without it they are not kept
HEADGATE_USAGE_RETENTION_DAYS   how long usage by the hour is kept, by the limiters as well: 90
HEADGATE_MAX_SHARDS             the most items that a hot bucket is split over
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ..core.errors import HeadgateError, ValidationError
from ..limiter import SyncRateLimiter
from ..stores.dynamodb.namespaces import ACTIVE, Namespaces
from .aggregator.host import Host
from .aggregator.log import log, log_to_stdout
from .aggregator.windows import DEFAULT_RETENTION_DAYS

_RETENTION = "HEADGATE_USAGE_RETENTION_DAYS"
_MARGIN_MS = 3000  # work that has not begun by then is left to the next call

_hosts: dict[tuple[str | None, ...], Host] = {}


def aggregate(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Count a batch of stream records. The result says from which record on Lambda must deliver again."""
    records = event.get("Records")
    if not isinstance(records, list):
        raise ValidationError("the event has no Records: this function is for the stream of a DynamoDB table")
    outcome = _host().aggregator.process(records, has_time=lambda: _remaining_ms(context) > _MARGIN_MS)
    log(logging.INFO, "aggregated", **outcome.counts.as_dict(), failed=outcome.failed)
    return {"batchItemFailures": [{"itemIdentifier": outcome.failed}] if outcome.failed else []}


def reconcile(event: Any, context: Any) -> dict[str, Any]:
    """Free what crashed holders have kept, in every namespace of the table."""
    host, counts, failed = _host(), {}, 0
    days = _number(_RETENTION, os.environ.get(_RETENTION) or None) or DEFAULT_RETENTION_DAYS
    registered = host.run(Namespaces(host.deliverer).all_plan())
    for namespace in (each.name for each in registered if each.status == ACTIVE):
        try:
            with SyncRateLimiter(_environment("HEADGATE_URL"), namespace=namespace, usage_days=days) as limiter:
                counts[namespace] = limiter.reconcile().as_dict()
        except HeadgateError as error:
            failed += 1
            log(logging.ERROR, "not reconciled", namespace=namespace, why=str(error))
    log(logging.INFO, "reconciled", namespaces=counts, failed=failed)
    if failed:
        raise HeadgateError(f"{failed} of {failed + len(counts)} namespaces could not be reconciled: see the log")
    return {"namespaces": counts}


def close() -> None:
    """Close the connections that are kept between calls."""
    while _hosts:
        _hosts.popitem()[1].close()


def _host() -> Host:
    names = ("HEADGATE_URL", "HEADGATE_ARCHIVE_BUCKET", _RETENTION, "HEADGATE_MAX_SHARDS")
    found = tuple(os.environ.get(name) or None for name in names)
    if found not in _hosts:
        if os.environ.get("AWS_LAMBDA_FUNCTION_NAME"):
            log_to_stdout()
        _, bucket, days, shards = found
        _hosts[found] = Host(
            _environment("HEADGATE_URL"),
            archive_bucket=bucket,
            retention_days=_number(_RETENTION, days) or DEFAULT_RETENTION_DAYS,
            max_shards=_number("HEADGATE_MAX_SHARDS", shards),
        )
    return _hosts[found]


def _environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValidationError(f"{name} is not set: the function's environment needs it")
    return value


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise ValidationError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _remaining_ms(context: Any) -> int:
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    return remaining() if remaining else 2**31

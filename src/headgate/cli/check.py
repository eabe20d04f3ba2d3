"""`headgate check`: one decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import click

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..core.status import LimitStatus
from ..limiter import SyncRateLimiter
from .command import CliCommand
from .errors import ALLOWED, REFUSED
from .options import CommandSession, work_options
from .output import TextTable, answer, answer_json, duration, number, resets
from .values import read_amounts, read_limits

Amounts = Mapping[str, "int | Decimal"]


@click.command(
    cls=CliCommand,
    short_help="Make one decision, and take the tokens if it is allowed.",
    examples=[
        "headgate check me api --consume rpm=1 --limit rpm=5/minute",
        "headgate check acme llm --consume rpm=1 --consume tpm=500",
        "headgate check acme llm --dry-run",
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@click.option("--consume", metavar="NAME=AMOUNT", multiple=True, help="How much to take from a limit. Repeatable.")
@click.option(
    "--limit",
    metavar="NAME=SPEC",
    multiple=True,
    help="Use this limit, like 'rpm=100/minute burst 150', instead of the stored ones. Repeatable.",
)
@click.option("--dry-run", "preview", is_flag=True, help="Take nothing.")
@work_options
def check(
    session: CommandSession, entity_id: str, resource: str, consume: Sequence[str], limit: Sequence[str], preview: bool
) -> int:
    """Decide whether ENTITY may use RESOURCE now, and take the tokens if it may.

    All or nothing: if one limit refuses, nothing is taken from any. The exit code is 0 if allowed and 1 if refused, for
    shell scripts. With --dry-run nothing is taken; leave out --consume to see what is available. Slots of a concurrent
    limit are released at once.
    """
    if not consume and not preview:
        raise click.UsageError("specify what to take, like --consume rpm=1, or use --dry-run")
    amounts = read_amounts(consume)
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limits = read_limits(limit) or _stored_limits(limiter, entity_id, resource)
        override = limits if limit else None
        result = (
            _look(limiter, entity_id, resource, amounts, override, limits)
            if preview
            else _take(limiter, entity_id, resource, amounts, override)
        )
    result = {"entity_id": entity_id, "resource": resource, "dry_run": preview} | result
    _tell(session, result)
    return ALLOWED if result["allowed"] else REFUSED


def _stored_limits(limiter: SyncRateLimiter, entity_id: str, resource: str) -> list[Limit]:
    limits, source = limiter.resolve_limits(entity_id, resource)
    if source is None:
        raise ValidationError(
            f"no limits are stored for {entity_id!r} on {resource!r}: use --limit rpm=100/minute, "
            f"or store a limit with 'headgate limits set {entity_id} rpm=100/minute'"
        )
    return limits


def _take(
    limiter: SyncRateLimiter, entity_id: str, resource: str, amounts: Amounts, override: list[Limit] | None
) -> dict[str, Any]:
    decision = limiter.try_acquire(entity_id, resource, amounts, override)
    if decision.lease is not None:
        decision.lease.commit()
    return {
        "allowed": decision.allowed,
        "degraded": decision.degraded,
        "retry_after_seconds": decision.retry_after_seconds,
        "statuses": decision.statuses,
    }


def _look(
    limiter: SyncRateLimiter,
    entity_id: str,
    resource: str,
    amounts: Amounts,
    override: list[Limit] | None,
    limits: list[Limit],
) -> dict[str, Any]:
    available = limiter.available(entity_id, resource, override)
    wait = limiter.time_until_available(entity_id, resource, amounts, override) if amounts else 0.0
    resets_at = _resets_at_ms(limiter, entity_id, resource, limits)
    statuses = []
    for limit in limits:
        amount = amounts.get(limit.name)
        if amounts and amount is None:
            continue
        needed = {limit.name: amount} if amount is not None else None
        own_wait = limiter.time_until_available(entity_id, resource, needed, override) if needed else 0.0
        statuses.append(
            LimitStatus(
                entity_id=entity_id,
                resource=resource,
                limit_name=limit.name,
                limit=limit,
                available=available[limit.name],
                requested=_plain(amount or 0),
                exceeded=own_wait != 0,
                retry_after_ms=None if own_wait is None else round(own_wait * 1000),
                resets_at_ms=resets_at.get(limit.name),
            )
        )
    return {"allowed": wait == 0, "degraded": False, "retry_after_seconds": wait, "statuses": statuses}


def _resets_at_ms(
    limiter: SyncRateLimiter, entity_id: str, resource: str, limits: list[Limit]
) -> dict[str, int | None]:
    """When quotas are full again. A window from first use is that of its bucket."""
    now_ms = limiter.clock.now_ms()
    found = {limit.name: limit.calendar.window(now_ms).ends_ms for limit in limits if limit.calendar is not None}
    in_use = limiter.get_buckets(entity_id, resource) if any(limit.is_quota for limit in limits) else []
    return {bucket.limit.name: bucket.resets_at_ms for bucket in in_use} | found


def _plain(amount: int | Decimal) -> int | float:
    return amount if isinstance(amount, int) else float(amount)


def _tell(session: CommandSession, result: dict[str, Any]) -> None:
    statuses: list[LimitStatus] = result.pop("statuses")
    if session.as_json:
        answer_json(result | {"limits": [status.as_dict() for status in statuses]})
        return
    answer(_verdict(result))
    if statuses:
        answer(_table(statuses))


def _verdict(result: dict[str, Any]) -> str:
    who = f"{result['entity_id']} on {result['resource']}"
    note = " (dry run: nothing was taken)" if result["dry_run"] else ""
    if result["degraded"]:
        verdict = "allowed" if result["allowed"] else "refused"
        return f"{verdict}: {who}, decided in this process alone, because the store did not answer"
    if result["allowed"]:
        return f"allowed: {who}{note}"
    wait = result["retry_after_seconds"]
    when = "never: this is more than the capacity" if wait is None else f"retry after {duration(wait)}"
    return f"refused: {who}, {when}{note}"


def _table(statuses: list[LimitStatus]) -> TextTable:
    now_ms = time.time_ns() // 1_000_000
    several = len({status.entity_id for status in statuses}) > 1
    return TextTable(
        ["entity", "limit", "allows", "answer", ">requested", ">available", ">capacity", ">retry after", "resets"],
        [
            [
                status.entity_id if several else "",
                status.limit_name,
                status.limit.spelled,
                "refused" if status.exceeded else "allowed",
                number(status.requested) if status.requested else "",
                number(status.available),
                number(status.limit.capacity),
                duration(status.retry_after_seconds),
                resets(status.limit, status.resets_at_ms, now_ms),
            ]
            for status in statuses
        ],
    )

"""The four levels at which limits are stored: what the commands `limits`, `resource` and `system` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ..core.limit import Limit
from ..limiter import SyncRateLimiter
from .options import Session
from .output import Table, answer, answer_json, limit_dict, number, spelled
from .values import read_limits

specs_argument = click.argument("specs", metavar="NAME=SPEC...", nargs=-1)
expected_option = click.option(
    "--expected-version",
    metavar="N",
    type=click.IntRange(0),
    help="Only if nobody has changed them since: the version that `get --json` shows, 0 if there were none.",
)


@dataclass(frozen=True, slots=True)
class Level:
    """No entity: everyone. No resource: all of them. Neither: the system's defaults."""

    entity_id: str | None = None
    resource: str | None = None

    @property
    def source(self) -> str:
        """What resolve_limits() calls this level."""
        if self.entity_id is not None:
            return "entity_default" if self.resource is None else "entity"
        return "system" if self.resource is None else "resource"

    def __str__(self) -> str:
        return f"{self.entity_id or 'everyone'} on {self.resource or 'every resource'}"

    def get(self, limiter: SyncRateLimiter) -> list[Limit]:
        if self.entity_id is not None:
            return limiter.get_limits(self.entity_id, self.resource)
        return limiter.get_system_defaults() if self.resource is None else limiter.get_resource_defaults(self.resource)

    def set(self, limiter: SyncRateLimiter, limits: list[Limit], expected: int | None, policy: Any = None) -> None:
        if self.entity_id is not None:
            limiter.set_limits(self.entity_id, limits, self.resource, expected_version=expected)
        elif self.resource is not None:
            limiter.set_resource_defaults(self.resource, limits, expected_version=expected)
        else:
            limiter.set_system_defaults(limits, policy, expected_version=expected)

    def delete(self, limiter: SyncRateLimiter, expected: int | None) -> bool:
        if self.entity_id is not None:
            return limiter.delete_limits(self.entity_id, self.resource, expected_version=expected)
        if self.resource is not None:
            return limiter.delete_resource_defaults(self.resource, expected_version=expected)
        return limiter.delete_system_defaults(expected_version=expected)

    def as_dict(self) -> dict[str, Any]:
        return {"entity_id": self.entity_id, "resource": self.resource, "source": self.source}


def store(
    session: Session, level: Level, specs: Sequence[str], expected: int | None, policy: str | None = None
) -> None:
    found = read_limits(specs)
    if not found:
        raise click.UsageError("give at least one limit, like rpm=100/minute", click.get_current_context())
    with session.limiter() as limiter:
        level.set(limiter, found, expected, policy)
    if session.as_json:
        answer_json(level_dict(level, found) | ({"on_unavailable": policy} if level.source == "system" else {}))
    else:
        outage = f"; when the store is away: {policy}" if policy else ""
        answer(f"stored for {level}: {spelled(found)}{outage}")


def show(session: Session, level: Level) -> None:
    more: dict[str, Any] = {}
    with session.limiter() as limiter:
        # First: it may be older than the limits, and then nothing is overwritten with it.
        more["version"] = limiter.get_limits_version(level.entity_id, level.resource)
        found = level.get(limiter)
        if level.source == "system":
            more["on_unavailable"] = limiter.get_system_on_unavailable()
    if session.as_json:
        answer_json(level_dict(level, found) | more)
    elif not found:
        answer(f"no limits are stored for {level}")
    else:
        answer(str(level), limits_table(found))
        if more.get("on_unavailable"):
            answer(f"when the store is away: {more['on_unavailable']}")


def remove(session: Session, level: Level, expected: int | None) -> None:
    with session.limiter() as limiter:
        deleted = level.delete(limiter, expected)
    if session.as_json:
        answer_json(level.as_dict() | {"deleted": deleted})
    else:
        answer(f"deleted: the limits of {level}" if deleted else f"nothing to delete: {level} had no limits")


def show_all(session: Session, levels: Callable[[SyncRateLimiter], Iterable[Level]], none: str) -> None:
    with session.limiter() as limiter:
        found = [(level, stored) for level in levels(limiter) if (stored := level.get(limiter))]
    if session.as_json:
        answer_json([level_dict(level, stored) for level, stored in found])
    elif found:
        answer(Table(["for", "limits"], [[str(level), spelled(stored)] for level, stored in found]))
    else:
        answer(none)


def limits_table(limits: Iterable[Limit]) -> Table:
    rows = [
        [limit.name, str(limit), number(limit.capacity), number(limit.refill_amount) if limit.refill_amount else ""]
        for limit in limits
    ]
    return Table(["limit", "allows", ">capacity", ">refill"], rows)


def level_dict(level: Level, limits: Iterable[Limit]) -> dict[str, Any]:
    return level.as_dict() | {"limits": [limit_dict(limit) for limit in limits]}

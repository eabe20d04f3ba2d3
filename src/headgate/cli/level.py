"""The four levels at which limits are stored: what the commands `limits`, `resource` and `system` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ..core.limit import Limit
from ..limiter import LimitsPreview, ResolvedLimits, StoredLimits, SyncRateLimiter
from .confirm import confirmed, yes_option
from .errors import ALLOWED, REFUSED
from .options import Session
from .output import Table, answer, answer_json, limit_dict, number, spelled
from .values import read_limits

specs_argument = click.argument("specs", metavar="NAME=SPEC...", nargs=-1)
inherit_option = click.option(
    "--inherit/--no-inherit",
    default=True,
    help="Take limits of other names from the next level, which is the default, or have none of them.",
)
_expected_option = click.option(
    "--expected-version",
    metavar="N",
    type=click.IntRange(0),
    help="Only if nobody has changed them since: the version that `get --json` shows, 0 if there were none.",
)


def guarded_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Of a change that may be refused: by another version, or by whoever is asked."""
    decorated: Callable[..., Any] = _expected_option(yes_option(command))
    return decorated


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

    def get(self, limiter: SyncRateLimiter) -> StoredLimits:
        if self.entity_id is not None:
            return limiter.get_limits(self.entity_id, self.resource)
        return limiter.get_system_defaults() if self.resource is None else limiter.get_resource_defaults(self.resource)

    def set(
        self,
        limiter: SyncRateLimiter,
        limits: list[Limit],
        inherit: bool,
        expected: int | None,
        policy: Any = None,
    ) -> None:
        how: dict[str, Any] = {"inherit": inherit, "expected_version": expected}
        if self.entity_id is not None:
            limiter.set_limits(self.entity_id, limits, self.resource, **how)
        elif self.resource is not None:
            limiter.set_resource_defaults(self.resource, limits, **how)
        else:
            limiter.set_system_defaults(limits, policy, **how)

    def delete(self, limiter: SyncRateLimiter, expected: int | None) -> bool:
        if self.entity_id is not None:
            return limiter.delete_limits(self.entity_id, self.resource, expected_version=expected)
        if self.resource is not None:
            return limiter.delete_resource_defaults(self.resource, expected_version=expected)
        return limiter.delete_system_defaults(expected_version=expected)

    def as_dict(self) -> dict[str, Any]:
        return {"entity_id": self.entity_id, "resource": self.resource, "source": self.source}


# What a change leaves in force


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that nobody, or somebody who was asked, minds. `expected`: the version that it is made of."""

    preview: LimitsPreview
    expected: int | None

    @property
    def effective(self) -> dict[str, Any]:
        preview = self.preview
        both = {"before": resolved_dict(preview.before), "after": resolved_dict(preview.after)}
        return {"effective": {**both, "dropped": preview.dropped}}


def _agreed(preview: LimitsPreview, level: Level, expected: int | None, yes: bool) -> _Change | None:
    """None if names would no longer hold, and that is not what was wanted.

    Who has agreed to a change has agreed to what it does now: not to what it does after another one.
    """
    if not preview.dropped or expected not in (None, preview.version):
        return _Change(preview, expected)
    dropped = _dropped(preview, level)
    if not confirmed(f"{dropped}. Go on?", yes, dropped):
        return None
    return _Change(preview, preview.version)


def _dropped(preview: LimitsPreview, level: Level) -> str:
    """`tpm would no longer hold for acme on chat, ...`."""
    who = level.entity_id or "everyone"
    lines = []
    for name, resources in preview.dropped.items():
        places = [str(resource) for resource in resources if resource is not None]
        if None in resources:
            places = ["every resource" if not places else "other resources", *places]
        lines.append(f"{name} would no longer hold for {who} on {', '.join(places)}")
    return f"{'; '.join(lines)}: an acquire that consumes it is an error then, unless its limiter has it"


def _inherited(preview: LimitsPreview, level: Level) -> str:
    """What holds besides, with where it is from."""
    shown = sourced(preview.after, but=level.source)
    return f"; inherited: {shown}" if shown else ""


def store(
    session: Session,
    level: Level,
    specs: Sequence[str],
    *,
    inherit: bool,
    expected: int | None,
    yes: bool,
    policy: Any = None,
) -> int:
    found = read_limits(specs)
    if not found:
        raise click.UsageError("give at least one limit, like rpm=100/minute", click.get_current_context())
    with session.limiter() as limiter:
        preview = limiter.preview_limits(level.entity_id, level.resource, found, inherit=inherit, on_unavailable=policy)
        change = _agreed(preview, level, expected, yes)
        if change is None:
            answer("nothing was changed")
            return REFUSED
        level.set(limiter, found, inherit, change.expected, policy)
    if session.as_json:
        more = {"on_unavailable": policy} if level.source == "system" else {}
        answer_json(level_dict(level, found) | {"inherit": inherit} | more | change.effective)
    else:
        alone = "" if inherit else "; nothing is inherited"
        outage = f"; when the store is away: {policy}" if policy else ""
        answer(f"stored for {level}: {spelled(found)}{_inherited(preview, level)}{alone}{outage}")
    return ALLOWED


def remove(session: Session, level: Level, *, expected: int | None, yes: bool) -> int:
    with session.limiter() as limiter:
        preview = limiter.preview_limits(level.entity_id, level.resource, None)
        change = _agreed(preview, level, expected, yes)
        if change is None:
            answer("nothing was deleted")
            return REFUSED
        deleted = level.delete(limiter, change.expected)
    if session.as_json:
        answer_json(level.as_dict() | {"deleted": deleted} | change.effective)
    elif deleted:
        answer(f"deleted: the limits of {level}{_inherited(preview, level)}")
    else:
        answer(f"nothing to delete: {level} had no limits")
    return ALLOWED


# Looking


def show(session: Session, level: Level) -> None:
    with session.limiter() as limiter:
        found = level.get(limiter)
    if session.as_json:
        more = {"on_unavailable": found.on_unavailable} if level.source == "system" else {}
        answer_json(level_dict(level, found) | {"inherit": found.inherit, "version": found.version} | more)
    elif not found:
        answer(f"no limits are stored for {level}")
    else:
        answer(str(level), limits_table(found))
        if not found.inherit:
            answer("nothing is inherited: there are no limits of other names")
        if found.on_unavailable:
            answer(f"when the store is away: {found.on_unavailable}")


def show_all(session: Session, levels: Callable[[SyncRateLimiter], Iterable[Level]], none: str) -> None:
    with session.limiter() as limiter:
        found = [(level, stored) for level in levels(limiter) if (stored := level.get(limiter))]
    if session.as_json:
        answer_json([level_dict(level, stored) | {"inherit": stored.inherit} for level, stored in found])
    elif found:
        rows = [[str(level), spelled(stored), "" if stored.inherit else "no"] for level, stored in found]
        answer(Table(["for", "limits", "inherits"], rows))
    else:
        answer(none)


def limits_table(limits: Iterable[Limit], resolved: ResolvedLimits | None = None) -> Table:
    """With the level of each, if they are those that hold."""
    rows = [
        [
            limit.name,
            str(limit),
            number(limit.capacity),
            number(limit.refill_amount) if limit.refill_amount else "",
            resolved.sources[limit.name] if resolved else "",
        ]
        for limit in limits
    ]
    return Table(["limit", "allows", ">capacity", ">refill", "from"], rows)


def level_dict(level: Level, limits: Iterable[Limit]) -> dict[str, Any]:
    return level.as_dict() | {"limits": [limit_dict(limit) for limit in limits]}


def sourced(resolved: ResolvedLimits, but: str | None = None) -> str:
    """The limits that hold, each with its level, but for those of one of them."""
    shown = [(limit, resolved.sources[limit.name]) for limit in resolved.limits]
    return ", ".join(f"{limit.name}={limit} ({source})" for limit, source in shown if source != but)


def resolved_dict(resolved: ResolvedLimits) -> dict[str, Any]:
    limits = [limit_dict(limit) for limit in resolved.limits]
    return {"limits": limits, "source": resolved.source, "sources": resolved.sources}

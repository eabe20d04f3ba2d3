"""Showing, storing and deleting the limits of a level, for the commands `limits`, `resource` and `system`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ..core.limit import Limit
from ..core.written import spelled_entries
from ..limiter import LimitsPreview, ResolvedLimits, StoredLimits, SyncRateLimiter
from ..limiter.config.levels import LimitLevel
from ..limiter.config.limits import read_level, write_level
from ..limiter.config.preview import preview_level
from .errors import ALLOWED, REFUSED
from .options import CommandSession, confirmed, yes_option
from .output import TextTable, answer, answer_json, limit_dict, number, schedule_dict, spelled
from .values import read_hours, read_limits

_specs_argument = click.argument("specs", metavar="NAME=SPEC...", nargs=-1)
_inherit_option = click.option(
    "--inherit/--no-inherit",
    default=True,
    help="Whether limits of other names come from the next level. They do by default.",
)
_hours_option = click.option(
    "--hours",
    metavar="HOURS: LIMITS",
    multiple=True,
    help="Other limits in some hours: 'mon-fri 08:00-18:00: rph=100/hour; rpm=10/minute'; or a factor for all, "
    "'sat,sun: 0.5'. The first that matches holds. Repeatable.",
)
_tz_option = click.option("--tz", metavar="ZONE", help="The time zone of --hours, like Europe/Berlin. Default: UTC.")
_expected_option = click.option(
    "--expected-version",
    metavar="N",
    type=click.IntRange(0),
    help="Fail unless the stored limits have this version. `get --json` shows it; 0 means that there are none.",
)


def limits_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is stored at a level."""
    decorated: Callable[..., Any] = _specs_argument(_hours_option(_tz_option(_inherit_option(command))))
    return decorated


def guarded_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """For a change that may fail on another version, or be declined."""
    decorated: Callable[..., Any] = _expected_option(yes_option(command))
    return decorated


# What a change leaves in force


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that drops no limit, or was confirmed. `expected`: the version it was previewed with."""

    preview: LimitsPreview
    expected: int | None

    @property
    def effective(self) -> dict[str, Any]:
        preview = self.preview
        both = {"before": resolved_dict(preview.before), "after": resolved_dict(preview.after)}
        return {"effective": {**both, "dropped": preview.dropped}}


def _agreed(preview: LimitsPreview, level: LimitLevel, expected: int | None, yes: bool) -> _Change | None:
    """None if the change would drop limits and is declined.

    A confirmation covers only what was shown, so the change then expects the version of the preview.
    """
    if not preview.dropped or expected not in (None, preview.version):
        return _Change(preview, expected)
    dropped = _dropped(preview, level)
    if not confirmed(f"{dropped}. Go on?", yes, dropped):
        return None
    return _Change(preview, preview.version)


def _dropped(preview: LimitsPreview, level: LimitLevel) -> str:
    """`tpm would no longer hold for acme on chat, ...`."""
    lines = []
    for name, resources in preview.dropped.items():
        places = [str(resource) for resource in resources if resource is not None]
        if None in resources:
            places = ["every resource" if not places else "other resources", *places]
        lines.append(f"{name} would no longer apply to {level.who} on {', '.join(places)}")
    return f"{'; '.join(lines)}: an acquire that consumes it will fail, unless the program itself sets that limit"


def _inherited(preview: LimitsPreview, level: LimitLevel) -> str:
    """The limits in force from other levels."""
    shown = sourced(preview.after, but=level.source)
    return f"; inherited: {shown}" if shown else ""


def store(
    session: CommandSession,
    level: LimitLevel,
    specs: Sequence[str],
    *,
    hours: Sequence[str],
    tz: str | None,
    inherit: bool,
    expected: int | None,
    yes: bool,
    policy: Any = None,
) -> int:
    found = read_limits(specs)
    if not found:
        raise click.UsageError("specify at least one limit, like rpm=100/minute", click.get_current_context())
    wanted = StoredLimits(found, inherit=inherit, on_unavailable=policy, schedule=read_hours(found, hours, tz))
    with session.limiter() as limiter:
        preview = preview_level(limiter, level, wanted)
        change = _agreed(preview, level, expected, yes)
        if change is None:
            answer("nothing was changed")
            return REFUSED
        write_level(limiter, level, wanted, expected_version=change.expected)
    if session.as_json:
        more = {"on_unavailable": policy} if level.source == "system" else {}
        answer_json(level_dict(level, wanted) | {"inherit": inherit} | more | change.effective)
    else:
        alone = "" if inherit else "; nothing is inherited"
        outage = f"; when the store is unavailable: {policy}" if policy else ""
        stored = spelled(found, wanted.schedule)
        answer(f"stored for {level}: {stored}{_inherited(preview, level)}{alone}{outage}")
    return ALLOWED


def remove(session: CommandSession, level: LimitLevel, *, expected: int | None, yes: bool) -> int:
    with session.limiter() as limiter:
        preview = preview_level(limiter, level, None)
        change = _agreed(preview, level, expected, yes)
        if change is None:
            answer("nothing was deleted")
            return REFUSED
        deleted = write_level(limiter, level, None, expected_version=change.expected)
    if session.as_json:
        answer_json(level.as_dict() | {"deleted": deleted} | change.effective)
    elif deleted:
        answer(f"deleted: the limits of {level}{_inherited(preview, level)}")
    else:
        answer(f"nothing to delete: {level} had no limits")
    return ALLOWED


# Showing


def show(session: CommandSession, level: LimitLevel) -> None:
    with session.limiter() as limiter:
        found = read_level(limiter, level)
    if session.as_json:
        more = {"on_unavailable": found.on_unavailable} if level.source == "system" else {}
        answer_json(level_dict(level, found) | {"inherit": found.inherit, "version": found.version} | more)
    elif not found:
        answer(f"no limits are stored for {level}")
    else:
        answer(str(level), limits_table(found))
        if found.schedule is not None:
            answer(f"in these hours ({found.schedule.tz}), instead:")
            answer(*(f"  {entry}" for entry in spelled_entries(found.schedule)))
        if not found.inherit:
            answer("nothing is inherited from other levels")
        if found.on_unavailable:
            answer(f"when the store is unavailable: {found.on_unavailable}")


def show_all(session: CommandSession, levels: Callable[[SyncRateLimiter], Iterable[LimitLevel]], none: str) -> None:
    with session.limiter() as limiter:
        found = [(level, stored) for level in levels(limiter) if (stored := read_level(limiter, level))]
    if session.as_json:
        answer_json([level_dict(level, stored) | {"inherit": stored.inherit} for level, stored in found])
    elif found:
        rows = [
            [str(level), spelled(stored, stored.schedule), "" if stored.inherit else "no"] for level, stored in found
        ]
        answer(TextTable(["for", "limits", "inherits"], rows))
    else:
        answer(none)


def limits_table(limits: Iterable[Limit], resolved: ResolvedLimits | None = None) -> TextTable:
    """With the level of each, if they are resolved."""
    rows = [
        [
            limit.name,
            str(limit),
            number(limit.capacity),
            number(limit.refill_amount) if limit.refill_milli > 0 else "",
            resolved.sources[limit.name] if resolved else "",
        ]
        for limit in limits
    ]
    return TextTable(["limit", "allows", ">capacity", ">refill", "from"], rows)


def level_dict(level: LimitLevel, limits: StoredLimits) -> dict[str, Any]:
    schedule = {"schedule": schedule_dict(limits.schedule)} if limits.schedule is not None else {}
    return level.as_dict() | {"limits": [limit_dict(limit) for limit in limits]} | schedule


def sourced(resolved: ResolvedLimits, but: str | None = None) -> str:
    """The limits in force with their levels, without those of the level `but`."""
    shown = [(limit, resolved.sources[limit.name]) for limit in resolved.limits]
    return ", ".join(f"{limit.name}={limit} ({source})" for limit, source in shown if source != but)


def resolved_dict(resolved: ResolvedLimits) -> dict[str, Any]:
    limits = [limit_dict(limit) for limit in resolved.limits]
    return {"limits": limits, "source": resolved.source, "sources": resolved.sources}

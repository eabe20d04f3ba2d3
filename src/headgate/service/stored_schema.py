"""The types of requests and responses for stored limits."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ..limiter import OnUnavailable
from .schema import RESOURCE, Input, LimitForm, Limits, Number, PageQuery, Policy, Zone


class ScheduleEntry(Input, omit_defaults=True):
    """What holds in these hours: `limits`, which replace those of the same names, or all limits times `factor`."""

    hours: Annotated[
        str,
        Meta(max_length=256, description="Like `mon-fri 08:00-18:00`, `sat,sun`, `22:00-06:00` or `* 8-17 * * 1-5`."),
    ]
    limits: Limits | UnsetType = UNSET
    factor: Number | UnsetType = UNSET


class ScheduleForm(Input):
    """Hours at which other limits hold than `limits`. The first entry whose hours hold decides."""

    entries: Annotated[list[ScheduleEntry], Meta(min_length=1, max_length=50)]
    tz: Zone = "UTC"


Preview: TypeAlias = Annotated[bool, Meta(description="Change nothing, and report what the change would do.")]


class LimitsForm(Input):
    """These limits replace all that are stored here. `schedule`: hours at which others hold instead. `inherit`: limits
    with other names come from the next level. `expected_version`: change only if the stored limits have this
    version."""

    limits: Limits
    schedule: ScheduleForm | None = None
    inherit: bool = True
    preview: Preview = False
    expected_version: Annotated[float, Meta(ge=0, extra_json_schema={"type": "integer"})] | None = None


class ChangeQuery(Input):
    """`expected_version`: change only if the stored limits have this version."""

    preview: Preview = False
    expected_version: Annotated[int, Meta(ge=0)] | None = None


class SystemForm(LimitsForm):
    on_unavailable: Policy | None = None


Source: TypeAlias = Literal["entity", "entity_default", "resource", "system", "limiter"]


class ResolvedLimitsReply(Struct):
    """The limits that apply now. `source`: the most specific level that has any of them. `sources`: the level of each,
    by limit name. `on_unavailable`: the stored policy for outages."""

    limits: list[LimitForm]
    source: Source | None
    sources: dict[str, Source]
    on_unavailable: OnUnavailable | None


class Effective(Struct):
    """The limits that apply before and after a change, for the entity on the resource. Without a resource: on one that
    has no limits; without an entity: for one that has no limits."""

    before: ResolvedLimitsReply
    after: ResolvedLimitsReply
    dropped: Annotated[
        dict[str, list[str | None]],
        Meta(
            description="Limits that no longer apply, each with the resources concerned; null: all resources without "
            "their own limits. Consuming one is an error from then on."
        ),
    ]


class StoredLimitsReply(Struct, kw_only=True):
    """`version`: of the limits that were read; 0 if there are none. `effective`: the effect of a change."""

    limits: list[LimitForm]
    inherit: bool
    schedule: ScheduleForm | UnsetType = UNSET
    version: int | UnsetType = UNSET
    effective: Effective | UnsetType = UNSET


class SystemLimitsReply(StoredLimitsReply, kw_only=True):
    on_unavailable: OnUnavailable | None


class DeletedReply(Struct):
    deleted: Annotated[bool, Meta(description="false: nothing was stored, or this is a preview.")]
    effective: Effective


class CustomQuery(PageQuery):
    resource: (
        Annotated[str, Meta(description="Default: limits on all resources.", extra_json_schema=RESOURCE)] | UnsetType
    ) = UNSET

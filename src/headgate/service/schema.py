"""What is sent and answered: types that read, check and write JSON, and make the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.names import ID_CHARACTERS
from ..core.units import MAX_AMOUNT
from ..limiter import OnUnavailable

MAX_WAIT_SECONDS = 60
MAX_LEASE_SECONDS = 86_400
MAX_ASKS = 500
MAX_PAGE = 1000

# The limiter checks these itself, and says what is wrong in more words than a pattern could.
_ID = {"pattern": f"^[A-Za-z0-9][{ID_CHARACTERS}]*$", "minLength": 1, "maxLength": 256}
_NAMESPACE = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.:@-]*$", "minLength": 1, "maxLength": 256}
_RESOURCE = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.:@/-]*$", "minLength": 1, "maxLength": 256}
_AMOUNTS = {"propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"}}

EntityId: TypeAlias = Annotated[str, Meta(description="Who is limited.", extra_json_schema=_ID)]
Resource: TypeAlias = Annotated[str, Meta(description="What is used.", extra_json_schema=_RESOURCE)]
NamespaceName: TypeAlias = Annotated[str, Meta(description="All that belongs together.", extra_json_schema=_NAMESPACE)]
Number: TypeAlias = int | float
Amounts: TypeAlias = Annotated[
    dict[str, Number], Meta(description="Amounts by limit name, multiples of 0.001.", extra_json_schema=_AMOUNTS)
]
Taken: TypeAlias = Annotated[
    dict[str, Annotated[Number, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_AMOUNT})]],
    Meta(
        description="Amounts by limit name, multiples of 0.001. 0 passes unless the limit is in debt or blocked.",
        extra_json_schema=_AMOUNTS,
    ),
]
Cursor: TypeAlias = Annotated[str, Meta(max_length=4096, description="Of the page before.")]
Policy: TypeAlias = Annotated[OnUnavailable, Meta(description="What to do when the store is away.")]


class Input(Struct, forbid_unknown_fields=True):
    """What is sent: a field that nobody knows is a mistake."""


class LimitForm(Input, omit_defaults=True):
    """A limit. Of tokens: `capacity`, `refill_amount` and `refill_period_seconds`. Of slots: `slots` and
    `ttl_seconds`."""

    name: str
    capacity: Number | UnsetType = UNSET
    refill_amount: Number | UnsetType = UNSET
    refill_period_seconds: Number | UnsetType = UNSET
    slots: Number | UnsetType = UNSET
    ttl_seconds: Number | UnsetType = UNSET


Limits: TypeAlias = Annotated[
    list[str | LimitForm],
    Meta(
        min_length=1,
        max_length=64,
        description="Like `rpm=100/minute burst 150`, or as objects.",
        examples=[["rpm=100/minute burst 150"]],
    ),
]


# Decisions


class AskForm(Input):
    """What to take. Without `consume`: one of every limit. Without `limits`: the stored ones."""

    entity_id: EntityId
    resource: Resource
    consume: Taken | None = None
    limits: Limits | None = None


class LeaseForm(Input):
    """A lease to be released, corrected or renewed by its id. Who is not heard of for `ttl_seconds` has lost it;
    with `restore_on_expiry` its tokens come back then."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=MAX_LEASE_SECONDS)] | None = None
    restore_on_expiry: bool = False


class AcquireForm(AskForm):
    max_wait: Annotated[
        float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Wait up to so many seconds, first come, first served.")
    ] = 0
    on_unavailable: Policy | None = None
    lease: LeaseForm | None = None


class BatchForm(Input):
    """Each element is decided by itself. One that is a list passes or fails as a whole."""

    asks: Annotated[
        list[AskForm | Annotated[list[AskForm], Meta(min_length=1, max_length=MAX_ASKS)]],
        Meta(min_length=1, max_length=MAX_ASKS, description=f"At most {MAX_ASKS} in all."),
    ]
    on_unavailable: Policy | None = None
    statuses: Annotated[bool, Meta(description="Answer with what each limit said, too.")] = False


class Status(Struct):
    """What a limit said. `available` counts whole tokens after the decision."""

    entity_id: str
    resource: str
    limit_name: str
    capacity: Number
    refill_amount: Number
    refill_period_seconds: Number
    available: int
    requested: Number
    exceeded: bool
    retry_after_seconds: float | None


class Decided(Struct):
    """`retry_after_seconds`: 0 if it is allowed, null if it never will be.
    `degraded`: the store is away, and it was decided without it.
    `lease_id`: of the lease that was asked for, or that holds the slots."""

    allowed: bool
    retry_after_seconds: float | None
    degraded: bool
    lease_id: str | None
    limits: list[Status]


class BatchDecided(Struct):
    """`limits` only if `statuses` was asked for. `error`: it did not pass, since what is stored for it is corrupt."""

    allowed: bool
    retry_after_seconds: float | None
    degraded: bool
    limits: list[Status] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class BatchReply(Struct):
    """In the order of the asks."""

    decisions: list[BatchDecided]


class CheckForm(Input):
    """A request as it came to an API, and who sent it. `entity_id` is the caller by its own name; the others are
    turned into one as the middleware would. An API key is hashed, and never stored."""

    method: Annotated[str, Meta(min_length=1, max_length=32)]
    path: Annotated[str, Meta(min_length=1, max_length=8192, description="As it was sent, with a query or without.")]
    entity_id: EntityId | None = None
    user: Annotated[str, Meta(max_length=1024)] | None = None
    organisation: Annotated[str, Meta(max_length=1024)] | None = None
    api_key: Annotated[str, Meta(max_length=1024)] | None = None
    address: Annotated[str, Meta(max_length=64)] | None = None


class CheckReply(Struct):
    """`headers` belong into the answer to the caller. If it is refused, so do `status` and `body`."""

    allowed: bool
    status: int
    headers: dict[str, str]
    body: dict[str, Any] | None


# Leases


class Nothing(Input):
    """Nothing has to be said."""


class ReleaseForm(Input):
    """Slots come back, and with `rollback` tokens too. With `amounts`: only these, and the lease goes on."""

    amounts: Amounts | None = None
    rollback: bool = False


class AmountsForm(Input):
    """+n was used besides, -n comes back."""

    amounts: Amounts


class Consumed(Struct):
    consumed: Annotated[dict[str, Number], Meta(description="What the lease has taken in all.")]


class Renewed(Struct):
    ttl_seconds: Annotated[float, Meta(description="It lives so long from now on.")]


# Tokens without a lease


class AdjustForm(AmountsForm):
    """+n was used, -n comes back. It never refuses."""

    entity_id: EntityId
    resource: Resource
    limits: Limits | None = None


class PenalizeForm(Input):
    """Nothing passes for `seconds`, or only `factor` of the tokens stays, or both."""

    entity_id: EntityId
    resource: Resource
    seconds: Annotated[float, Meta(ge=0)] | None = None
    factor: Annotated[float, Meta(ge=0, le=1)] | None = None
    limits: Limits | None = None


class PlaceForm(Input):
    entity_id: EntityId
    resource: Resource


class Available(Struct):
    available: Annotated[dict[str, int], Meta(description="Whole tokens by limit name, negative in debt.")]


class UsageQuery(Input):
    entity_id: EntityId
    resource: (
        Annotated[str, Meta(description="Without one: all that are in use.", extra_json_schema=_RESOURCE)] | UnsetType
    ) = UNSET


class LimitUsage(Struct):
    resource: str
    limit_name: str
    limit: str
    capacity: Number
    available: int
    used: Number
    full_in_seconds: float
    blocked_for_seconds: float


class UsageReply(Struct):
    entity_id: str
    limits: list[LimitUsage]


# Entities


class EntityForm(Input):
    """`cascade`: what it takes counts on every ancestor too."""

    entity_id: EntityId
    name: Annotated[str, Meta(max_length=256)] | None = None
    parent_id: EntityId | None = None
    cascade: bool = False
    metadata: dict[str, Any] = {}


class EntityChange(Input, omit_defaults=True):
    """What is given is changed. `expected_version`: only if it is (still) that one."""

    name: Annotated[str, Meta(max_length=256)] | UnsetType | None = UNSET
    parent_id: EntityId | UnsetType | None = UNSET
    cascade: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    # In JSON, 1.0 is a whole number too.
    expected_version: Annotated[float, Meta(ge=1, extra_json_schema={"type": "integer"})] | None = None


class EntityReply(Struct):
    entity_id: str
    name: str | None
    parent_id: str | None
    cascade: bool
    metadata: dict[str, Any]
    version: int


class PageQuery(Input):
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: Cursor = ""


class Entities(Struct):
    """`cursor`: where the next page starts; null: this is the last one. `corrupt`: entities that cannot be read."""

    items: list[EntityReply]
    cursor: str | None
    corrupt: list[str] | UnsetType = UNSET


# Stored limits


Preview: TypeAlias = Annotated[bool, Meta(description="Change nothing, and answer what the change would do.")]


class LimitsForm(Input):
    """They replace all that are stored here. `inherit`: limits of other names come from the next level.
    `expected_version`: only if those that are stored are (still) that version."""

    limits: Limits
    inherit: bool = True
    preview: Preview = False
    expected_version: Annotated[float, Meta(ge=0, extra_json_schema={"type": "integer"})] | None = None


class ChangeQuery(Input):
    """`expected_version`: only if the limits that are stored here are (still) that version."""

    preview: Preview = False
    expected_version: Annotated[int, Meta(ge=0)] | None = None


class SystemForm(LimitsForm):
    on_unavailable: Policy | None = None


Source: TypeAlias = Literal["entity", "entity_default", "resource", "system", "limiter"]


class ResolvedLimitsReply(Struct):
    """What holds. `source`: the most specific level that has any of them. `sources`: by limit name, the level it is
    from. `on_unavailable`: the stored policy for outages."""

    limits: list[LimitForm]
    source: Source | None
    sources: dict[str, Source]
    on_unavailable: OnUnavailable | None


class Effective(Struct):
    """What held before a change and holds after it: for the entity on the resource. For every resource: on one without
    limits; for everyone: an entity without limits."""

    before: ResolvedLimitsReply
    after: ResolvedLimitsReply
    dropped: Annotated[
        dict[str, list[str | None]],
        Meta(
            description="Limits that no longer hold, each with the resources on which that is so; null: all without "
            "limits of their own. To consume one is an error from then on."
        ),
    ]


class StoredLimitsReply(Struct, kw_only=True):
    """`version`: of those that were read; 0 if there are none. `effective`: what a change did."""

    limits: list[LimitForm]
    inherit: bool
    version: int | UnsetType = UNSET
    effective: Effective | UnsetType = UNSET


class SystemLimitsReply(StoredLimitsReply, kw_only=True):
    on_unavailable: OnUnavailable | None


class DeletedReply(Struct):
    deleted: Annotated[bool, Meta(description="false: there was nothing, or it was a preview.")]
    effective: Effective


class CustomQuery(PageQuery):
    resource: (
        Annotated[str, Meta(description="Without one: those for every resource.", extra_json_schema=_RESOURCE)]
        | UnsetType
    ) = UNSET


class Names(Struct):
    items: list[str]
    cursor: str | None


# The service itself


class Health(Struct):
    status: Literal["alive", "ready"]


class Problem(Struct):
    """Problem details, RFC 9457. `detail` says what was wrong, and what to do."""

    type: str
    title: str
    status: int
    detail: str

"""The types of requests and responses: they parse, check and write JSON, and describe it in the OpenAPI document."""

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

# The limiter checks these too, with better messages than a pattern gives.
_ID = {"pattern": f"^[A-Za-z0-9][{ID_CHARACTERS}]*$", "minLength": 1, "maxLength": 256}
_NAMESPACE = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.:@-]*$", "minLength": 1, "maxLength": 256}
RESOURCE = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.:@/-]*$", "minLength": 1, "maxLength": 256}
_AMOUNTS = {"propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,63}$"}}

EntityId: TypeAlias = Annotated[str, Meta(description="The entity that is limited.", extra_json_schema=_ID)]
Resource: TypeAlias = Annotated[str, Meta(description="The resource that is used.", extra_json_schema=RESOURCE)]
NamespaceName: TypeAlias = Annotated[str, Meta(description="The name of a namespace.", extra_json_schema=_NAMESPACE)]
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
Zone: TypeAlias = Annotated[str, Meta(max_length=64, description="Like `Europe/Berlin`; without it, UTC.")]
Cursor: TypeAlias = Annotated[str, Meta(max_length=4096, description="The `cursor` of the previous page.")]
Policy: TypeAlias = Annotated[OnUnavailable, Meta(description="What to do when the store is unavailable.")]


class Input(Struct, forbid_unknown_fields=True):
    """A request. An unknown field is an error."""


class LimitForm(Input, omit_defaults=True):
    """A limit. For a bucket: `capacity`, `refill_amount` and `refill_period_seconds`. For slots: `slots` and
    `ttl_seconds`. For a quota: `amount` and `per` (`hour`, `day`, `week`, `month`, `year`), with `tz`, `at` and `on`;
    or `amount` and `cron`, with `tz`; or `amount` and `seconds_from_first_use`. `alert_at`: the shares at whose use
    there is an alert."""

    name: str
    capacity: Number | UnsetType = UNSET
    refill_amount: Number | UnsetType = UNSET
    refill_period_seconds: Number | UnsetType = UNSET
    slots: Number | UnsetType = UNSET
    ttl_seconds: Number | UnsetType = UNSET
    amount: Number | UnsetType = UNSET
    per: Annotated[str, Meta(max_length=16, description="Like `day`.")] | UnsetType = UNSET
    tz: Zone | UnsetType = UNSET
    at: Annotated[str, Meta(max_length=16, description="Like `06:30`; without it, midnight.")] | UnsetType = UNSET
    on: Number | Annotated[str, Meta(max_length=16, description="Like `monday`, 15 or `04-06`.")] | UnsetType = UNSET
    cron: Annotated[str, Meta(max_length=256, description="Like `0 6 * * 1-5`.")] | UnsetType = UNSET
    seconds_from_first_use: Number | UnsetType = UNSET
    alert_at: Annotated[list[Number], Meta(max_length=16, examples=[[0.8, 1]])] | UnsetType = UNSET


Limits: TypeAlias = Annotated[
    list[str | LimitForm],
    Meta(
        min_length=1,
        max_length=64,
        description="Like `rpm=100/minute burst 150` or `usd=500/month resets Europe/Berlin`, or as objects.",
        examples=[["rpm=100/minute burst 150"]],
    ),
]


# Decisions


class AskForm(Input):
    """What to take. Without `consume`: one of every limit. Without `limits`: the stored limits."""

    entity_id: EntityId
    resource: Resource
    consume: Taken | None = None
    limits: Limits | None = None


class LeaseForm(Input):
    """A lease that can be released, corrected or renewed by its id. It expires `ttl_seconds` after the last renewal;
    with `restore_on_expiry` its tokens are given back then."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=MAX_LEASE_SECONDS)] | None = None
    restore_on_expiry: bool = False


class AcquireForm(AskForm):
    max_wait: Annotated[
        float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait at most, first come, first served.")
    ] = 0
    on_unavailable: Policy | None = None
    lease: LeaseForm | None = None


class BatchForm(Input):
    """Each element is decided on its own. A list of asks passes or fails as a whole."""

    asks: Annotated[
        list[AskForm | Annotated[list[AskForm], Meta(min_length=1, max_length=MAX_ASKS)]],
        Meta(min_length=1, max_length=MAX_ASKS, description=f"At most {MAX_ASKS} in all."),
    ]
    on_unavailable: Policy | None = None
    statuses: Annotated[bool, Meta(description="Include the status of each limit in the response.")] = False


class Status(Struct):
    """The status of a limit. `available` is in whole tokens, after the decision. `resets_at_ms`, of a quota: when it is
    full again; null: not known."""

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
    resets_at_ms: int | UnsetType | None = UNSET


class Decided(Struct):
    """`retry_after_seconds`: 0 if allowed, null if the request can never pass.
    `degraded`: decided without the store, which is unavailable.
    `lease_id`: the lease that was requested, or that holds the slots."""

    allowed: bool
    retry_after_seconds: float | None
    degraded: bool
    lease_id: str | None
    limits: list[Status]


class BatchDecided(Struct):
    """`limits`: only with `statuses`. `error`: refused, because the stored state is corrupt."""

    allowed: bool
    retry_after_seconds: float | None
    degraded: bool
    limits: list[Status] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class BatchReply(Struct):
    """The decisions, in the order of the asks."""

    decisions: list[BatchDecided]


class CheckForm(Input):
    """A request to an API, and its caller: either the `entity_id` itself, or `user`, `organisation`, `api_key` and
    `address`, from which the caller is derived as in the middleware. An API key is hashed, and never stored."""

    method: Annotated[str, Meta(min_length=1, max_length=32)]
    path: Annotated[str, Meta(min_length=1, max_length=8192, description="As it was sent, with or without a query.")]
    entity_id: EntityId | None = None
    user: Annotated[str, Meta(max_length=1024)] | None = None
    organisation: Annotated[str, Meta(max_length=1024)] | None = None
    api_key: Annotated[str, Meta(max_length=1024)] | None = None
    address: Annotated[str, Meta(max_length=64)] | None = None


class CheckReply(Struct):
    """`headers` are for the response to the caller. If the request is refused, `status` and `body` are too."""

    allowed: bool
    status: int
    headers: dict[str, str]
    body: dict[str, Any] | None


# Leases


class Nothing(Input):
    """An empty object."""


class ReleaseForm(Input):
    """Slots are freed, and with `rollback` tokens are given back. With `amounts`: only these; the lease continues."""

    amounts: Amounts | None = None
    rollback: bool = False


class AmountsForm(Input):
    """A positive amount was used in addition; a negative amount is given back."""

    amounts: Amounts


class Consumed(Struct):
    consumed: Annotated[dict[str, Number], Meta(description="What the lease has taken in total.")]


class Renewed(Struct):
    ttl_seconds: Annotated[float, Meta(description="Seconds until the lease expires.")]


# Tokens without a lease


class AdjustForm(AmountsForm):
    """A positive amount was used; a negative amount is given back. Never refuses."""

    entity_id: EntityId
    resource: Resource
    limits: Limits | None = None


class PenalizeForm(Input):
    """Nothing passes for `seconds`, or the tokens are multiplied by `factor`, or both."""

    entity_id: EntityId
    resource: Resource
    seconds: Annotated[float, Meta(ge=0)] | None = None
    factor: Annotated[float, Meta(ge=0, le=1)] | None = None
    limits: Limits | None = None


class PlaceForm(Input):
    entity_id: EntityId
    resource: Resource


class Available(Struct):
    available: Annotated[dict[str, int], Meta(description="Whole tokens by limit name; negative: a debt.")]


class UsageQuery(Input):
    entity_id: EntityId
    resource: (
        Annotated[str, Meta(description="Default: all resources in use.", extra_json_schema=RESOURCE)] | UnsetType
    ) = UNSET


class LimitUsage(Struct):
    """`resets_at_ms`, of a quota: when it is full again; null: its window begins with the next use."""

    resource: str
    limit_name: str
    limit: str
    capacity: Number
    available: int
    used: Number
    full_in_seconds: float
    blocked_for_seconds: float
    resets_at_ms: int | UnsetType | None = UNSET


class UsageReply(Struct):
    entity_id: str
    limits: list[LimitUsage]


# Entities


class EntityForm(Input):
    """`cascade`: what it takes is also taken from every ancestor."""

    entity_id: EntityId
    name: Annotated[str, Meta(max_length=256)] | None = None
    parent_id: EntityId | None = None
    cascade: bool = False
    metadata: dict[str, Any] = {}


class EntityChange(Input, omit_defaults=True):
    """The fields to change. `expected_version`: change only if the entity has this version."""

    name: Annotated[str, Meta(max_length=256)] | UnsetType | None = UNSET
    parent_id: EntityId | UnsetType | None = UNSET
    cascade: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    # In JSON, 1.0 is an integer too.
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
    """`cursor`: the start of the next page; null: this is the last page. `corrupt`: entities that cannot be read."""

    items: list[EntityReply]
    cursor: str | None
    corrupt: list[str] | UnsetType = UNSET


# The service itself


class Names(Struct):
    items: list[str]
    cursor: str | None


class Health(Struct):
    status: Literal["alive", "ready"]


class Problem(Struct):
    """Problem details, RFC 9457. `detail` says what is wrong, and what to do."""

    type: str
    title: str
    status: int
    detail: str

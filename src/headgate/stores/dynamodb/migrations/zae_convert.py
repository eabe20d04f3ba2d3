"""Converting items of zae-limiter (zae_items.py) to items of headgate. Nothing is read or written here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.errors import ValidationError
from ....core.names import check_entity_id
from ..exchange import Item
from ..record_items import RecordItem
from ..record_kinds import AUDIT_EVENT, AUDIT_EVENT_OF_ENTITY, ENTITY
from .writes import Addition, Context, NewItem, moment_ms, plain_json
from .zae_buckets import bucket_writes, limits_writes, usage_writes
from .zae_items import AUDIT, BUCKETS, DEFAULT, ENTITIES, LIMITS, USAGE, ItemGroup, fields_of, unsupported

# Headgate's names for the actions of audit events, and whether their details are of before or after.
_ACTIONS = {
    "entity_created": ("entity.created", "after"),
    "entity_deleted": ("entity.deleted", "before"),
    "entity_parent_changed": ("entity.updated", "after"),
    "limits_set": ("limits.set", "after"),
    "limits_deleted": ("limits.deleted", "before"),
    "bucket_reset": ("buckets.reset", "after"),
}
_SYSTEM = "$SYSTEM"  # instead of an entity; for a resource, $RESOURCE: and its name
_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LAST_MS = 10**15  # as the limiter counts down, so that the newest event is listed first


def convert(group: ItemGroup, items: Sequence[Item], context: Context) -> Sequence[NewItem | Addition]:
    """The items to write. A ValidationError if headgate has no equivalent, or if the items cannot be read."""
    found = [fields_of(item) for item in items]
    names = {name for fields in found for name, value in fields.items() if (name, value) != ("disabled", False)}
    lacking = unsupported(group.kind, names)
    if lacking:
        raise ValidationError(f"headgate has no equivalent of {', '.join(lacking)}")
    try:
        return _CONVERSIONS[group.kind](group, found, context)
    except ValidationError:
        raise
    except KeyError as missing:
        raise ValidationError(f"the attribute {missing} is missing") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValidationError(str(error)) from None


def differences(group: ItemGroup, items: Sequence[Item], context: Context) -> list[str]:
    """What is migrated but behaves differently."""
    fields = fields_of(items[0])
    parent_id = fields.get("parent_id")
    if group.kind != ENTITIES or parent_id is None or not _cascades(fields, context):
        return []
    above = context.parents.get(parent_id, {}).get("parent_id")
    if above is None:
        return []
    return [f"it cascades only to {parent_id!r} in zae-limiter, in headgate also to {above!r} and all its ancestors"]


def _entity_writes(group: ItemGroup, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem]:
    fields = found[0]
    parent_id = fields.get("parent_id")
    entities = {
        check_entity_id(group.owner): {
            "name": fields.get("name"),
            "parent_id": None if parent_id is None else check_entity_id(parent_id, "parent_id"),
            "cascade": _cascades(fields, context),
            "metadata": plain_json(fields.get("metadata") or {}),
        }
    }
    if parent_id is not None and parent_id not in context.parents:
        # zae-limiter accepts any parent; headgate needs one that exists.
        entities[parent_id] = {"name": parent_id, "parent_id": None, "cascade": False, "metadata": {}}
    return [
        NewItem(RecordItem.of(ENTITY, context.ns, entity_id=each).item(value, 1)) for each, value in entities.items()
    ]


def _cascades(fields: Mapping[str, Any], context: Context) -> bool:
    if fields.get("parent_id") is None:
        return bool(fields.get("cascade", False))
    cascade = fields.get("cascade", context.cascade)
    if cascade is None:
        raise ValidationError(
            "it has a parent, and releases before 0.6 do not store whether it cascades to it: pass "
            "--cascade or --no-cascade"
        )
    return bool(cascade)


def _audit_writes(group: ItemGroup, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem]:
    """Expired events are not migrated."""
    fields = found[0]
    expires_at_ms = None if fields.get("ttl") is None else fields["ttl"] * 1000
    if expires_at_ms is not None and expires_at_ms <= context.now_ms:
        return []
    value = _event(group, fields, context.name)
    event_id = f"{_LAST_MS - value['at_ms']:015d}0000{hashlib.sha256(group.part.encode()).hexdigest()[:8]}"
    copies = [RecordItem.of(AUDIT_EVENT, context.ns, event=event_id)]
    if entity_id := value["entity_id"]:
        copies.append(RecordItem.of(AUDIT_EVENT_OF_ENTITY, context.ns, entity_id=entity_id, event=event_id))
    return [NewItem(copy.item(value, 1, expires_at_ms, context.now_ms)) for copy in copies]


def _event(group: ItemGroup, fields: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """An action that headgate does not have keeps zae-limiter's name."""
    action, side = _ACTIONS.get(fields["action"], (fields["action"], "after"))
    owner, resource = group.owner, fields.get("resource")
    of_entity = not owner.startswith("$")
    if not of_entity:
        level = "system_defaults" if owner == _SYSTEM else "resource_defaults"
        action = action.replace("limits.", f"{level}.")
    details = {"before": None, "after": None, side: plain_json(fields.get("details")) or None}
    return {
        "at_ms": _event_ms(group.part, fields["timestamp"]),
        "actor": fields.get("principal") or "unknown",
        "action": action,
        "namespace": namespace,
        "entity_id": check_entity_id(owner) if of_entity else None,
        "resource": None if resource == DEFAULT else resource,
        **details,
    }


def _event_ms(event: str, timestamp: str) -> int:
    """The id of an event has its time in milliseconds; if it does not, the timestamp has it in seconds."""
    if len(event) != 26 or not set(event) <= set(_ULID):
        return moment_ms(timestamp)
    at_ms = 0
    for letter in event[:10]:
        at_ms = at_ms * 32 + _ULID.index(letter)
    return at_ms


_Conversion = Callable[[ItemGroup, Sequence[Mapping[str, Any]], Context], "Sequence[NewItem | Addition]"]
_CONVERSIONS: Mapping[str, _Conversion] = {
    ENTITIES: _entity_writes,
    LIMITS: limits_writes,
    BUCKETS: bucket_writes,
    USAGE: usage_writes,
    AUDIT: _audit_writes,
}

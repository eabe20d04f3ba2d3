"""The keys of the records. Resources may contain `/`, nothing contains `#`."""

from __future__ import annotations

from ..core.names import REGISTRY, StoredId


def revision_key(namespace: str) -> str:
    return f"{namespace}/revision"


def entities_prefix(namespace: str) -> str:
    return f"{namespace}/entity#"


def entity_key(namespace: str, entity_id: StoredId) -> str:
    return f"{entities_prefix(namespace)}{entity_id}"


def children_prefix(namespace: str, parent_id: StoredId) -> str:
    return f"{namespace}/child#{parent_id}#"


def child_key(namespace: str, parent_id: StoredId, entity_id: StoredId) -> str:
    return f"{children_prefix(namespace, parent_id)}{entity_id}"


def limits_prefix(namespace: str) -> str:
    return f"{namespace}/limits#"


def system_limits_key(namespace: str) -> str:
    return f"{limits_prefix(namespace)}system"


def resources_prefix(namespace: str) -> str:
    return f"{limits_prefix(namespace)}resource#"


def resource_limits_key(namespace: str, resource: str) -> str:
    return f"{resources_prefix(namespace)}{resource}"


def entities_limits_prefix(namespace: str) -> str:
    return f"{limits_prefix(namespace)}entity#"


def entity_limits_prefix(namespace: str, entity_id: StoredId) -> str:
    return f"{entities_limits_prefix(namespace)}{entity_id}#"


def entity_limits_key(namespace: str, entity_id: StoredId, resource: str | None) -> str:
    """No resource: the entity's default for all resources."""
    return f"{entity_limits_prefix(namespace, entity_id)}{resource or ''}"


def custom_prefix(namespace: str, resource: str | None) -> str:
    """The index of the entities that have limits of their own on a resource."""
    return f"{namespace}/custom#{resource or ''}#"


def custom_key(namespace: str, resource: str | None, entity_id: StoredId) -> str:
    return f"{custom_prefix(namespace, resource)}{entity_id}"


def last_part(key: str) -> str:
    return key.rpartition("#")[2]


def last_id(key: str) -> StoredId:
    return StoredId(last_part(key))


def rules_key(namespace: str) -> str:
    """The rules of an API, and below the plans that go with them."""
    return f"{namespace}/rules"


def plans_key(namespace: str) -> str:
    return f"{namespace}/plans"


def leases_prefix(namespace: str) -> str:
    """Leases that are recorded."""
    return f"{namespace}/lease#"


def lease_key(namespace: str, lease_id: str) -> str:
    return f"{leases_prefix(namespace)}{lease_id}"


def instances_prefix(namespace: str) -> str:
    """Limiters that are at work."""
    return f"{namespace}/instance#"


def instance_key(namespace: str, instance_id: str) -> str:
    return f"{instances_prefix(namespace)}{instance_id}"


def threshold_key(namespace: str, entity_id: str, resource: str, limit_name: str, threshold_milli: int) -> str:
    """Until when a threshold is not told of again."""
    return f"{namespace}/threshold#{entity_id}#{resource}#{limit_name}#{threshold_milli}"


def alerts_prefix(namespace: str) -> str:
    """Thresholds that were crossed, the newest first."""
    return f"{namespace}/alert#"


def alert_key(namespace: str, alert_id: str) -> str:
    return f"{alerts_prefix(namespace)}{alert_id}"


def delivery_key(namespace: str) -> str:
    """Who delivers alerts to a webhook at the moment."""
    return f"{namespace}/delivery"


def namespaces_prefix() -> str:
    return f"{REGISTRY}/namespace#"


def namespace_key(name: str) -> str:
    return f"{namespaces_prefix()}{name}"


def audit_prefix(namespace: str) -> str:
    """What was changed in a namespace."""
    return f"{namespace}/audit#"


def audit_key(namespace: str, event_id: str) -> str:
    return f"{audit_prefix(namespace)}{event_id}"


def audited_prefix(namespace: str, entity_id: str) -> str:
    """The same, of one entity."""
    return f"{namespace}/audited#{entity_id}#"


def audited_key(namespace: str, entity_id: str, event_id: str) -> str:
    return f"{audited_prefix(namespace, entity_id)}{event_id}"

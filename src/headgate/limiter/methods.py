"""The methods of a limiter that are plans, each named once for both kinds of limiters."""

from __future__ import annotations

from ..plan import Ping, Plan, Setup
from .acquire import tokens
from .bind import PlanMethods, method
from .config import entities, limits, namespaces, preview, repair
from .engine import Engine
from .leases import detached, reconcile
from .observe import audit, overview, thresholds, usage
from .vendor import dimensions


def setup_plan(engine: Engine) -> Plan[None]:
    """Create what the store needs and lacks. Idempotent."""
    yield from Setup()


def ping_plan(engine: Engine) -> Plan[None]:
    """Return if the store answers; raise RateLimiterUnavailable if not."""
    yield from Ping()


class LimiterMethods(PlanMethods):
    available = method(tokens.available_plan)
    time_until_available = method(tokens.time_until_available_plan)
    adjust = method(tokens.adjust_plan)
    penalize = method(tokens.penalize_plan)
    reset = method(tokens.reset_plan)
    sync_from_headers = method(dimensions.sync_from_headers_plan)

    renew_lease = method(detached.renew_lease_plan)
    adjust_lease = method(detached.adjust_lease_plan)
    release_lease = method(detached.release_lease_plan)

    create_entity = method(entities.create_entity_plan)
    get_entity = method(entities.get_entity_plan)
    update_entity = method(entities.update_entity_plan)
    delete_entity = method(entities.delete_entity_plan)
    list_entities = method(entities.list_entities_plan)
    get_children = method(entities.get_children_plan)

    set_limits = method(limits.set_limits_plan)
    get_limits = method(limits.get_limits_plan)
    get_own_limits = method(entities.get_own_limits_plan)
    delete_limits = method(limits.delete_limits_plan)
    list_entities_with_custom_limits = method(limits.list_entities_with_custom_limits_plan)
    set_resource_defaults = method(limits.set_resource_defaults_plan)
    get_resource_defaults = method(limits.get_resource_defaults_plan)
    delete_resource_defaults = method(limits.delete_resource_defaults_plan)
    list_resources_with_defaults = method(limits.list_resources_with_defaults_plan)
    set_system_defaults = method(limits.set_system_defaults_plan)
    get_system_defaults = method(limits.get_system_defaults_plan)
    get_system_on_unavailable = method(limits.get_system_on_unavailable_plan)
    delete_system_defaults = method(limits.delete_system_defaults_plan)
    get_limits_version = method(limits.get_limits_version_plan)
    resolve_limits = method(limits.resolve_limits_plan)
    preview_limits = method(preview.preview_limits_plan)

    get_buckets = method(overview.get_buckets_plan)
    list_buckets = method(overview.list_buckets_plan)
    get_resource_capacity = method(overview.get_resource_capacity_plan)
    get_usage = method(usage.get_usage_plan)
    get_usage_summary = method(usage.get_usage_summary_plan)
    get_audit_events = method(audit.get_audit_events_plan)
    list_alerts = method(thresholds.list_alerts_plan)

    register_namespace = method(namespaces.register_namespace_plan)
    get_namespace = method(namespaces.get_namespace_plan)
    list_namespaces = method(namespaces.list_namespaces_plan)
    delete_namespace = method(namespaces.delete_namespace_plan)
    recover_namespace = method(namespaces.recover_namespace_plan)
    count_namespace = method(namespaces.count_namespace_plan)
    purge_namespace = method(namespaces.purge_namespace_plan)
    list_orphans = method(namespaces.list_orphans_plan)
    purge_orphan = method(namespaces.purge_orphan_plan)
    get_namespace_events = method(audit.get_namespace_events_plan)

    reconcile = method(reconcile.reconcile_plan)
    find_corrupt = method(repair.find_corrupt_plan)
    repair = method(repair.repair_plan)
    setup = method(setup_plan)
    ping = method(ping_plan)

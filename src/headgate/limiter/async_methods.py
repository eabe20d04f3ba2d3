"""The methods of the limiter for tasks that are plans, each bound once."""

from __future__ import annotations

from . import life
from .acquire import tokens
from .bind import coroutine
from .config import entities, limits, namespaces, preview, repair
from .leases import detached, reconcile
from .observe import audit, overview, usage
from .vendor import dimensions


class CoroutineMethods:
    available = coroutine(tokens.available_plan)
    time_until_available = coroutine(tokens.time_until_available_plan)
    adjust = coroutine(tokens.adjust_plan)
    penalize = coroutine(tokens.penalize_plan)
    reset = coroutine(tokens.reset_plan)
    sync_from_headers = coroutine(dimensions.sync_from_headers_plan)

    renew_lease = coroutine(detached.renew_lease_plan)
    adjust_lease = coroutine(detached.adjust_lease_plan)
    release_lease = coroutine(detached.release_lease_plan)

    create_entity = coroutine(entities.create_entity_plan)
    get_entity = coroutine(entities.get_entity_plan)
    update_entity = coroutine(entities.update_entity_plan)
    delete_entity = coroutine(entities.delete_entity_plan)
    list_entities = coroutine(entities.list_entities_plan)
    get_children = coroutine(entities.get_children_plan)

    set_limits = coroutine(limits.set_limits_plan)
    get_limits = coroutine(limits.get_limits_plan)
    get_own_limits = coroutine(entities.get_own_limits_plan)
    delete_limits = coroutine(limits.delete_limits_plan)
    list_entities_with_custom_limits = coroutine(limits.list_entities_with_custom_limits_plan)
    set_resource_defaults = coroutine(limits.set_resource_defaults_plan)
    get_resource_defaults = coroutine(limits.get_resource_defaults_plan)
    delete_resource_defaults = coroutine(limits.delete_resource_defaults_plan)
    list_resources_with_defaults = coroutine(limits.list_resources_with_defaults_plan)
    set_system_defaults = coroutine(limits.set_system_defaults_plan)
    get_system_defaults = coroutine(limits.get_system_defaults_plan)
    get_system_on_unavailable = coroutine(limits.get_system_on_unavailable_plan)
    delete_system_defaults = coroutine(limits.delete_system_defaults_plan)
    get_limits_version = coroutine(limits.get_limits_version_plan)
    resolve_limits = coroutine(limits.resolve_limits_plan)
    preview_limits = coroutine(preview.preview_limits_plan)

    get_buckets = coroutine(overview.get_buckets_plan)
    list_buckets = coroutine(overview.list_buckets_plan)
    get_resource_capacity = coroutine(overview.get_resource_capacity_plan)
    get_usage = coroutine(usage.get_usage_plan)
    get_usage_summary = coroutine(usage.get_usage_summary_plan)
    get_audit_events = coroutine(audit.get_audit_events_plan)

    register_namespace = coroutine(namespaces.register_namespace_plan)
    get_namespace = coroutine(namespaces.get_namespace_plan)
    list_namespaces = coroutine(namespaces.list_namespaces_plan)
    delete_namespace = coroutine(namespaces.delete_namespace_plan)
    recover_namespace = coroutine(namespaces.recover_namespace_plan)
    count_namespace = coroutine(namespaces.count_namespace_plan)
    purge_namespace = coroutine(namespaces.purge_namespace_plan)
    list_orphans = coroutine(namespaces.list_orphans_plan)
    purge_orphan = coroutine(namespaces.purge_orphan_plan)
    get_namespace_events = coroutine(audit.get_namespace_events_plan)

    reconcile = coroutine(reconcile.reconcile_plan)
    find_corrupt = coroutine(repair.find_corrupt_plan)
    repair = coroutine(repair.repair_plan)
    setup = coroutine(life.setup_plan)
    ping = coroutine(life.ping_plan)

"""The methods of the limiter for threads that are plans, each bound once."""

from __future__ import annotations

from . import life
from .acquire import tokens
from .bind import blocking
from .config import entities, limits, namespaces, preview, repair
from .leases import detached, reconcile
from .observe import audit, overview, usage
from .vendor import dimensions


class BlockingMethods:
    available = blocking(tokens.available_plan)
    time_until_available = blocking(tokens.time_until_available_plan)
    adjust = blocking(tokens.adjust_plan)
    penalize = blocking(tokens.penalize_plan)
    reset = blocking(tokens.reset_plan)
    sync_from_headers = blocking(dimensions.sync_from_headers_plan)

    renew_lease = blocking(detached.renew_lease_plan)
    adjust_lease = blocking(detached.adjust_lease_plan)
    release_lease = blocking(detached.release_lease_plan)

    create_entity = blocking(entities.create_entity_plan)
    get_entity = blocking(entities.get_entity_plan)
    update_entity = blocking(entities.update_entity_plan)
    delete_entity = blocking(entities.delete_entity_plan)
    list_entities = blocking(entities.list_entities_plan)
    get_children = blocking(entities.get_children_plan)

    set_limits = blocking(limits.set_limits_plan)
    get_limits = blocking(limits.get_limits_plan)
    get_own_limits = blocking(entities.get_own_limits_plan)
    delete_limits = blocking(limits.delete_limits_plan)
    list_entities_with_custom_limits = blocking(limits.list_entities_with_custom_limits_plan)
    set_resource_defaults = blocking(limits.set_resource_defaults_plan)
    get_resource_defaults = blocking(limits.get_resource_defaults_plan)
    delete_resource_defaults = blocking(limits.delete_resource_defaults_plan)
    list_resources_with_defaults = blocking(limits.list_resources_with_defaults_plan)
    set_system_defaults = blocking(limits.set_system_defaults_plan)
    get_system_defaults = blocking(limits.get_system_defaults_plan)
    get_system_on_unavailable = blocking(limits.get_system_on_unavailable_plan)
    delete_system_defaults = blocking(limits.delete_system_defaults_plan)
    get_limits_version = blocking(limits.get_limits_version_plan)
    resolve_limits = blocking(limits.resolve_limits_plan)
    preview_limits = blocking(preview.preview_limits_plan)

    get_buckets = blocking(overview.get_buckets_plan)
    list_buckets = blocking(overview.list_buckets_plan)
    get_resource_capacity = blocking(overview.get_resource_capacity_plan)
    get_usage = blocking(usage.get_usage_plan)
    get_usage_summary = blocking(usage.get_usage_summary_plan)
    get_audit_events = blocking(audit.get_audit_events_plan)

    register_namespace = blocking(namespaces.register_namespace_plan)
    get_namespace = blocking(namespaces.get_namespace_plan)
    list_namespaces = blocking(namespaces.list_namespaces_plan)
    delete_namespace = blocking(namespaces.delete_namespace_plan)
    recover_namespace = blocking(namespaces.recover_namespace_plan)
    count_namespace = blocking(namespaces.count_namespace_plan)
    purge_namespace = blocking(namespaces.purge_namespace_plan)
    list_orphans = blocking(namespaces.list_orphans_plan)
    purge_orphan = blocking(namespaces.purge_orphan_plan)
    get_namespace_events = blocking(audit.get_namespace_events_plan)

    reconcile = blocking(reconcile.reconcile_plan)
    find_corrupt = blocking(repair.find_corrupt_plan)
    repair = blocking(repair.repair_plan)
    setup = blocking(life.setup_plan)
    ping = blocking(life.ping_plan)

"""The limiters: acquiring, leases, stored limits, entities, coalescing. Plans, and two classes that run them."""

from .acquire.breaker import BreakerState
from .acquire.decision import Decision
from .acquire.group import Ask
from .acquire.options import OnError, OnUnavailable
from .asynchronous import RateLimiter
from .clock import Clock, SystemClock
from .config.cache import CacheStats
from .config.levels import ResolvedLimits, StoredLimits
from .config.namespaces import Namespace
from .config.preview import LimitsPreview
from .leases.lease import Lease, SyncLease
from .leases.reconcile import Reconciled
from .observe.audit import AuditEvent
from .observe.observers import Event, Outcome, Watcher
from .observe.overview import BucketStatus, EntityCapacity, ResourceCapacity
from .observe.request_log import RequestLog
from .observe.thresholds import Alert
from .synchronous import SyncRateLimiter
from .vendor.dimensions import Dimension
from .vendor.headers import Reading
from .vendor.sync import VendorSync

__all__ = [
    "Alert",
    "Ask",
    "AuditEvent",
    "BreakerState",
    "BucketStatus",
    "CacheStats",
    "Clock",
    "Decision",
    "Dimension",
    "EntityCapacity",
    "Event",
    "Lease",
    "LimitsPreview",
    "Namespace",
    "OnError",
    "OnUnavailable",
    "Outcome",
    "RateLimiter",
    "Reading",
    "Reconciled",
    "RequestLog",
    "ResolvedLimits",
    "ResourceCapacity",
    "StoredLimits",
    "SyncLease",
    "SyncRateLimiter",
    "SystemClock",
    "VendorSync",
    "Watcher",
]

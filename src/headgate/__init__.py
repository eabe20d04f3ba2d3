"""headgate: exact rate limits, shared by every process that uses the same store."""

from .core.errors import (
    EntityExists,
    EntityNotFound,
    HeadgateError,
    LeaseExpired,
    LimiterClosed,
    NamespaceNotFound,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
    VersionConflict,
)
from .core.limit import Limit
from .core.records import Entity, Page
from .core.status import LimitStatus
from .core.usage import UsageSummary, UsageWindow
from .limiter import (
    Ask,
    AuditEvent,
    BucketStatus,
    CacheStats,
    Clock,
    Decision,
    Dimension,
    EntityCapacity,
    Event,
    Lease,
    Namespace,
    RateLimiter,
    Reading,
    Reconciled,
    RequestLog,
    ResourceCapacity,
    SyncLease,
    SyncRateLimiter,
    VendorSync,
    Watcher,
)
from .stores import register_store

__version__ = "0.1.0"

__all__ = [
    "Ask",
    "AuditEvent",
    "BucketStatus",
    "CacheStats",
    "Clock",
    "Decision",
    "Dimension",
    "Entity",
    "EntityCapacity",
    "EntityExists",
    "EntityNotFound",
    "Event",
    "HeadgateError",
    "Lease",
    "LeaseExpired",
    "Limit",
    "LimitStatus",
    "LimiterClosed",
    "Namespace",
    "NamespaceNotFound",
    "Page",
    "RateLimitExceeded",
    "RateLimiter",
    "RateLimiterUnavailable",
    "Reading",
    "Reconciled",
    "RequestLog",
    "ResourceCapacity",
    "SyncLease",
    "SyncRateLimiter",
    "UsageSummary",
    "UsageWindow",
    "ValidationError",
    "VendorSync",
    "VersionConflict",
    "Watcher",
    "register_store",
]

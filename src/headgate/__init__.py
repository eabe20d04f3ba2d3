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
from .limiter import (
    Ask,
    BucketStatus,
    CacheStats,
    Clock,
    Decision,
    Dimension,
    EntityCapacity,
    Event,
    Lease,
    RateLimiter,
    Reading,
    Reconciled,
    ResourceCapacity,
    SyncLease,
    SyncRateLimiter,
    VendorSync,
)
from .stores import register_store

__version__ = "0.1.0"

__all__ = [
    "Ask",
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
    "NamespaceNotFound",
    "Page",
    "RateLimitExceeded",
    "RateLimiter",
    "RateLimiterUnavailable",
    "Reading",
    "Reconciled",
    "ResourceCapacity",
    "SyncLease",
    "SyncRateLimiter",
    "ValidationError",
    "VendorSync",
    "VersionConflict",
    "register_store",
]

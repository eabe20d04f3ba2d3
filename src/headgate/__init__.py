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
    BucketStatus,
    CacheStats,
    Clock,
    Decision,
    EntityCapacity,
    Lease,
    RateLimiter,
    Reconciled,
    ResourceCapacity,
    SyncLease,
    SyncRateLimiter,
)
from .stores import register_store

__version__ = "0.1.0"

__all__ = [
    "BucketStatus",
    "CacheStats",
    "Clock",
    "Decision",
    "Entity",
    "EntityCapacity",
    "EntityExists",
    "EntityNotFound",
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
    "Reconciled",
    "ResourceCapacity",
    "SyncLease",
    "SyncRateLimiter",
    "ValidationError",
    "VersionConflict",
    "register_store",
]

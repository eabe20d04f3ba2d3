"""The limiters: acquiring, leases, stored limits, entities, coalescing. Plans, and two classes that run them."""

from .asynchronous import RateLimiter
from .audit import AuditEvent
from .base import OnError, OnUnavailable
from .breaker import BreakerState
from .cache import CacheStats
from .clock import Clock, SystemClock
from .decision import Decision
from .each import Ask
from .events import Event
from .headers import Reading
from .learn import VendorSync
from .lease import Lease, SyncLease
from .levels import ResolvedLimits, StoredLimits
from .namespaces import Namespace
from .overview import BucketStatus, EntityCapacity, ResourceCapacity
from .preview import LimitsPreview
from .reconcile import Reconciled
from .record import RequestLog
from .synchronous import SyncRateLimiter
from .vendor import Dimension
from .watch import Outcome, Watcher

__all__ = [
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

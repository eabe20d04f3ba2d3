"""The limiters: acquiring, leases, stored limits, entities, coalescing. Plans, and two classes that run them."""

from .asynchronous import RateLimiter
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
from .overview import BucketStatus, EntityCapacity, ResourceCapacity
from .reconcile import Reconciled
from .synchronous import SyncRateLimiter
from .vendor import Dimension

__all__ = [
    "Ask",
    "BreakerState",
    "BucketStatus",
    "CacheStats",
    "Clock",
    "Decision",
    "Dimension",
    "EntityCapacity",
    "Event",
    "Lease",
    "OnError",
    "OnUnavailable",
    "RateLimiter",
    "Reading",
    "Reconciled",
    "ResourceCapacity",
    "SyncLease",
    "SyncRateLimiter",
    "SystemClock",
    "VendorSync",
]

"""The limiters: acquiring, leases, stored limits, entities, coalescing. Plans, and two classes that run them."""

from .asynchronous import RateLimiter
from .base import OnError, OnUnavailable
from .cache import CacheStats
from .clock import Clock, SystemClock
from .decision import Decision
from .lease import Lease, SyncLease
from .overview import BucketStatus, EntityCapacity, ResourceCapacity
from .reconcile import Reconciled
from .synchronous import SyncRateLimiter

__all__ = [
    "BucketStatus",
    "CacheStats",
    "Clock",
    "Decision",
    "EntityCapacity",
    "Lease",
    "OnError",
    "OnUnavailable",
    "RateLimiter",
    "Reconciled",
    "ResourceCapacity",
    "SyncLease",
    "SyncRateLimiter",
    "SystemClock",
]

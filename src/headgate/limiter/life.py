"""Plans about the store itself."""

from __future__ import annotations

from ..plan import Ping, Plan, Setup
from .base import BaseLimiter


def setup_plan(limiter: BaseLimiter) -> Plan[None]:
    """Create what the store needs and lacks. Idempotent."""
    yield from Setup()


def ping_plan(limiter: BaseLimiter) -> Plan[None]:
    """Return if the store answers; raise RateLimiterUnavailable if not."""
    yield from Ping()

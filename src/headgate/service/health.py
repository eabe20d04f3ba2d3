"""For whoever starts, watches and replaces the service."""

from __future__ import annotations

from .operations import operation
from .problems import Refused
from .schema import Health
from .state import Service


@operation("GET", "/healthz", None)
async def alive(service: Service) -> Health:
    """Whether the service runs."""
    return Health("alive")


@operation("GET", "/readyz", None, problems=(503,))
async def ready(service: Service) -> Health:
    """Whether the store answers, and the service is not about to end."""
    if not await service.ready():
        raise Refused(503, "the service cannot decide at the moment", [("Retry-After", "1")])
    return Health("ready")

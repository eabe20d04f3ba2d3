"""Under which dimension a request goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ...core.errors import ValidationError
from ...limiter.base import BaseLimiter
from ...limiter.vendor.dimensions import dimension_of

Which: TypeAlias = "Callable[[Any], str | None]"
Places: TypeAlias = "str | Which | Mapping[str, str | Which]"

_DEFAULT_PORTS = {"http": 80, "https": 443}


def which(limiter: BaseLimiter, places: Places) -> Which:
    """From a dimension, a function of the request, or one of these by host."""
    if isinstance(places, str):
        dimension_of(limiter.engine, places)
        return lambda request: places
    if callable(places):
        return places
    if not isinstance(places, Mapping) or not places:
        raise ValidationError(
            "dimension must be like 'openai#gpt-4o', a function of the request that returns such, or these by host, "
            f"like {{'api.openai.com': 'openai#gpt-4o'}}, not {type(places).__name__}"
        )
    by_host = {_host_and_port(host): which(limiter, place) for host, place in places.items()}

    def of_host(request: Any) -> str | None:
        url = urlsplit(str(request.url))
        host = _canonical(url.hostname or "")
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
        found = by_host.get((host, port)) or by_host.get((host, None))
        return found(request) if found else None

    return of_host


def _host_and_port(text: str) -> tuple[str, int | None]:
    """A host as it was configured. Without a port it stands for all of them, so that none is a way around."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = _canonical(parts.hostname or ""), parts.port
        if parts.netloc != text or "@" in text:
            host = ""
    except ValueError:  # of a port; and of a name that is none
        host, port = "", None
    if not host:
        raise ValidationError(f"host {text!r} cannot be read: write it like 'api.openai.com' or 'localhost:8080'")
    return host, port


def _canonical(host: str) -> str:
    """`API.OpenAI.com.` is api.openai.com."""
    return host.lower().rstrip(".").encode("idna").decode("ascii")

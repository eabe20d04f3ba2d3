"""Clients that limit themselves: transports for httpx and httpx2, an adapter for requests.

Each is in the module of that name: `from headgate.http.clients.httpx import HeadgateTransport`.
"""

from .usage import token_usage

__all__ = ["token_usage"]

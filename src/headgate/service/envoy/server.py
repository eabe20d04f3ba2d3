"""The gRPC server for Envoy, with the standard health service."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ...core.errors import HeadgateError
from .guard import Guard
from .servicer import SERVICE, RateLimitServicer

# The values that a client controls, headers that became descriptors, are far below this: see MAX_VALUE_BYTES.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_CONCURRENT = 4000
MAX_STREAMS = 1000  # of a connection
MAX_CONNECTIONS = 2000
READ_SECONDS = 20.0
IDLE_SECONDS = 1800.0  # long: Envoy may let a request pass when its connection is closed
MAX_BAD_PINGS = 2
GRACE_SECONDS = 5.0


class EnvoyServer:
    """A running server. `port` is the actual port, if it was started on port 0."""

    def __init__(self, server: Any, port: int, health_servicer: Any) -> None:
        self._server = server
        self._health = health_servicer
        self.port = port

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Report that it is shutting down, accept no more calls, and finish open ones within the grace period."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    async def wait(self) -> None:
        """Wait until it is stopped."""
        await self._server.wait_for_termination()


async def start_envoy_server(
    servicer: RateLimitServicer,
    bind: str,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_concurrent: int = MAX_CONCURRENT,
    max_connections: int = MAX_CONNECTIONS,
    read_seconds: float = READ_SECONDS,
    idle_seconds: float = IDLE_SECONDS,
    shared_port: bool = False,
) -> EnvoyServer:
    """Listen on `bind`: `127.0.0.1:8081`, `[::1]:8081`, or `unix:/run/headgate.sock`.

    `read_seconds`: how long a client may take for the HTTP/2 handshake, and to send a health request.
    `shared_port`: other workers listen on the same port.
    """
    server = grpc.aio.server(
        interceptors=[Guard(SERVICE, servicer.admits, read_seconds)],
        maximum_concurrent_rpcs=max_concurrent,
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.max_allowed_incoming_connections", max_connections),
            ("grpc.server_handshake_timeout_ms", round(read_seconds * 1000)),
            ("grpc.http2.settings_timeout", round(read_seconds * 1000)),
            ("grpc.max_connection_idle_ms", round(idle_seconds * 1000)),
            ("grpc.http2.max_ping_strikes", MAX_BAD_PINGS),
            ("grpc.so_reuseport", int(shared_port)),  # else a port in use is an error
        ],
    )
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    server.add_generic_rpc_handlers((servicer.handler(),))
    try:
        port = server.add_insecure_port(bind)
    except RuntimeError:
        raise HeadgateError(f"cannot listen on {bind!r} for Envoy: is the address right, and the port free?") from None
    await server.start()
    for service in ("", SERVICE):
        await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    return EnvoyServer(server, port, health_servicer)

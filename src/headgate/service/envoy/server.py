"""A gRPC server for Envoy, with the health service that Envoy and others ask."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ...core.errors import HeadgateError
from .servicer import SERVICE, RateLimitServicer

# What a client can fill, headers that became values of descriptors, is far below this: see MAX_VALUE_BYTES.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_CONCURRENT = 1000
GRACE_SECONDS = 5.0


class EnvoyServer:
    """A server that answers. `port` is the one it got, if it was started on port 0."""

    def __init__(self, server: Any, port: int, health_servicer: Any) -> None:
        self._server = server
        self._health = health_servicer
        self.port = port

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Say that it is going, take no more questions, and answer those that are here for so long."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)

    async def wait(self) -> None:
        """Until it is stopped."""
        await self._server.wait_for_termination()


async def start_envoy_server(
    servicer: RateLimitServicer,
    bind: str,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_concurrent: int = MAX_CONCURRENT,
) -> EnvoyServer:
    """Listen on `bind`: `127.0.0.1:8081`, `[::1]:8081`, or `unix:/run/headgate.sock`."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=max_concurrent,
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
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

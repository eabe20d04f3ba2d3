"""The servers of `headgate serve`, answering a constant: what is left of a request when nothing is decided.

python -m bench.service_constant http|grpc HOST:PORT
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import grpc
import uvloop

from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.servicer import SERVICE
from headgate.service.listen import Address
from headgate.service.serve import HttpServer, ServeSettings

# Of one decision: as long as the answers of the service.
ANSWER = (
    b'{"allowed":true,"retry_after_seconds":0.0,"degraded":false,"lease_id":null,"limits":[{"entity_id":"user-7",'
    b'"resource":"bench","limit_name":"hour","capacity":1000000000,"refill_amount":1000000000,'
    b'"refill_period_seconds":3600,"available":999999999,"requested":1,"exceeded":false,"retry_after_seconds":0.0}]}'
)
HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-length", str(len(ANSWER)).encode()),
]
RESPONSE = RateLimitResponse(overall_code=RateLimitResponse.OK)
_status = RESPONSE.statuses.add(code=RateLimitResponse.OK, limit_remaining=999999999)
_status.current_limit.requests_per_unit = 1000000000
_status.current_limit.unit = 3  # type: ignore[assignment]
_status.current_limit.name = "bench:default"
_status.duration_until_reset.seconds = 1
for _name, _value in (
    ("RateLimit-Policy", '"default";q=1000000000;w=3600'),
    ("RateLimit", '"default";r=999999999;t=1'),
):
    RESPONSE.response_headers_to_add.add(key=_name, value=_value)


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def http(address: str) -> None:
    server = HttpServer(application, ServeSettings("memory://"), lambda: None)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(server, "should_exit", True))
    with Address.parse(address, "address").bound() as listener:
        await server.serve([listener])


async def grpc_(address: str) -> None:
    async def answer(request: RateLimitRequest, context: Any) -> RateLimitResponse:
        return RESPONSE

    method = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=RateLimitRequest.FromString,
        response_serializer=RateLimitResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method}),))
    server.add_insecure_port(address)
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run({"http": http, "grpc": grpc_}[sys.argv[1]](sys.argv[2]))

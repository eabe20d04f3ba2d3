"""Checks of a gRPC call before its message is read.

gRPC reads a message before it checks the sender, and waits for the message forever. Many half-sent messages would use
up all places for decisions, and Envoy may let a request pass that gets no response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

Metadata: TypeAlias = "Sequence[tuple[str, Any]]"

MAX_HEALTH_CALLS = 64  # of each kind, so that watches leave places for checks


class Guard(grpc.aio.ServerInterceptor):
    """`admits` decides by the metadata whether a call to `service` is allowed. The health service is open to all
    clients, so it has few places, and a deadline for the message."""

    def __init__(self, service: str, admits: Callable[[Metadata], bool], read_seconds: float) -> None:
        self._prefix = f"/{service}/"
        self._admits = admits
        self._read_seconds = read_seconds
        self._open = {"check": 0, "watch": 0}

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        if not call.method.startswith(self._prefix):
            handler = await continuation(call)
            return None if handler is None else self._bounded(handler)
        if not self._admits(call.invocation_metadata or ()):
            return _REFUSED
        return await continuation(call)

    def _bounded(self, handler: Any) -> Any:
        def made(form: Any, behaviour: Any) -> Any:
            return form(behaviour, handler.request_deserializer, handler.response_serializer)

        async def check(requests: AsyncIterator[Any], context: Any) -> Any:
            with self._place("check") as free:
                return await handler.unary_unary(await self._message(requests, context, free), context)

        async def watch(requests: AsyncIterator[Any], context: Any) -> None:
            with self._place("watch") as free:
                await handler.unary_stream(await self._message(requests, context, free), context)

        if handler.unary_unary is not None:
            return made(grpc.stream_unary_rpc_method_handler, check)
        return made(grpc.stream_stream_rpc_method_handler, watch)

    @contextmanager
    def _place(self, kind: str) -> Iterator[bool]:
        self._open[kind] += 1
        try:
            yield self._open[kind] <= MAX_HEALTH_CALLS
        finally:
            self._open[kind] -= 1

    async def _message(self, requests: AsyncIterator[Any], context: Any, free: bool) -> Any:
        if not free:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_HEALTH_CALLS} health calls are open already")
        try:
            return await asyncio.wait_for(requests.__anext__(), self._read_seconds)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message within {self._read_seconds:g} s")
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")


async def _refuse(requests: AsyncIterator[Any], context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a bearer token with the scope 'decide' is needed")


_REFUSED: Any = grpc.stream_unary_rpc_method_handler(_refuse)

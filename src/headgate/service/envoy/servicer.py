"""The gRPC face of it: who may ask, and which errors are whose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

import grpc

from ...core.errors import CorruptState, NamespaceNotFound, RateLimiterUnavailable, StoreRefused, ValidationError
from ...http.answer import DEFAULT_HEADERS, HeaderKind, Headers
from ...limiter import RateLimiter
from ..problems import log_store_refused
from .decide import decide
from .descriptors import Descriptors
from .guard import Metadata
from .ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from .reply import reply
from .wishes import wishes_of

log = logging.getLogger("headgate")

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
SCOPE = "decide"
Authorize: TypeAlias = "Callable[[str | None, str], RateLimiter | None]"


class RateLimitServicer:
    """Answers `ShouldRateLimit` under the rules for descriptors.

    `authorize` is given the bearer token (None: there was none) and the scope that is needed, and says with which
    limiter to decide, or None if with none. `headers`: which are added to the answers that clients get.
    """

    def __init__(
        self, descriptors: Descriptors, authorize: Authorize, *, headers: Iterable[HeaderKind] = DEFAULT_HEADERS
    ) -> None:
        self._descriptors = descriptors
        self._authorize = authorize
        self._headers = Headers(headers)

    def use(self, descriptors: Descriptors) -> None:
        """Let other rules hold from now on."""
        self._descriptors = descriptors

    def admits(self, metadata: Metadata) -> bool:
        """Whether a call with this metadata would be answered: its message need not be known."""
        return self._authorize(_bearer(metadata), SCOPE) is not None

    async def should_rate_limit(self, request: RateLimitRequest, context: Any) -> RateLimitResponse:
        limiter = self._authorize(_bearer(context.invocation_metadata()), SCOPE)
        if limiter is None:
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, "a bearer token with the scope 'decide' is needed")
        try:
            descriptors = wishes_of(request, self._descriptors)
            verdict = await decide(limiter, [wish for wishes in descriptors for wish in wishes])
            return reply(descriptors, verdict, self._headers, limiter.clock)
        except StoreRefused as error:
            log_store_refused(error)
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the store rejects the service, which has logged why")
        except ValidationError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NamespaceNotFound as error:
            await _abort(context, grpc.StatusCode.NOT_FOUND, str(error))
        except CorruptState as error:
            log.error("%s", error)
            await _abort(context, grpc.StatusCode.DATA_LOSS, "what is stored for a descriptor is corrupt")
        except RateLimiterUnavailable as error:
            log.debug("Envoy was told that the store is away: %s", error)
            # An error, so that Envoy does as its failure_mode_deny says.
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the store of the limits is away")
        except Exception:
            log.exception("a decision for Envoy failed")
            await _abort(context, grpc.StatusCode.INTERNAL, "the decision failed; the service has written down why")

    def handler(self) -> Any:
        """To be added to a gRPC server."""
        method = grpc.unary_unary_rpc_method_handler(
            self.should_rate_limit,
            request_deserializer=RateLimitRequest.FromString,
            response_serializer=RateLimitResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})


def _bearer(metadata: Metadata | None) -> str | None:
    for name, value in metadata or ():
        if name == "authorization":
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else None
    return None


async def _abort(context: Any, code: grpc.StatusCode, details: str) -> NoReturn:
    await context.abort(code, details)
    raise AssertionError("abort() raises")

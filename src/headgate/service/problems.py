"""Errors as responses: problem details that say what to do, and reveal nothing internal."""

from __future__ import annotations

import logging
from http import HTTPStatus

from ..core.errors import (
    CorruptState,
    EntityExists,
    EntityNotFound,
    HeadgateError,
    LeaseExpired,
    NamespaceNotFound,
    RateLimiterUnavailable,
    StoreRefused,
    ValidationError,
    VersionConflict,
)
from ..http.answer import HeaderList, HttpRefusal, problem, unavailable
from ..http.failures import Minutely

log = logging.getLogger("headgate")
_minutely = Minutely()

_STATUSES: dict[type[HeadgateError], int] = {
    EntityNotFound: 404,
    NamespaceNotFound: 404,
    EntityExists: 409,
    VersionConflict: 409,
    LeaseExpired: 410,
    ValidationError: 422,
}


class ProblemError(Exception):
    """A request is refused, with problem details as the response."""

    def __init__(self, status: int, detail: str, headers: HeaderList | None = None) -> None:
        super().__init__(detail)
        title = HTTPStatus(status).phrase
        self.refusal: HttpRefusal = problem(status, "", title, detail, headers or [])

    @classmethod
    def with_(cls, refusal: HttpRefusal) -> ProblemError:
        """An error with a given response."""
        refused = cls(refusal.status, "")
        refused.refusal = refusal
        return refused


def refusal_of(error: Exception) -> HttpRefusal:
    if isinstance(error, ProblemError):
        return error.refusal
    if isinstance(error, CorruptState):
        log.error("%s", error)
        return corrupt(error)
    if isinstance(error, RateLimiterUnavailable):
        log.debug("answered 503, since the store is unavailable: %s", error)
        return unavailable()
    if isinstance(error, StoreRefused):
        log_store_refused(error)
        return unavailable()
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return ProblemError(status, _words(error)).refusal
    if isinstance(error, RecursionError):
        return ProblemError(400, "the body is nested too deeply").refusal
    log.error("a request failed", exc_info=error)
    return ProblemError(500, "the request failed; the log of the service says why").refusal


def log_store_refused(error: StoreRefused) -> None:
    """Log it once a minute: it is the same for every request."""
    times = _minutely.times("store")
    if times:
        log.error("the store rejects the service (%d times since the last message): %s", times, error)


def corrupt(error: CorruptState) -> HttpRefusal:
    """The response until the stored data is repaired."""
    return problem(503, "", "Stored state is corrupt", corrupt_words(error), [], cause="corrupt")


def corrupt_words(error: CorruptState) -> str:
    what = "a record" if error.record_key else f"the state of {error.entity_id!r} on {error.resource!r}"
    repair = "" if error.record_key else "POST /v1/reset or "
    return f"{what} is corrupt in the store: repair it with {repair}`headgate doctor --repair`"


def _words(error: Exception) -> str:
    """The library's message, unless it names a Python function or a key of the store."""
    if isinstance(error, EntityNotFound):
        why = f" ({error.why})" if error.why else ""
        return f"entity {error.entity_id!r} does not exist{why}; create it with POST /v1/entities"
    if isinstance(error, EntityExists):
        return f"entity {error.entity_id!r} exists already; change it with PATCH /v1/entities/{error.entity_id}"
    if isinstance(error, VersionConflict):
        return "it has changed in the meantime: read it again and retry"
    return str(error)

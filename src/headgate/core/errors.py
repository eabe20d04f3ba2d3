"""Every error headgate raises. Catch `HeadgateError` to catch them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .decide import Answer
    from .status import LimitStatus


class HeadgateError(Exception):
    """Base of every error raised by headgate."""


class ValidationError(HeadgateError, ValueError):
    """An argument, a URL or a stored setting cannot be used. Nothing was consumed."""


class StoreRefused(ValidationError):
    """The store answers, and rejects headgate: a wrong password, an unknown database, a missing permission.

    No outage policy applies, because it does not pass by itself: the URL or the store has to be corrected.
    """


class LimitNotFound(ValidationError):
    """No limits are configured for what is asked, or none of the name that is given."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class SlotsNotWhole(ValidationError):
    """An amount is a fraction of a slot."""


class EntityNotFound(HeadgateError, LookupError):
    """An entity that has to exist does not."""

    def __init__(self, entity_id: str, why: str = "") -> None:
        super().__init__(entity_id, why)
        self.entity_id = entity_id
        self.why = why

    def __str__(self) -> str:
        return f"entity {self.entity_id!r} does not exist{self.why and f' ({self.why})'}; create_entity() makes it"


class EntityExists(HeadgateError):
    """create_entity() was given an id that is taken."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(entity_id)
        self.entity_id = entity_id

    def __str__(self) -> str:
        return f"entity {self.entity_id!r} exists already; update_entity() changes it"


class NamespaceNotFound(HeadgateError, LookupError):
    """A namespace that has to be registered is not."""


class VersionConflict(HeadgateError):
    """A record changed between reading and writing it. Read again, then repeat the change."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"record {self.key!r} was changed by someone else in the meantime; read it again and retry"


class LeaseExpired(HeadgateError):
    """A lease was used after it had been committed or rolled back."""


class LimiterClosed(HeadgateError, RuntimeError):
    """A limiter was used after close()."""


class RateLimiterUnavailable(HeadgateError):
    """The store did not answer, or not in time."""


class Contended(RateLimiterUnavailable):
    """The store is there, but too many others want the same of it at once."""


class CorruptState(HeadgateError):
    """What is stored cannot be read, or makes no sense. Nothing was consumed.

    Of buckets `entity_id` and `resource` say whose they are; of a record `record_key` does. `why` says what is wrong.
    It is no outage: other requests are answered, and no `on_unavailable` lets this one pass.
    """

    def __init__(self, why: str, entity_id: str = "", resource: str = "", record_key: str = "") -> None:
        super().__init__(why, entity_id, resource, record_key)
        self.why = why
        self.entity_id = entity_id
        self.resource = resource
        self.record_key = record_key

    def __str__(self) -> str:
        if self.record_key:
            what, mends = f"record {self.record_key!r}", "delete it or store it again"
        else:
            what = f"the state of {self.entity_id!r} on {self.resource!r}"
            mends = f"reset({self.entity_id!r}, {self.resource!r})"
        return f"{what} is corrupt in the store: {self.why}; {mends}, or run `headgate doctor --repair`"


Unanswered: TypeAlias = RateLimiterUnavailable | CorruptState
UNANSWERED = (RateLimiterUnavailable, CorruptState)


class PartlyAnswered(HeadgateError):
    """Of a batch some requests got an error instead of an answer. `results` has either for each of them."""

    def __init__(self, results: Sequence[Answer | HeadgateError]) -> None:
        super().__init__(results)
        self.results = results

    @property
    def first(self) -> HeadgateError:
        return next(result for result in self.results if isinstance(result, HeadgateError))

    def __str__(self) -> str:
        return str(self.first)


class RateLimitExceeded(HeadgateError):
    """A request was refused. Nothing was consumed.

    `statuses` holds every limit that was checked, on the entity and on its ancestors.
    """

    def __init__(self, statuses: Sequence[LimitStatus]) -> None:
        super().__init__(tuple(statuses))
        self.statuses = tuple(statuses)

    @property
    def violations(self) -> list[LimitStatus]:
        return [status for status in self.statuses if status.exceeded]

    @property
    def passed(self) -> list[LimitStatus]:
        return [status for status in self.statuses if not status.exceeded]

    @property
    def primary_violation(self) -> LimitStatus:
        """The violation with the longest wait; one that never passes is the longest of all."""
        return max(self.violations, key=lambda status: math.inf if status.never else status.retry_after_ms or 0)

    @property
    def retry_after_ms(self) -> int | None:
        return self.primary_violation.retry_after_ms

    @property
    def retry_after_seconds(self) -> float | None:
        """Seconds until the same request passes; None if it never will."""
        return self.primary_violation.retry_after_seconds

    @property
    def retry_after_header(self) -> str | None:
        """The value of a Retry-After header: whole seconds, rounded up."""
        wait_ms = self.retry_after_ms
        return None if wait_ms is None else str(-(-wait_ms // 1000))

    def __str__(self) -> str:
        first = self.primary_violation
        more = len(self.violations) - 1
        also = f" (and {more} more)" if more else ""
        return f"rate limit exceeded for {first.entity_id!r} on {first.resource!r}: {first.explain()}{also}"

    def as_dict(self) -> dict[str, Any]:
        """The body of a 429 answer."""
        return {
            "error": "rate_limit_exceeded",
            "message": str(self),
            "retry_after_seconds": self.retry_after_seconds,
            "retry_after_ms": self.retry_after_ms,
            "limits": [status.as_dict() for status in self.statuses],
        }

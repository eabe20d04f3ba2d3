"""Between the store's plans and the wire: what is retried, and what DynamoDB's errors mean.

A reply means that the operation succeeded. A `Failed` is an answer too: a condition did not hold. Other errors are
retried until the deadline if they are temporary (throttling, a refused connection), and raised otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...plan import Plan, Sleep
from .exchange import MISCONFIGURED, Exchange, Failed, Lost, Reply, Send
from .url import DynamoDBSettings

Result: TypeAlias = "Mapping[str, Any] | Failed"
Outcome: TypeAlias = "Mapping[str, Any] | Failed | RateLimiterUnavailable"

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2
_TRIES = 12

THROTTLED = {
    "ProvisionedThroughputExceeded",
    "Throttling",
    "ThrottlingError",
    "ThrottledException",
    "RequestLimitExceeded",
    "LimitExceeded",
    "RequestThrottled",
}
ANSWERS = {"ConditionalCheckFailed", "TransactionCanceled", "TransactionConflict"}
# It may have succeeded or not, as with a lost reply.
_UNKNOWN = {"InternalServerError", "InternalFailure", "ServiceUnavailable", "TransactionInProgress"}
_DENIED = {"AccessDenied", "UnrecognizedClient", "InvalidSignature", "ExpiredToken", "MissingAuthenticationToken"}


class Denied(ValidationError):
    """The credentials do not allow it."""


class _Try:
    """An operation that is tried until it has an outcome.

    `in_doubt`: an earlier attempt may have succeeded. That a later one was throttled does not change that.
    """

    __slots__ = ("in_doubt", "outcome", "send")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.outcome: Outcome | None = None
        self.in_doubt = False


class Deliverer:
    def __init__(self, settings: DynamoDBSettings) -> None:
        self.settings = settings
        self.table = settings.table
        self.gone = 0  # how often the table was missing: what is known of it may be outdated

    def all_plan(self, sends: Sequence[Send], expected: frozenset[str] = frozenset()) -> Plan[list[Result]]:
        """One result for each, or raise the first error. `expected`: error codes that are answers here."""
        results: list[Result] = []
        for outcome in (yield from self.each_plan(sends, expected)):
            if isinstance(outcome, RateLimiterUnavailable):
                raise outcome
            results.append(outcome)
        return results

    def one_plan(self, send: Send, expected: frozenset[str] = frozenset()) -> Plan[Result]:
        (result,) = yield from self.all_plan([send], expected)
        return result

    def read_plan(self, operation: str, **parameters: Any) -> Plan[Mapping[str, Any]]:
        """The reply to an operation on the table that has no condition and may be sent twice."""
        result = yield from self.one_plan(Send(operation, {"TableName": self.table, **parameters}, repeatable=True))
        assert not isinstance(result, Failed)
        return result

    def each_plan(self, sends: Sequence[Send], expected: frozenset[str] = frozenset()) -> Plan[list[Outcome]]:
        """One result for each, or the reason why there is none."""
        tries = [_Try(send) for send in sends]
        waiting = tries
        pause = _FIRST_PAUSE
        for attempt in range(_TRIES):
            replies = yield from Exchange([one.send for one in waiting])
            waiting = [one for one, reply in zip(waiting, replies) if self._goes_again(one, reply, expected)]
            if not waiting or attempt == _TRIES - 1:
                break
            yield from Sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)
        return [one.outcome for one in tries if one.outcome is not None]

    def _goes_again(self, one: _Try, reply: Reply, expected: frozenset[str]) -> bool:
        if one.outcome is None or not _is_too_late(reply):  # otherwise the earlier error says more
            one.outcome = self._outcome(reply, expected - THROTTLED if one.in_doubt else expected)
        one.in_doubt = one.in_doubt or _is_in_doubt(reply)
        return isinstance(one.outcome, RateLimiterUnavailable) and _may_go_again(one.send, reply)

    def _outcome(self, reply: Reply, expected: frozenset[str]) -> Outcome:
        if isinstance(reply, Lost):
            return RateLimiterUnavailable(f"DynamoDB {reply.why}")
        if not isinstance(reply, Failed):
            return reply
        code = reply.code
        if code == "TransactionCanceled" and any(reason.code in THROTTLED for reason in reply.reasons):
            return RateLimiterUnavailable(f"DynamoDB throttles table {self.table!r}: {code}")
        if code in ANSWERS or code in expected:
            return reply
        if code in THROTTLED:
            return RateLimiterUnavailable(f"DynamoDB throttles table {self.table!r}: {code}: {reply.message}")
        if code in _UNKNOWN:
            return RateLimiterUnavailable(f"DynamoDB has an internal error: {code}: {reply.message}")
        raise self.unusable(reply)

    def unusable(self, failed: Failed) -> ValidationError:
        where = f"table {self.table!r} in {self.settings.where}"
        if failed.code == MISCONFIGURED:
            return self.settings.misconfigured(failed.message)
        if failed.code == "ResourceNotFound":
            self.gone += 1
            return ValidationError(
                f"{where} does not exist or is not ready: run `headgate aws deploy --name {self.table}`, or call "
                f"limiter.setup() if a table without the rest of the stack will do ({failed.message})"
            )
        if failed.code in _DENIED:
            return (Denied if failed.code == "AccessDenied" else ValidationError)(
                f"these credentials may not use {where}: {failed.message}. `headgate aws template` contains policies "
                "for applications, administrators and readers"
            )
        if failed.code == "Validation" and "index" in failed.message.lower():
            return ValidationError(
                f"{where} lacks an index: {failed.message}. Run `headgate aws update --name {self.table}`, or call "
                "limiter.setup()"
            )
        return ValidationError(f"{where} refuses: {failed.code}: {failed.message}")


def _is_in_doubt(reply: Reply) -> bool:
    return reply.sent if isinstance(reply, Lost) else isinstance(reply, Failed) and reply.code in _UNKNOWN


def _is_too_late(reply: Reply) -> bool:
    """There was no time left to send it."""
    return isinstance(reply, Lost) and reply.late and not reply.sent


def _may_go_again(send: Send, reply: Reply) -> bool:
    if isinstance(reply, Lost):
        return not reply.late and (send.repeatable or not reply.sent)
    assert isinstance(reply, Failed)
    return send.repeatable or reply.code not in _UNKNOWN

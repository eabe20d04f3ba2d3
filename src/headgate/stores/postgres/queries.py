"""Executing a statement: the version check before it, retries, and the server's errors as ours."""

from __future__ import annotations

from ...core.errors import Contended, HeadgateError, RateLimiterUnavailable, ValidationError, VersionConflict
from ...plan import Plan, Sleep
from ..server import Lost, TimeLeft
from . import literal
from .exchange import ErrorResponse, Execute, Reply, Row, Statement
from .schema import FUNCTIONS, VERSION
from .url import PostgresSettings

_PAUSE_SECONDS = 0.005
_RETRIES = 2  # retries after a lost connection
_ABORTED = ("40001", "40P01")  # by the server, in favour of another transaction: nothing was done
_NOT_PREPARED = ("26000", "42P05")  # it is missing, or it exists already
_NOT_SET_UP = ("3F000", "42P01", "42883", "42703")
# A schema that is older than the revisions of functions has no such column.
_VERSION = "SELECT max(version), max((to_jsonb(v) ->> 'functions')::integer) FROM headgate.version v"


class Queries:
    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self.prepares = settings.prepare
        self.checked = False  # the schema has our version
        self._version = self._statement(_VERSION)

    def _statement(self, sql: str, *, script: bool = False) -> Statement:
        return Statement(sql, self._settings.schema, script=script)

    def rows_plan(
        self,
        statement: Statement,
        *parameters: bytes | None,
        repeatable: bool = True,
        checks: bool = True,
        first: Reply | None = None,
    ) -> Plan[list[Row]]:
        """`repeatable`: it may be sent again when it is unknown whether it was done. `checks`: it needs the schema.
        `first`: the reply to a first attempt that was already made."""
        if checks and not self.checked:
            yield from self.check_plan()
        reply = first
        lost = 0
        while True:
            if reply is None:
                reply = yield from Execute(statement, parameters)
            if isinstance(reply, list):
                return reply
            if isinstance(reply, ErrorResponse):
                yield from self._retry_plan(reply)
            else:
                lost += 1
                yield from _lost_plan(reply, again=lost <= _RETRIES and (repeatable or not reply.sent))
            reply = None

    def _retry_plan(self, error: ErrorResponse) -> Plan[None]:
        """Returns if the statement should be sent again."""
        if error.code in _NOT_PREPARED:
            self.prepares = False  # behind a pooler, each call may reach another server process
        elif error.code in _ABORTED and (yield from TimeLeft()):
            yield from Sleep(_PAUSE_SECONDS)
        else:
            raise self._explained(error)

    def _explained(self, error: ErrorResponse) -> HeadgateError:
        code, text = error
        schema = self._settings.schema
        if code == "HG409":
            return VersionConflict(text)
        if code == "HG426":
            return self._wrong_version(int(text))
        if code in _NOT_SET_UP:
            what = f"schema {schema!r} of the database is not set up ({text})"
            return ValidationError(f"{what}: run `headgate setup`, or call limiter.setup()")
        if code == "42501":
            return ValidationError(f"PostgreSQL says {text!r}: grant the role of the URL what docs/postgres.md lists")
        if code == "55P03":
            return Contended("PostgreSQL: others held a lock on the same buckets for too long")
        return RateLimiterUnavailable(f"PostgreSQL says {text!r} (SQLSTATE {code})")

    def _wrong_version(self, found: int) -> ValidationError:
        what = f"schema {self._settings.schema!r} of the database has version {found}, this headgate needs {VERSION}"
        remedy = "run `headgate setup`, or call limiter.setup()" if found < VERSION else "upgrade headgate"
        return ValidationError(f"{what}: {remedy}")

    def check_plan(self) -> Plan[None]:
        found, functions = yield from self._version_plan()
        if found != VERSION:
            raise self._wrong_version(found)
        if functions < FUNCTIONS:
            raise ValidationError(
                f"schema {self._settings.schema!r} of the database has the functions of an earlier headgate (revision "
                f"{functions}, this one needs {FUNCTIONS}): run `headgate setup`, or call limiter.setup(); "
                "clients of the earlier one can use the new functions"
            )
        self.checked = True

    def _version_plan(self) -> Plan[tuple[int, int]]:
        """The versions of the tables and of the functions."""
        ((version, functions),) = yield from self.rows_plan(self._version, checks=False)
        return int(version or 0), int(functions or 1)

    def _patience_plan(self) -> Plan[bytes | None]:
        """How many milliseconds to wait for a lock, so that the server gives up before we do."""
        left_ms = yield from TimeLeft()
        return literal.number(patience_ms(left_ms))


def _lost_plan(lost: Lost, *, again: bool) -> Plan[None]:
    if not again or not (yield from TimeLeft()):
        raise RateLimiterUnavailable(f"PostgreSQL {lost.why}")


def patience_ms(left_ms: int) -> int:
    return max(1, left_ms * 9 // 10)


def text_of(value: bytes | None) -> str:
    assert value is not None
    return value.decode()


def number_of(value: bytes | None) -> int:
    assert value is not None
    return int(value)

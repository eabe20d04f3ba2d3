"""A log of requests, read line by line: it may be larger than the memory.

    {"at": "2026-01-31T14:00:00.125Z", "entity": "acme", "resource": "chat", "consume": {"rpm": 1}, "allowed": true}

`at` may also be milliseconds since 1970. `allowed`, the decision at that time, is optional. Other fields are ignored. A
line {"headgate_log": 1, "sample": 0.01} says that the log contains only that share of the entities.
"""

from __future__ import annotations

import gzip
import heapq
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeGuard

from ..core.errors import ValidationError

LONGEST_LINE = 64 * 1024
DISORDER_MS = 5_000  # lines of several threads and processes may be out of order by this much
_GZIP = b"\x1f\x8b"
_LAST_MS = 253_402_300_800_000  # the year 10000
_from_json = json.JSONDecoder().decode


class LogError(ValidationError):
    """A line of a log is invalid."""


class LoggedRequest(NamedTuple):
    at_ms: int
    entity_id: str
    resource: str
    consume: Mapping[str, Any]
    allowed: bool | None = None  # None: the log does not say
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class BadLines:
    """Invalid lines: an error, or skipped and counted."""

    def __init__(self, *, skip: bool = False) -> None:
        self.count = 0
        self.first = ""
        self._skip = skip

    def add(self, place: str, why: object) -> None:
        message = f"{place}: {why}"
        if not self._skip:
            raise LogError(message)
        self.first = self.first or message
        self.count += 1


class RequestLogFile:
    """The requests of a file, ordered by time; `-` is standard input. It may be compressed with gzip.

    `sample`: the share of the entities that the log contains, as far as it was read.
    """

    def __init__(self, path: str, bad: BadLines | None = None, *, disorder_ms: int = DISORDER_MS) -> None:
        self.path = path
        self.sample = 1.0
        self._bad = bad or BadLines()
        self._disorder_ms = disorder_ms

    def __iter__(self) -> Iterator[LoggedRequest]:
        return _in_order(self._requests(), self._disorder_ms)

    def _requests(self) -> Iterator[LoggedRequest]:
        for number, line in enumerate(self._lines(), 1):
            try:
                request = self._read(line, number)
            except ValueError as error:
                self._bad.add(f"{self.path}:{number}", error)
                continue
            if request is not None:
                yield request

    def _lines(self) -> Iterator[bytes]:
        try:
            with ExitStack() as stack:
                file: Any = sys.stdin.buffer if self.path == "-" else stack.enter_context(open(self.path, "rb"))
                if file.peek(2)[:2] == _GZIP:
                    file = stack.enter_context(gzip.GzipFile(fileobj=file))
                yield from _cut(file)
        except (EOFError, zlib.error) as error:
            raise LogError(f"{self.path!r} is truncated: {error}") from None
        except OSError as error:  # also errors of gzip
            raise LogError(f"{self.path!r} cannot be read: {error.strerror or error}") from None

    def _read(self, line: bytes, number: int) -> LoggedRequest | None:
        if line.isspace():
            return None
        found = _object(line)
        if "headgate_log" in found:
            self.sample = min(self.sample, _sample(found))
            return None
        get = found.get
        entity_id, resource, consume, allowed = get("entity"), get("resource"), get("consume"), get("allowed")
        if not (_is_text(entity_id) and _is_text(resource) and type(consume) is dict and consume):
            raise ValueError(_what_is_wrong(found))
        if allowed is not None and type(allowed) is not bool:
            raise ValueError(_what_is_wrong(found))
        return LoggedRequest(_at_ms(get("at")), entity_id, resource, consume, allowed, self.path, number)


def _is_text(value: Any) -> TypeGuard[str]:
    return type(value) is str and value != ""


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a line is longer than {LONGEST_LINE:,} bytes")
    try:
        found = _from_json(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f'a line must be an object like {{"at": ..., "entity": ...}}, not {_shown(found)}')
    return found


def _cut(file: Any) -> Iterator[bytes]:
    """Lines; of those that are too long, only the beginning."""
    for line in iter(partial(file.readline, LONGEST_LINE + 1), b""):
        yield line
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE + 1)


def _at_ms(at: Any) -> int:
    if type(at) is str:
        try:
            # Python 3.10 does not parse the Z.
            moment = datetime.fromisoformat(f"{at[:-1]}+00:00" if at.endswith(("Z", "z")) else at)
        except ValueError:
            raise ValueError(f"at {_shown(at)} is not a time: write 2026-01-31T14:00:00Z, or milliseconds") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return round(moment.timestamp() * 1000)
    if type(at) not in (int, float) or not 0 <= at < _LAST_MS:
        raise ValueError(f"at must be a time like 2026-01-31T14:00:00Z, or milliseconds since 1970, not {_shown(at)}")
    return int(at)


def _what_is_wrong(found: Mapping[str, Any]) -> str:
    for name, kind, example in (
        ("entity", str, '"acme"'),
        ("resource", str, '"chat"'),
        ("consume", dict, '{"rpm": 1}'),
    ):
        if name not in found:
            return f"{name} is missing, like {example}"
        if not isinstance(found[name], kind) or not found[name]:
            return f"{name} must be something like {example}, not {_shown(found[name])}"
    return f"allowed must be true or false, not {_shown(found['allowed'])}"


def _sample(found: Mapping[str, Any]) -> float:
    sample = found.get("sample", 1.0)
    if type(sample) not in (int, float) or not 0 < sample <= 1:
        raise ValueError(f"sample must be a number above 0 and up to 1, not {_shown(sample)}")
    return float(sample)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _in_order(requests: Iterable[LoggedRequest], disorder_ms: int) -> Iterator[LoggedRequest]:
    """By time, in input order within a millisecond. Each is held back until no earlier one can follow."""
    held: list[tuple[int, int, LoggedRequest]] = []
    newest_ms = 0
    for number, request in enumerate(requests):
        at_ms = request.at_ms
        if at_ms < newest_ms - disorder_ms:
            late = (newest_ms - at_ms) / 1000
            raise LogError(
                f"{request.place}: this is {late:,.3f} s earlier than a line before it: lines may be out of order by "
                f"{disorder_ms / 1000:g} s at most, so sort the file by time first"
            )
        newest_ms = max(newest_ms, at_ms)
        heapq.heappush(held, (at_ms, number, request))
        while held[0][0] < newest_ms - disorder_ms:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]


def merged(logs: Iterable[Iterable[LoggedRequest]]) -> Iterator[LoggedRequest]:
    """Several logs as one."""
    return heapq.merge(*logs, key=itemgetter(0))

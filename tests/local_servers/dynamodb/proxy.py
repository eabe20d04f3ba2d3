"""A proxy before an engine that records what passes, and fails on demand. It is HTTP only: any client may use it."""

from __future__ import annotations

import errno
import json
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from headgate.testing.servers.process import ServerFailedError, free_port

from .endpoint import Endpoint
from .listener import Handle, Listener, NoReply, Reply, Request

_STATUS = {"InternalServerError": 500, "InternalFailure": 500, "ServiceUnavailable": 503}
_ATTEMPTS = 10


@dataclass
class _Fault:
    play: Handle
    operation: str | None
    left: int


class Proxy(Endpoint):
    """It passes everything on to `endpoint_url` until told otherwise.

    Faults happen in the order in which they were asked for, each to the next `times` requests, or to the next ones of
    an `operation`. A client that tries again by itself meets the next fault, and is counted again.
    """

    def __init__(self, endpoint_url: str) -> None:
        engine = urlsplit(endpoint_url).port
        if engine is None:
            raise ValueError(f"endpoint_url {endpoint_url!r} has no port: give that of an engine")
        self._engine = engine
        self._lock = threading.Lock()
        self.connections = 0
        """How many were opened to here."""
        self._requests: list[Request] = []
        self._consumed: list[tuple[str, dict[str, Any]]] = []
        self._faults: list[_Fault] = []
        self._delay_seconds = 0.0
        self._ended = threading.Event()
        self._listener: Listener | None = None
        self._listen_on_a_free_port()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def requests(self) -> list[Request]:
        """What arrived, be it that it went no further."""
        with self._lock:
            return list(self._requests)

    @property
    def consumed(self) -> list[tuple[str, dict[str, Any]]]:
        """Operation and ConsumedCapacity, one for each table, where a request asked for it."""
        with self._lock:
            return list(self._consumed)

    @property
    def left(self) -> int:
        """How many faults are still to happen."""
        with self._lock:
            return sum(fault.left for fault in self._faults)

    def count(self, operation: str | None = None) -> int:
        """How many requests arrived."""
        return sum(operation in (None, request.operation) for request in self.requests)

    def units(self) -> float:
        """The capacity units of all requests that asked for them."""
        return sum(float(capacity["CapacityUnits"]) for _, capacity in self.consumed)

    def forget(self) -> None:
        """Forget what passed, every fault that did not happen yet, and the delay."""
        with self._lock:
            self.connections = 0
            self._requests.clear()
            self._consumed.clear()
            self._faults.clear()
            self._delay_seconds = 0.0

    def answer(self, times: int, status: int, body: Mapping[str, Any], *, operation: str | None = None) -> None:
        """Answer in place of the engine, which sees nothing."""
        encoded = json.dumps(body).encode()

        def play(request: Request, pass_on: Callable[[], Reply]) -> Reply:
            headers = {
                "Content-Type": "application/x-amz-json-1.0",
                "x-amzn-RequestId": uuid4().hex,
                "x-amz-crc32": str(zlib.crc32(encoded)),
            }
            return Reply(status, headers, encoded)

        self._add(play, times, operation)

    def fail(self, times: int, code: str, message: str = "", *, operation: str | None = None, **members: Any) -> None:
        """Answer with an error, such as ThrottlingException; `members` are further parts of it."""
        body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message or f"{code} on demand"}
        self.answer(times, _STATUS.get(code, 400), {**body, **members}, operation=operation)

    def cancel(self, times: int, *reasons: str | Mapping[str, Any]) -> None:
        """Cancel transactions, for one reason for each of their items: a code such as "None", or all of its parts."""
        whole = [{"Code": reason} if isinstance(reason, str) else dict(reason) for reason in reasons]
        codes = ", ".join(reason["Code"] for reason in whole)
        self.fail(
            times,
            "TransactionCanceledException",
            f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
            operation="TransactWriteItems",
            CancellationReasons=whole,
        )

    def lose_replies(self, times: int = 1, *, operation: str | None = None, silently: bool = False) -> None:
        """The engine does it, and the client never learns: the connection ends, or if `silently` nothing comes."""

        def play(request: Request, pass_on: Callable[[], Reply]) -> Reply:
            pass_on()
            raise NoReply(silent=silently)

        self._add(play, times, operation)

    def refuse(self, times: int = 1, *, operation: str | None = None, silently: bool = False) -> None:
        """The engine sees nothing, and the client learns as little. For a port where nobody listens, see `down`."""

        def play(request: Request, pass_on: Callable[[], Reply]) -> Reply:
            raise NoReply(silent=silently)

        self._add(play, times, operation)

    def before(self, action: Callable[[Request], object], times: int = 1, *, operation: str | None = None) -> None:
        """Do something before the engine gets the request: another writer slips in, or it arrives late."""

        def play(request: Request, pass_on: Callable[[], Reply]) -> Reply:
            action(request)
            return pass_on()

        self._add(play, times, operation)

    def after(self, action: Callable[[Request], object], times: int = 1, *, operation: str | None = None) -> None:
        """Do something when the engine has done its part, and before the client learns."""

        def play(request: Request, pass_on: Callable[[], Reply]) -> Reply:
            reply = pass_on()
            action(request)
            return reply

        self._add(play, times, operation)

    def delay(self, seconds: float) -> None:
        """From now on every reply is late."""
        self._delay_seconds = seconds

    def down(self) -> None:
        """Cut every connection, and listen no more: who comes now is refused."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._ended.set()
            listener.end()
            if listener.failures:
                raise ServerFailedError("something failed inside the proxy") from listener.failures[0]

    def up(self) -> None:
        """Listen again, on the same port."""
        if self._listener is None:
            self._ended.clear()
            self._listener = Listener(self.port, self._engine, self._handle, self._connected)

    def close(self) -> None:
        """End it. What went wrong in it meanwhile, such as in an action, is raised here."""
        self.down()

    def _listen_on_a_free_port(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.port = free_port()
            try:
                self.up()
                return
            except OSError as error:
                # Somebody may take the port between the look and the listener.
                if attempt == _ATTEMPTS - 1 or error.errno != errno.EADDRINUSE:
                    raise

    def _add(self, play: Handle, times: int, operation: str | None) -> None:
        with self._lock:
            self._faults.append(_Fault(play, operation, times))

    def _connected(self) -> None:
        self.connections += 1

    def _handle(self, request: Request, pass_on: Callable[[], Reply]) -> Reply:
        def pass_on_and_record() -> Reply:
            reply = pass_on()
            self._record_capacity(request.operation, reply)
            return reply

        play = self._next_fault(request)
        reply = play(request, pass_on_and_record) if play else pass_on_and_record()
        if self._delay_seconds:
            self._ended.wait(self._delay_seconds)
        return reply

    def _next_fault(self, request: Request) -> Handle | None:
        with self._lock:
            self._requests.append(request)
            for fault in self._faults:
                if fault.left and fault.operation in (None, request.operation):
                    fault.left -= 1
                    return fault.play
        return None

    def _record_capacity(self, operation: str, reply: Reply) -> None:
        found = reply.data.get("ConsumedCapacity") or []
        with self._lock:
            self._consumed += [(operation, one) for one in ([found] if isinstance(found, dict) else found)]

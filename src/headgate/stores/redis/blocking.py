"""The store as blocking calls, safe to use from many threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis import connection as redis_connection
from redis import exceptions

from ...core.decide import Answer, Request
from ...plan import Call, run
from ..replies import AskAgain
from ..server import Lost, ServerCall, ServerStore
from .driver import NOT_LET_IN, REFUSALS, RESTED_SECONDS, connection, pack_command, packed, reply_error
from .exchange import Arguments, HangUp, Pipeline, Replies, SendPipelines
from .notifications import open_notifications
from .plans import RedisPlans
from .url import Address, RedisSettings


class RedisStore(ServerStore):
    own_clock = True
    _plans: RedisPlans
    _wire: _RedisWire

    def __init__(self, settings: RedisSettings, timeout_seconds: float) -> None:
        self.notifications = open_notifications(settings, lambda: self._plans.router.one_server, timeout_seconds)
        plans = RedisPlans(settings, lambda: self.notifications.listener)
        super().__init__(plans, _RedisWire(settings, timeout_seconds), _RedisCall)

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        address = self._plans.router.one_server
        if address is None:
            return self._run(self._plans.settle_plan(batch, now_ms))
        encoded = self._plans.encoder.encode(batch, now_ms)
        if not encoded.repeatable:
            return self._run(self._plans.settle_encoded_plan(encoded, now_ms))
        # The shortcut past the plan, which is only needed when something goes wrong.
        call = _RedisCall(self._wire)
        reply = call.send_one(address, encoded.arguments)
        if reply.__class__ is list:
            try:
                return encoded.answers(reply)
            except AskAgain:
                pass
        first: Replies = reply if isinstance(reply, Lost) else [reply]
        return run(self._plans.settle_encoded_plan(encoded, now_ms, [first]), call.perform)

    def close(self) -> None:
        self.notifications.close()
        self._wire.close()


class _RedisWire:
    """Idle connections, by server."""

    def __init__(self, settings: RedisSettings, timeout_seconds: float) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        self._resting: dict[Address, deque[tuple[Any, float]]] = {}
        self._closed = False

    def take(self, pipeline: Pipeline, deadline: float) -> Any:
        """A connection to the server. Raises redis-py's exceptions: nothing was sent."""
        if self._pid != os.getpid():  # the parent still uses those connections
            self._pid, self._resting = os.getpid(), {}
        resting = self._resting.get(pipeline.address)
        while resting:
            try:
                found, _ = resting.pop()
            except IndexError:  # another thread was faster
                break
            if not _is_dead(found):
                return found
            found.disconnect()
        left = max(deadline - time.monotonic(), 0.001)
        timeouts = {"socket_connect_timeout": left, "socket_timeout": left}
        made = connection(
            redis_connection, self._settings, pipeline.address, to_sentinel=pipeline.to_sentinel, **timeouts
        )
        made.connect()
        made._sock.settimeout(self.timeout_seconds)  # redis-py has no other way to say it after connecting
        return made

    def take_at_rest(self, address: Address) -> Any:
        """A connection that was used a moment ago, or None. The server may have closed it: that is not checked."""
        resting = self._resting.get(address)
        if not resting or self._pid != os.getpid():
            return None
        try:
            found, since = resting.pop()
        except IndexError:  # another thread was faster
            return None
        if time.monotonic() - since < RESTED_SECONDS:
            return found
        resting.append((found, since))
        return None

    def rest(self, address: Address, used: Any) -> None:
        if self._closed:
            used.disconnect()
            return
        resting = self._resting.get(address)
        if resting is None:
            resting = self._resting.setdefault(address, deque())
        resting.append((used, time.monotonic()))

    def hang_up(self, address: Address) -> None:
        resting = self._resting.pop(address, None)
        while resting:
            try:
                used, _ = resting.pop()
            except IndexError:  # another thread was faster
                break
            used.disconnect()

    def close(self) -> None:
        self._closed = True
        for address in list(self._resting):
            self.hang_up(address)


def _is_dead(resting: Any) -> bool:
    try:
        return bool(resting.can_read(timeout=0))  # an idle connection is readable only when it was closed
    except (exceptions.RedisError, OSError):
        return True


class _RedisCall(ServerCall):
    __slots__ = ()
    _wire: _RedisWire

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, SendPipelines):
            until = min(self.deadline, time.monotonic() + self.left * call.share)
            # Connecting to a server that hangs must not use up the time of the others.
            share = 0.5 if len(call.pipelines) > 1 else 1
            begun = [(pipeline, self._send(pipeline, until, share)) for pipeline in call.pipelines]
            return [
                used if isinstance(used, (Lost, list)) else self._receive(pipeline, used, until)
                for pipeline, used in begun
            ]
        if isinstance(call, HangUp):
            return self._wire.hang_up(call.address)
        return super().perform(call)

    def send_one(self, address: Address, arguments: Arguments) -> Any:
        """The reply to one command, or Lost: `perform`, without its overhead while all goes well."""
        used = self._wire.take_at_rest(address)
        pipeline = Pipeline(address, (arguments,))
        if used is None:
            (replies,) = self.perform(SendPipelines((pipeline,)))
            return replies if isinstance(replies, Lost) else replies[0]
        try:
            used.send_packed_command((pack_command(arguments),), check_health=False)
            reply = used.read_response()
        except exceptions.ResponseError as error:
            reply = reply_error(error)
        except REFUSALS as error:
            used.disconnect()
            return reply_error(error)
        except (exceptions.RedisError, OSError) as error:
            return self._broken(pipeline, used, error)
        except BaseException:
            used.disconnect()
            raise
        self._wire.rest(address, used)
        return reply

    def _send(self, pipeline: Pipeline, until: float, share: float) -> Any:
        """The connection that the replies will come on, or their replacement."""
        if self.left <= 0:
            return self.late(sent=False)
        try:
            now = time.monotonic()
            used = self._wire.take(pipeline, now + (until - now) * share)
        except NOT_LET_IN as error:
            return [reply_error(error)] * len(pipeline.commands)
        except (exceptions.RedisError, OSError) as error:
            return Lost(f"cannot be reached: {error}", sent=False, late=self.left <= 0)
        try:
            used.send_packed_command(packed(pipeline.commands), check_health=False)
        except (exceptions.RedisError, OSError) as error:
            return self._broken(pipeline, used, error)
        except BaseException:
            used.disconnect()
            raise
        return used

    def _receive(self, pipeline: Pipeline, used: Any, until: float) -> Replies:
        replies: list[Any] = []
        try:
            for _ in pipeline.commands:
                left = until - time.monotonic()
                if left < 0.9 * self._wire.timeout_seconds and not used.can_read(timeout=max(left, 0)):
                    raise exceptions.TimeoutError
                try:
                    replies.append(used.read_response())
                except exceptions.ResponseError as error:
                    replies.append(reply_error(error))
        except REFUSALS as error:
            used.disconnect()
            return replies + [reply_error(error)] * (len(pipeline.commands) - len(replies))
        except (exceptions.RedisError, OSError) as error:
            return self._broken(pipeline, used, error)
        except BaseException:
            used.disconnect()
            raise
        self._wire.rest(pipeline.address, used)
        return replies

    def _broken(self, pipeline: Pipeline, used: Any, error: Exception) -> Lost:
        used.disconnect()
        self._wire.hang_up(pipeline.address)
        if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
            return self.late(sent=True)
        return Lost(f"closed the connection: {error}", sent=True, late=self.left <= 0)

"""The store as blocking calls, safe to use from many threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from redis import connection as redis_connection
from redis import exceptions

from ...core.decide import Answer, Request
from ...plan import Call, Plan, Sleep, run
from ..planned import PlannedStore
from .driver import NOT_LET_IN, REFUSALS, RESTED_SECONDS, connection, pack_command, packed, reply_error
from .exchange import Arguments, Exchange, HangUp, Lost, MoreTime, Replies, Send
from .notifications import hearing
from .plans import Plans
from .url import Address, Settings

T = TypeVar("T")


class RedisStore(PlannedStore):
    own_clock = True

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self.hearing = hearing(settings, lambda: self._plans.one_server, timeout_seconds)
        self._plans = Plans(settings, lambda: self.hearing.listener)
        super().__init__(self._plans)
        self._wire = _Wire(settings, timeout_seconds)

    @property
    def usage_ms(self) -> int:
        return self._plans.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._plans.keep_usage(ms)

    def _run(self, plan: Plan[T]) -> T:
        return run(plan, _Talk(self._wire).perform)

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        address = self._plans.one_server
        if address is None:
            return self._run(self._plans.settle_plan(batch, now_ms))
        encoded = self._plans.encoder.encode(batch, now_ms)
        if not encoded.repeatable:
            return self._run(self._plans.settle_encoded_plan(encoded))
        # The short cut past the plan, which only has to deal with what goes wrong.
        talk = _Talk(self._wire)
        reply = talk.ask(address, encoded.arguments)
        if reply.__class__ is list:
            return encoded.answers(reply)
        first: Replies = reply if isinstance(reply, Lost) else [reply]
        return run(self._plans.settle_encoded_plan(encoded, [first]), talk.perform)

    def close(self) -> None:
        self.hearing.close()
        self._wire.close()


class _Wire:
    """Connections at rest, by server."""

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        self._resting: dict[Address, deque[tuple[Any, float]]] = {}
        self._closed = False

    def take(self, send: Send, deadline: float) -> Any:
        """A connection to the server. Raises redis-py's exceptions: nothing was sent."""
        if self._pid != os.getpid():  # the parent goes on using those
            self._pid, self._resting = os.getpid(), {}
        resting = self._resting.get(send.address)
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
        made = connection(redis_connection, self._settings, send.address, to_sentinel=send.to_sentinel, **timeouts)
        made.connect()
        made._sock.settimeout(self.timeout_seconds)  # redis-py has no other way to say it after connecting
        return made

    def take_at_rest(self, address: Address) -> Any:
        """A connection that was used a moment ago, or None. The server may have closed it: nobody looks."""
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
        return bool(resting.can_read(timeout=0))  # it says nothing unasked, unless that it is closed
    except (exceptions.RedisError, OSError):
        return True


class _Talk:
    """One call of the store, with its deadline."""

    __slots__ = ("_deadline", "_wire")

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._deadline = time.monotonic() + wire.timeout_seconds

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Exchange):
            until = min(self._deadline, time.monotonic() + self._left() * call.share)
            # To connect to one that hangs must not use up the time of the others.
            share = 0.5 if len(call.sends) > 1 else 1
            begun = [(send, self._send(send, until, share)) for send in call.sends]
            return [
                used if isinstance(used, (Lost, list)) else self._receive(send, used, until) for send, used in begun
            ]
        if isinstance(call, MoreTime):
            self._deadline = time.monotonic() + self._wire.timeout_seconds
            return None
        if isinstance(call, HangUp):
            return self._wire.hang_up(call.address)
        assert isinstance(call, Sleep)
        return time.sleep(min(call.seconds, max(self._left(), 0)))

    def ask(self, address: Address, arguments: Arguments) -> Any:
        """The reply to one command, or Lost: an exchange, with nothing in the way as long as all goes well."""
        used = self._wire.take_at_rest(address)
        send = Send(address, (arguments,))
        if used is None:
            (replies,) = self.perform(Exchange((send,)))
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
            return self._broken(send, used, error)
        except BaseException:
            used.disconnect()
            raise
        self._wire.rest(address, used)
        return reply

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _send(self, send: Send, until: float, share: float) -> Any:
        """The connection that the replies will come on, or what became of it instead."""
        if self._left() <= 0:
            return self._late(sent=False)
        try:
            now = time.monotonic()
            used = self._wire.take(send, now + (until - now) * share)
        except NOT_LET_IN as error:
            return [reply_error(error)] * len(send.commands)
        except (exceptions.RedisError, OSError) as error:
            return Lost(f"cannot be reached: {error}", sent=False, late=self._left() <= 0)
        try:
            used.send_packed_command(packed(send.commands), check_health=False)
        except (exceptions.RedisError, OSError) as error:
            return self._broken(send, used, error)
        except BaseException:
            used.disconnect()
            raise
        return used

    def _receive(self, send: Send, used: Any, until: float) -> Replies:
        replies: list[Any] = []
        try:
            for _ in send.commands:
                left = until - time.monotonic()
                if left < 0.9 * self._wire.timeout_seconds and not used.can_read(timeout=max(left, 0)):
                    raise exceptions.TimeoutError
                try:
                    replies.append(used.read_response())
                except exceptions.ResponseError as error:
                    replies.append(reply_error(error))
        except REFUSALS as error:
            used.disconnect()
            return replies + [reply_error(error)] * (len(send.commands) - len(replies))
        except (exceptions.RedisError, OSError) as error:
            return self._broken(send, used, error)
        except BaseException:
            used.disconnect()
            raise
        self._wire.rest(send.address, used)
        return replies

    def _broken(self, send: Send, used: Any, error: Exception) -> Lost:
        used.disconnect()
        self._wire.hang_up(send.address)
        if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
            return self._late(sent=True)
        return Lost(f"closed the connection: {error}", sent=True, late=self._left() <= 0)

    def _late(self, *, sent: bool) -> Lost:
        return Lost(f"did not answer within {self._wire.timeout_seconds:g} s", sent=sent, late=self._left() <= 0)

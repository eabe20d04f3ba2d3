"""The store as blocking calls, safe to use from many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ...core.decide import Answer, Request
from ...core.errors import ValidationError
from ...plan import Call
from ..server import ServerCall, ServerStore
from .driver import CONNECTIONS, LOADER, NO_CLIENT, client_options, config_options, late, sent
from .exchange import Exchange, Reply, Send
from .plans import DynamoDBPlans
from .url import DynamoDBSettings


class DynamoDBStore(ServerStore):
    own_clock = False
    _plans: DynamoDBPlans
    _wire: _Wire

    def __init__(self, settings: DynamoDBSettings, timeout_seconds: float) -> None:
        super().__init__(DynamoDBPlans(settings), _Wire(settings, timeout_seconds), _Talk)

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        return self._run(self._plans.settle_plan(batch, now_ms))

    def close(self) -> None:
        self._wire.close()


class _Wire:
    """A client of boto3, which many threads may use, and threads for what goes out side by side."""

    def __init__(self, settings: DynamoDBSettings, timeout_seconds: float) -> None:
        self.settings = settings
        self.timeout_seconds = timeout_seconds
        self._lock = threading.RLock()
        self._pid = 0
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._pid == os.getpid()  # neither goes through a fork

    def client(self) -> Any:
        if not self.is_open:
            with self._lock:
                if not self.is_open:
                    self._client = self._made()
                    self._threads = None
                    self._pid = os.getpid()
        return self._client

    def _made(self) -> Any:
        try:
            import boto3
        except ImportError as error:
            raise ValidationError("a DynamoDB store needs boto3: pip install 'headgate[dynamodb]'") from error
        from botocore.config import Config
        from botocore.session import Session

        try:
            session = Session(profile=self.settings.profile)
            session.register_component("data_loader", LOADER)
            config = Config(**config_options(self.timeout_seconds))
            return boto3.Session(botocore_session=session).client(
                "dynamodb", config=config, **client_options(self.settings)
            )
        except NO_CLIENT as error:
            raise self.settings.misconfigured(error) from error

    def side_by_side(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(CONNECTIONS, "headgate-dynamodb")
            return self._threads

    def close(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            self._client.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        self._client = self._threads = None


class _Talk(ServerCall):
    _wire: _Wire

    def perform(self, call: Call[Any]) -> Any:
        return self._exchange(call.sends) if isinstance(call, Exchange) else super().perform(call)

    def _exchange(self, sends: Sequence[Send]) -> list[Reply]:
        if self.left <= 0:
            return [late(self._wire.timeout_seconds, sent=False)] * len(sends)
        if not self._wire.is_open:
            self._wire.client()
            self.restart()  # to make a client takes a while, and is no fault of DynamoDB's
        client = self._wire.client()
        if len(sends) == 1:
            return [self._send(client, sends[0])]
        begun = [self._begun(client, send) for send in sends]
        return [reply.result() if isinstance(reply, Future) else reply for reply in begun]

    def _begun(self, client: Any, send: Send) -> Reply | Future[Reply]:
        try:
            return self._wire.side_by_side().submit(self._send, client, send)
        except RuntimeError:  # the main thread has ended, and no other can be started: one after the other
            return self._send(client, send)

    def _send(self, client: Any, send: Send) -> Reply:
        return sent(client, send, self._wire.timeout_seconds)

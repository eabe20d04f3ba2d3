"""Runs plans with boto3. Operations that are sent at once each have a thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...core.errors import ValidationError
from ...plan import Call, Sleep
from ...stores.dynamodb.exchange import Exchange, Lost, MoreTime, Reply, Send
from ...stores.dynamodb.url import DynamoDBSettings

_THREADS = 16
TIMEOUT_SECONDS = 10


def client(settings: DynamoDBSettings, service: str, *, attempts: int = 5) -> Any:
    """A boto3 client for a service, with the table's region and endpoint."""
    from ...stores.dynamodb import driver  # first, because its error says what to install if boto3 is missing

    options = driver.config_options(TIMEOUT_SECONDS) | {"retries": {"total_max_attempts": attempts, "mode": "standard"}}
    from boto3.session import Session
    from botocore.config import Config

    try:
        session = Session(profile_name=settings.profile)
        return session.client(service, **driver.client_options(settings), config=Config(**options))
    except driver.UNUSABLE as error:
        raise ValidationError(f"the AWS configuration cannot be used: {error}") from error


class BotoTransport:
    def __init__(self, settings: DynamoDBSettings) -> None:
        self._client = client(settings, "dynamodb", attempts=1)
        self._threads = ThreadPoolExecutor(_THREADS, "headgate-aws")

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Exchange):
            return list(self._threads.map(self._send, call.sends))
        if isinstance(call, Sleep):
            return time.sleep(call.seconds)
        assert isinstance(call, MoreTime)  # each operation has its own deadline
        return None

    def _send(self, send: Send) -> Reply:
        from ...stores.dynamodb import driver

        reply = driver.sent(self._client, send, TIMEOUT_SECONDS)
        # There is no common deadline, so lost operations may be sent again.
        return reply._replace(late=False) if isinstance(reply, Lost) else reply

    def close(self) -> None:
        self._threads.shutdown()
        self._client.close()

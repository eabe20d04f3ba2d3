"""Where an engine or a proxy answers, and how to get there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

from headgate.testing.servers.process import PATIENCE_SECONDS

REGION = "us-east-1"
# Twelve digits, which is what ministack takes for the number of an account; others take any letters and digits.
ACCESS_KEY = "000000000000"


@contextmanager
def aws_environment(access_key: str = ACCESS_KEY) -> Iterator[None]:
    """For a while every new AWS client, in child processes too, has these credentials and no setting of the user's.

    Engines keep tables apart by access key: twelve digits are a place of one's own on ministack and DynamoDB Local.
    """
    if not (access_key.isascii() and access_key.isalnum()):
        raise ValueError(f"access key {access_key!r}: DynamoDB Local refuses all but letters and digits")
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(
            AWS_ACCESS_KEY_ID=access_key,
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_CONFIG_FILE=os.devnull,
            AWS_SHARED_CREDENTIALS_FILE=os.devnull,
            AWS_EC2_METADATA_DISABLED="true",
            NO_PROXY="127.0.0.1,localhost",
            no_proxy="127.0.0.1,localhost",
        )
        yield


class Endpoint:
    """Something at `endpoint_url`."""

    port: int

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, table: str, *, region: str = REGION, **settings: str | int) -> str:
        """The address of a store in a table here; `settings` are further parts of its query, such as a namespace."""
        query = urlencode({"region": region, "endpoint_url": self.endpoint_url, **settings})
        return f"dynamodb://{quote(table, safe='')}?{query}"

    def client(self, service: str = "dynamodb", **settings: Any) -> Any:
        """A boto3 client for whoever administers the tables; no retries. Its credentials are those of the environment.

        Close it.
        """
        from botocore.config import Config

        standard = {
            "region_name": REGION,
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": os.environ.get("AWS_ACCESS_KEY_ID") or ACCESS_KEY,
            "aws_secret_access_key": os.environ.get("AWS_SECRET_ACCESS_KEY") or "secret",
            "config": Config(
                retries={"total_max_attempts": 1}, connect_timeout=PATIENCE_SECONDS, read_timeout=PATIENCE_SECONDS
            ),
        }
        with _making:
            return _session().client(service, **{**standard, **settings})


_making = threading.Lock()


@cache
def _session() -> Any:
    """One for all clients: what it reads first takes ten times as long as making a client."""
    from boto3.session import Session

    return Session()

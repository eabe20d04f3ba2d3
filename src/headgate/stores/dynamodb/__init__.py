"""`dynamodb://table?region=...`: a store in one table of DynamoDB (url.py, keys.py).

A bucket is kept as the moment at which it will be full again (rows.py). Taking from it is one conditional write, with
nothing read before (forms.py), for any number of limits and any number of waiting callers (settle.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .url import read_url

# Both need botocore, which the keys and forms of this folder do without.
if TYPE_CHECKING:
    from .blocking import DynamoDBStore
    from .coroutines import AsyncDynamoDBStore


def open_blocking(url: str, timeout_seconds: float) -> DynamoDBStore:
    from .blocking import DynamoDBStore

    return DynamoDBStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncDynamoDBStore:
    from .coroutines import AsyncDynamoDBStore

    return AsyncDynamoDBStore(read_url(url), timeout_seconds)

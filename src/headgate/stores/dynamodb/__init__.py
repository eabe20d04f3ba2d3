"""`dynamodb://table?region=...`: a store in one DynamoDB table (url.py, keys.py).

A bucket is stored as the time at which it will be full again (rows.py). Taking from it is one conditional write without
a read before it (conditional_writes.py), for any number of limits and waiting callers (settle.py).
"""

from __future__ import annotations

from ..contract import AsyncStore, Store
from .url import read_url

# The stores need botocore; the other modules do not.


def open_blocking(url: str, timeout_seconds: float) -> Store:
    from .blocking import DynamoDBStore

    return DynamoDBStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncStore:
    from .coroutines import AsyncDynamoDBStore

    return AsyncDynamoDBStore(read_url(url), timeout_seconds)

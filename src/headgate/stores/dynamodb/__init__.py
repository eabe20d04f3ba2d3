"""`dynamodb://table?region=...`: a store in one table of DynamoDB (url.py, keys.py).

A bucket is kept as the moment at which it will be full again (rows.py). Taking from it is one conditional write, with
nothing read before (forms.py), for any number of limits and any number of waiting callers (settle.py).
"""

from __future__ import annotations

from ..contract import AsyncStore, Store
from .url import read_url

# The stores need botocore, which the keys and forms of this folder do without.


def open_blocking(url: str, timeout_seconds: float) -> Store:
    from .blocking import DynamoDBStore

    return DynamoDBStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncStore:
    from .coroutines import AsyncDynamoDBStore

    return AsyncDynamoDBStore(read_url(url), timeout_seconds)

"""What was used, by the hour, as far as it is no longer counted in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ...core.bucket import Bucket
from ...core.names import parse_bucket_key
from ...core.usage import Hours, hour_of

_Used: TypeAlias = "dict[str, dict[int, int]]"  # by limit

KEPT_KEYS = 100_000  # of those who were used last: this is memory


class UsageBook:
    def __init__(self) -> None:
        self._by_key: dict[str, _Used] = {}  # whoever was written to last is last

    def put_away(self, key: str, bucket: Bucket, usage_ms: int) -> None:
        """What a bucket has counted, and forget of its limit what is too old to be kept."""
        if not (bucket.used_milli and usage_ms):
            return
        used = self._by_key[key] = self._by_key.pop(key, {})
        hours = used.setdefault(bucket.limit.name, {})
        hour = hour_of(bucket.settled_at_ms)
        hours[hour] = hours.get(hour, 0) + bucket.used_milli
        bucket.used_milli = 0
        _forget(hours, hour_of(bucket.settled_at_ms - usage_ms))
        if len(self._by_key) > KEPT_KEYS:
            del self._by_key[next(iter(self._by_key))]

    def get(self, key: str) -> dict[str, Hours]:
        return {name: dict(hours) for name, hours in self._by_key.get(key, {}).items()}

    def keys(self) -> Iterator[str]:
        return iter(self._by_key)

    def forget_before(self, hour: int) -> None:
        for key, used in list(self._by_key.items()):
            for hours in used.values():
                _forget(hours, hour)
            if not any(used.values()):
                del self._by_key[key]

    def purge(self, namespace: str) -> int:
        doomed = [key for key in self._by_key if parse_bucket_key(key)[0] == namespace]
        for key in doomed:
            del self._by_key[key]
        return len(doomed)


def _forget(hours: dict[int, int], first: int) -> None:
    for hour in [hour for hour in hours if hour < first]:
        del hours[hour]

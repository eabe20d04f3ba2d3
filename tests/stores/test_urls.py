"""Opening stores."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.stores.memory.store import IDLE_MS, MemoryStore
from headgate.testing import ManualClock


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
@pytest.mark.parametrize(
    "url",
    ["", "nope", "nope://x", "memory", "memory:", "://", "sqlite://", "sqlite://x.db", "sqlite:///", "memory://a/b",
     "sqlite:///:memory:", "sqlite:///a.db?mode=ro", None, 5],
)  # fmt: skip
def test_urls_that_name_no_store(kind: Any, url: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        kind(url)
    assert repr(url) in str(caught.value)
    assert "://" in str(caught.value)


def test_passwords_are_not_shown() -> None:
    for url in ("nope://me:s3cret@host/1", "nope://:s3cret@host", "nope://me:s3/cret@host?a=b"):
        with pytest.raises(ValidationError) as caught:
            SyncRateLimiter(url)
        assert "cret" not in str(caught.value)
        assert "nope://" in str(caught.value)


def test_memory_is_private_unless_it_has_a_name() -> None:
    limit = [Limit.per_minute("x", 10)]
    private = SyncRateLimiter("memory://")
    assert private.try_acquire("e", "r", {"x": 10}, limit)
    assert SyncRateLimiter("memory://").available("e", "r", limit) == {"x": 10}
    assert SyncRateLimiter("memory://test-urls").try_acquire("e", "r", {"x": 10}, limit)
    assert SyncRateLimiter("memory://test-urls").available("e", "r", limit) == {"x": 0}


def test_memory_stays_bounded_when_buckets_are_full_again() -> None:
    clock = ManualClock()
    limiter = SyncRateLimiter("memory://", clock=clock)
    store = limiter.engine.store
    assert isinstance(store, MemoryStore)
    limits = [Limit.per_second("x", 10)]
    for n in range(20_000):
        clock.advance(0.1)
        assert limiter.try_acquire(f"e{n}", "r", {"x": 1}, limits)
        assert len(store._rows) <= 4 * IDLE_MS // 100
    assert len(store._eviction_cursor) == len(store._rows)


def test_memory_keeps_buckets_that_are_not_full() -> None:
    clock = ManualClock()
    limiter = SyncRateLimiter("memory://", clock=clock)
    day = [Limit.per_day("x", 10)]
    limiter.adjust("debtor", "r", {"x": 25}, day)
    limiter.penalize("punished", "r", seconds=86_400, limits=day)
    for n in range(2_000):
        clock.advance(30)
        limiter.try_acquire(f"e{n}", "r", {"x": 1}, [Limit.per_second("x", 10)])
    assert limiter.available("debtor", "r", day) == {"x": -9}
    assert limiter.available("punished", "r", day) == {"x": 0}


def test_memory_forgets_no_bucket_while_it_is_charged() -> None:
    """The child's bucket is idle and full, the parent's is new: making room for it must not drop the child's."""
    clock = ManualClock()
    limiter = SyncRateLimiter("memory://", clock=clock)
    limiter.set_system_defaults([Limit.per_second("x", 10)])
    limiter.create_entity("parent")
    limiter.create_entity("child", parent_id="parent")
    assert limiter.try_acquire("child", "r", {"x": 1})
    clock.advance(3600)
    limiter.update_entity("child", cascade=True)
    assert limiter.try_acquire("child", "r", {"x": 4})
    assert [bucket.available for bucket in limiter.get_buckets("child")] == [6]


def test_resetting_again_and_again_leaks_nothing() -> None:
    limiter = SyncRateLimiter("memory://", clock=ManualClock())
    store = limiter.engine.store
    assert isinstance(store, MemoryStore)
    for _ in range(1000):
        limiter.adjust("e", "r", {"x": 5}, [Limit.per_day("x", 10)])
        limiter.reset("e", "r")
    assert len(store._eviction_cursor) == len(store._rows) == 1


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("redis://localhost", "redis", "redis"),
        ("redis://localhost", "hiredis", "redis"),
        ("postgresql://localhost/app", "psycopg", "postgres"),
        ("dynamodb://table", "botocore", "dynamodb"),
    ],
)
def test_a_driver_that_is_not_installed(url: str, module: str, extra: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; import headgate; headgate.SyncRateLimiter({url!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    *_, last = done.stderr.splitlines()
    assert "ValidationError: a " in last
    assert f"pip install 'headgate[{extra}]'" in last

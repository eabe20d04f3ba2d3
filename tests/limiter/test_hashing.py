"""The setting hash_entity_ids by itself. What it does to a store is in the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError

RPM = Limit.per_minute("rpm", 60)


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
@pytest.mark.parametrize(
    ("setting", "part"),
    [
        (b"", "not 0 bytes"),
        (b"hunter2" * 10, "not 70 bytes"),
        ("hunter2", "not str"),
        (bytearray(b"hunter2"), "not bytearray"),
        (["hunter2"], "not list"),
        (1, "not int"),
        (0, "not int"),
        (None, "not NoneType"),
    ],
)
def test_a_bad_setting_is_refused_and_not_shown(kind: Any, setting: Any, part: str) -> None:
    with pytest.raises(ValidationError, match=rf"hash_entity_ids.*1 to 64 bytes.*{part}: .*token_bytes") as caught:
        kind("memory://", hash_entity_ids=setting)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize("setting", [True, False, b"k", b"k" * 64])
def test_every_allowed_setting_of_hash_entity_ids_works(setting: Any) -> None:
    assert SyncRateLimiter("memory://", hash_entity_ids=setting).try_acquire("e", "r", {"rpm": 1}, [RPM])


# The first is what b2sum -l 160 prints. They may never change: they are in people's stores.
@pytest.mark.parametrize(
    ("setting", "stored"),
    [
        (True, "e0c057510370326cec83f8bbe37c827917fb7e3a"),
        (b"pepper", "52b032d6429f82a84b4d3caa9515a87f417962bc"),
    ],
)
def test_hashes_of_entity_ids_never_change(setting: Any, stored: str) -> None:
    limiter = SyncRateLimiter("memory://", hash_entity_ids=setting)
    (status,) = limiter.try_acquire("sk/a+b==", "r", {"rpm": 1}, [RPM]).statuses
    assert status.entity_id == stored


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
def test_a_limiter_shows_neither_its_key_nor_an_id(kind: Any) -> None:
    limiter = kind("memory://", hash_entity_ids=b"hunter2")
    assert "hunter2" not in repr(limiter)
    assert "hunter2" not in repr(vars(limiter))


def test_the_rule_for_ids_is_wider_only_where_they_are_hashed() -> None:
    with pytest.raises(ValidationError, match="sk/a"):
        SyncRateLimiter("memory://").try_acquire("sk/a", "r", {"rpm": 1}, [RPM])
    hashing = SyncRateLimiter("memory://", hash_entity_ids=True)
    assert hashing.try_acquire("sk/a", "r", {"rpm": 1}, [RPM])
    with pytest.raises(ValidationError, match="entity_id of 257 characters is not allowed: 1 to 256"):
        hashing.try_acquire("s" * 257, "r", {"rpm": 1}, [RPM])
    with pytest.raises(ValidationError, match="namespace"):
        SyncRateLimiter("memory://", namespace="a/b", hash_entity_ids=True)

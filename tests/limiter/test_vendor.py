"""Vendor helpers by themselves. What they do to a store is in the conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from limiter_helpers import FailingStore, failing_store

from headgate import (
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.limiter.vendor.dimensions import Dimension
from headgate.testing import ManualClock

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 1000)
SLOTS = Limit.concurrent("parallel", 2)
LIMITS = [RPM, TPM, SLOTS]
LEFT = {"x-ratelimit-remaining-requests": "9", "x-ratelimit-remaining-tokens": "90"}


class Response:
    def __init__(self, headers: dict[str, str], **fields: Any) -> None:
        self.headers = headers
        vars(self).update(fields)


class VendorError(Exception):
    def __init__(self, response: Response) -> None:
        self.response = response


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> Iterator[Any]:
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        yield limiter


def test_a_dimension_is_an_entity_and_a_resource() -> None:
    assert Dimension.parse("openai#gpt-4o") == ("openai", "gpt-4o")
    assert Dimension.parse("a:b@c#models/x") == ("a:b@c", "models/x")
    for text in ("", "#", "openai", "openai#", "#gpt-4o", None, 5, b"openai#gpt-4o", ("openai", "gpt-4o")):
        with pytest.raises(ValidationError, match="openai#gpt-4o"):
            Dimension.parse(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("dimension", ["open ai#gpt-4o", "openai#gpt 4o", "-a#b"])
def test_its_halves_are_checked_as_ever(limiter: Any, dimension: str) -> None:
    with pytest.raises(ValidationError, match="is not allowed"), limiter.slot(dimension, limits=LIMITS):
        pytest.fail("the body ran")


def test_limits_go_by_our_names_or_the_vendors(limiter: Any) -> None:
    def synced(names: dict[str, str] | None, *limits: str) -> dict[str, int]:
        shapes = [Limit.per_minute(name, 1000) for name in limits]
        learnt = limiter.sync_from_headers("v#m", LEFT, names=names, limits=shapes)
        left: dict[str, int] = limiter.available("v", "m", shapes)
        assert {name: left[name] for name in learnt.readings} == {
            name: reading.remaining for name, reading in learnt.readings.items()
        }
        limiter.reset("v", "m")
        return {name: tokens for name, tokens in left.items() if tokens < 1000}

    assert synced(None, "rpm", "tpm", "spend") == {"rpm": 9, "tpm": 90}
    assert synced(None, "requests", "tokens") == {"requests": 9, "tokens": 90}
    assert synced({"requests": "calls"}, "calls", "rpm", "tpm") == {"calls": 9, "tpm": 90}
    assert synced({"requests": "nothing"}, "rpm") == {"rpm": 9}
    assert synced(None, "spend") == {}


def test_slots_are_no_matter_of_the_vendors(limiter: Any) -> None:
    parallel = [Limit.concurrent("rpm", 100)]
    assert limiter.sync_from_headers("v#m", LEFT, limits=parallel).readings == {}
    assert limiter.available("v", "m", parallel) == {"rpm": 100}


def test_what_the_vendor_says_of_one_account_is_not_said_of_its_owner(limiter: Any) -> None:
    limiter.set_system_defaults([RPM])
    limiter.create_entity("org")
    limiter.create_entity("v", parent_id="org", cascade=True)
    limiter.sync_from_headers("v#m", LEFT)
    assert limiter.available("v", "m") == {"rpm": 9}
    assert limiter.available("org", "m") == {"rpm": 60}


@pytest.mark.parametrize(
    ("response", "seconds"),
    [
        (Response({"retry-after": "7"}, status_code=429), 7.0),
        (Response({"retry-after": "7"}, status=503), 7.0),
        (Response({"retry-after": "7"}, status_code=529), 7.0),
        (Response({"Retry-After-Ms": "1500"}, status_code=429), 1.5),
        (Response({"retry-after": "0.0001"}, status_code=429), 0.001),
        (VendorError(Response({"retry-after": "7"}, status_code=429)), 7.0),
        (Response({"retry-after": "99999999"}, status_code=429), 366 * 86_400.0),
        (Response({"retry-after": "7"}, status_code=200), None),
        (Response({"retry-after": "7"}, status_code=500), None),
        (Response({"retry-after": "0"}, status_code=429), None),
        (Response({"retry-after": "soon"}, status_code=429), None),
        (Response({}, status_code=429), None),
        ({"retry-after": "7"}, None),
    ],
)
def test_when_nothing_passes_and_for_how_long(limiter: Any, response: Any, seconds: float | None) -> None:
    assert limiter.sync_from_headers("v#m", response, limits=LIMITS).penalized_seconds == seconds
    assert limiter.time_until_available("v", "m", {"rpm": 1}, LIMITS) == (seconds or 0.0)


def test_response_without_headers_is_refused(limiter: Any) -> None:
    with pytest.raises(ValidationError, match="headers"):
        limiter.sync_from_headers("v#m", object(), limits=LIMITS)


# Several at once


def test_each_lease_is_its_own(limiter: Any) -> None:
    wish = {"a#m": {"rpm": 10, "parallel": 1}, "b#m": {"rpm": 10, "parallel": 2}}
    with pytest.raises(ValueError), limiter.acquire_many(wish, limits=dict.fromkeys(wish, LIMITS)) as leases:
        leases["a#m"].consume(rpm=5)
        leases["b#m"].release(parallel=1, rpm=3)
        assert [lease.consumed for lease in leases.values()] == [{"rpm": 15, "parallel": 1}, {"rpm": 7, "parallel": 1}]
        leases["a#m"].commit()
        raise ValueError
    assert limiter.available("a", "m", LIMITS) == {"rpm": 45, "tpm": 1000, "parallel": 2}, "it was ended before"
    assert limiter.available("b", "m", LIMITS) == {"rpm": 60, "tpm": 1000, "parallel": 2}


def test_each_is_lost_by_itself(limiter: Any) -> None:
    told: list[Any] = []
    wish = {"a#m": {"parallel": 1}, "b#m": {"parallel": 1}}
    with limiter.acquire_many(wish, limits=dict.fromkeys(wish, LIMITS), on_lost=told.append) as leases:
        limiter.reset("a", "m")
        assert [lease.renew() for lease in leases.values()] == [False, True]
        assert told == [leases["a#m"]]
        assert not leases["b#m"].lost
    assert limiter.available("b", "m", LIMITS)["parallel"] == 2


def test_waiting_for_all_of_them() -> None:
    quick = [Limit.custom("x", 10, 1000, 1), SLOTS]
    wish = {"a#m": {"x": 5, "parallel": 1}, "b#m": {"x": 5}}
    limits = dict.fromkeys(wish, quick)
    with SyncRateLimiter("memory://") as limiter:
        limiter.adjust("b", "m", {"x": 20}, quick)
        with limiter.acquire_many(wish, limits=limits, max_wait=30):
            pass
        with pytest.raises(RateLimitExceeded), limiter.acquire_many({"a#m": {"x": 11}}, limits={"a#m": quick}):
            pytest.fail("the body ran")
        assert limiter.available("a", "m", quick)["parallel"] == 2


def test_the_end_of_one_that_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store: FailingStore = failing_store()
    wish = {"a#m": {"rpm": 1, "parallel": 1}, "b#m": {"rpm": 1, "parallel": 1}}
    with SyncRateLimiter("failing://") as limiter:
        with limiter.acquire_many(wish, limits=dict.fromkeys(wish, LIMITS)) as leases:
            store.error = RateLimiterUnavailable("it is away")
        assert caplog.text.count("run out by themselves") == 2
        assert all("committed" in repr(lease) for lease in leases.values())
        store.error = None


def test_coroutines_take_several_dimensions_all_or_nothing(clock: ManualClock) -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://", clock=clock) as limiter:
            wish = {"a#m": {"rpm": 10, "parallel": 1}, "b#m": None}
            limits = dict.fromkeys(wish, LIMITS)
            async with limiter.acquire_many(wish, limits=limits) as leases:
                await leases["b#m"].adjust(tpm=99)
                with pytest.raises(RateLimitExceeded):
                    async with limiter.acquire_many({"a#m": {"rpm": 51}, "b#m": None}, limits=limits):
                        pytest.fail("the body ran")
            assert await limiter.available("a", "m", LIMITS) == {"rpm": 50, "tpm": 1000, "parallel": 2}
            assert await limiter.available("b", "m", LIMITS) == {"rpm": 59, "tpm": 900, "parallel": 2}
            task = asyncio.create_task(hold(limiter))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert await limiter.available("a", "m", LIMITS) == {"rpm": 50, "tpm": 1000, "parallel": 2}

    async def hold(limiter: RateLimiter) -> None:
        wish = {"a#m": None, "b#m": None}
        async with limiter.acquire_many(wish, limits=dict.fromkeys(wish, LIMITS)):
            await asyncio.sleep(3600)

    asyncio.run(scenario())

"""Never run, only type-checked: what the public API promises to a type checker."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
from typing_extensions import assert_type

from headgate import (
    Ask,
    Decision,
    Entity,
    Lease,
    Limit,
    LimitStatus,
    Page,
    RateLimiter,
    Reconciled,
    ResolvedLimits,
    ResourceCapacity,
    SyncLease,
    SyncRateLimiter,
    VendorSync,
)
from headgate.http.clients import httpx as httpx_client
from headgate.http.clients import httpx2 as httpx2_client
from headgate.limiter.config.levels import Source
from headgate.testing import ManualClock


async def asynchronous() -> None:
    RateLimiter("memory://", hash_entity_ids="key")  # type: ignore[arg-type]
    async with RateLimiter("memory://", namespace="a", clock=ManualClock(), on_unavailable="allow") as limiter:
        assert_type(await limiter.try_acquire_each([Ask("e", "r"), [Ask("e", "r", {"rpm": 1})]]), list[Decision[Lease]])
        assert_type(await limiter.renew_lease("id"), float)
        assert_type(await limiter.release_lease("id", {"rpm": 1}), dict[str, int | float])
        async with limiter.acquire("e", "r", {"rpm": 1}, [Limit.per_minute("rpm", 1)], max_wait=1.5) as lease:
            assert_type(lease, Lease)
            assert_type(await lease.consume(rpm=1), None)
            assert_type(lease.consumed, dict[str, int | float])
        decision = await limiter.try_acquire("e", "r", consume={"rpm": 1}, max_wait=0)
        assert_type(decision, Decision[Lease])
        assert_type(decision.lease, Lease | None)
        assert_type(decision.statuses, list[LimitStatus])
        async with limiter.slot("e#r", {"rpm": 1}, timeout=5, on_lost=lambda lost: lost.id) as lease:
            assert_type(lease, Lease)
            assert_type(await lease.renew(), bool)
            assert_type(lease.lost, bool)
        async with limiter.acquire_many({"e#r": {"rpm": 1}, "e#s": None}) as leases:
            assert_type(leases, dict[str, Lease])
        assert_type(await limiter.sync_from_headers("e#r", {}), VendorSync)
        assert_type(await limiter.reconcile(), Reconciled)
        assert_type(await limiter.available("e", "r"), dict[str, int])
        assert_type(await limiter.time_until_available("e", "r", {"rpm": 1}), float | None)
        assert_type(await limiter.create_entity("e", name="E", parent_id=None, cascade=True, metadata={}), Entity)
        assert_type(await limiter.get_children("e"), Page[Entity])
        resolved = await limiter.resolve_limits("e", "r")
        assert_type(resolved, ResolvedLimits)
        limits, source = resolved
        assert_type(limits, list[Limit])
        assert_type(source, Source | None)
        assert_type((await limiter.get_limits("e")).inherit, bool)
        assert_type(
            (await limiter.preview_limits("e", "r", limits, inherit=False)).dropped, dict[str, list[str | None]]
        )
        assert_type(await limiter.get_resource_capacity("r", "rpm"), ResourceCapacity)
        await limiter.create_entity("e", unknown=1)  # type: ignore[call-arg]
        await limiter.set_limits("e", "10/minute")  # type: ignore[arg-type]

        @limiter.limit("10/minute", key=lambda user: user)
        async def greet(user: str) -> bytes:
            return user.encode()

        assert_type(await greet("a"), bytes)


def synchronous() -> None:
    SyncRateLimiter("memory://", hash_entity_ids=b"key")
    with SyncRateLimiter("memory://", hash_entity_ids=True) as limiter:
        with limiter.acquire("e", "r", {"rpm": 1}, on_error="keep") as lease:
            assert_type(lease, SyncLease)
            assert_type(lease.adjust(rpm=-1), None)
        assert_type(limiter.try_acquire("e", "r", {"rpm": 1}), Decision[SyncLease])
        with limiter.acquire_many(["e#r"], on_unavailable="local") as leases:
            assert_type(leases, dict[str, SyncLease])
        with limiter.acquire("e", "r", {"rpm": 1}, record_lease=True, restore_on_expiry=True, lease_ttl=5):
            pass
        assert_type(limiter.available("e", "r"), dict[str, int])
        assert_type(limiter.get_entity("e"), Entity)
        assert_type(limiter.delete_limits("e"), bool)
        limiter.penalize("e", "r", 20)  # type: ignore[call-arg]

        @limiter.limit("10/minute", key="me", cost=2)
        def greet(user: str) -> bytes:
            return user.encode()

        assert_type(greet("a"), bytes)
        data: Any = greet("a")
        del data


def clients(limiter: SyncRateLimiter, awaited: RateLimiter) -> None:
    httpx.Client(transport=httpx_client.HeadgateTransport(limiter, "openai#gpt-4o", timeout=5))
    httpx.AsyncClient(transport=httpx_client.AsyncHeadgateTransport(awaited, "openai#gpt-4o"))
    httpx2.Client(transport=httpx2_client.HeadgateTransport(limiter, {"api.openai.com": "openai#gpt-4o"}))
    httpx2.AsyncClient(transport=httpx2_client.AsyncHeadgateTransport(awaited, "openai#gpt-4o", consume={"rpm": 1}))
    httpx_client.HeadgateTransport(limiter, "openai#gpt-4o", transport=httpx.HTTPTransport(retries=1))
    httpx_client.HeadgateTransport(limiter, "openai#gpt-4o", transport=httpx2.HTTPTransport())  # type: ignore[arg-type]
    httpx_client.HeadgateTransport(awaited, "openai#gpt-4o")  # type: ignore[arg-type]
    httpx2_client.AsyncHeadgateTransport(limiter, "openai#gpt-4o")  # type: ignore[arg-type]
    httpx_client.HeadgateTransport(limiter, "openai#gpt-4o", unknown=1)  # type: ignore[call-arg]

"""Makes a table with a real release of zae-limiter, and writes its items as JSON: the tables beside this file.

No test runs it. To make one again, install the release apart from headgate, start an engine, and run it there:

    python -m venv /tmp/zae && /tmp/zae/bin/pip install zae-limiter==0.17.0 aioboto3
    /tmp/zae/bin/python make_table.py 0.17.0 http://127.0.0.1:4566
    /tmp/zae/bin/python make_table.py 0.17.0 http://127.0.0.1:4566 --newer   # with what headgate has no equivalent of

Every release gets the same calls, as far as it has them: `accepted` leaves out what a release does not know.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import os
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

ACTOR = "ops@example.com"
RESOURCE = "gpt-4"
ENTITIES = ("org-1", "dept-1", "proj-1", "key-1", "orphan", "plain", "user-1", "user-2", "hot")
RESOURCES = (RESOURCE, "search", "batch", "api")
WINDOWS = ["hourly", "daily", "monthly"]


def accepted(function: Any, **arguments: Any) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


async def call(owner: Any, method: str, **arguments: Any) -> Any:
    """Call it, if this release has it."""
    function = getattr(owner, method, None)
    return await function(**accepted(function, **arguments)) if function else None


def shapes(limits: list[Any]) -> list[Any]:
    """Name, ceiling, refill, period. Before 0.10 the ceiling is called burst."""
    found = [
        [limit.name, getattr(limit, "burst", None) or limit.capacity, limit.refill_amount, limit.refill_period_seconds]
        for limit in limits
    ]
    return sorted(found)


class Maker:
    def __init__(self, release: str, endpoint_url: str) -> None:
        os.environ.update(
            AWS_ENDPOINT_URL=endpoint_url,
            AWS_DEFAULT_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="000000000000",
            AWS_SECRET_ACCESS_KEY="secret",
        )
        import boto3
        import zae_limiter

        self.zae = zae_limiter
        self.release = release
        self.name = f"made-{uuid.uuid4().hex[:8]}"
        self.endpoint_url = endpoint_url
        self.client = boto3.client("dynamodb")
        self.repository_class = importlib.import_module("zae_limiter.repository").Repository
        self.table = ""

    async def limiters(self) -> dict[str, Any]:
        """One for each namespace, or one."""
        place = {"region": "us-east-1", "endpoint_url": self.endpoint_url}
        first = self.repository_class(**accepted(self.repository_class, name=self.name, stack_name=self.name, **place))
        if "stack_name" in inspect.signature(self.repository_class).parameters:
            naming = importlib.import_module("zae_limiter.naming")
            first = self.repository_class(stack_name=naming.normalize_name(self.name), **place)
        self.table = first.table_name
        await first.create_table()
        version = importlib.import_module("zae_limiter.version")
        await first.set_version_record(
            schema_version=version.get_schema_version(), lambda_version=self.release, updated_by="make_table.py"
        )
        await first.close()
        if not hasattr(self.repository_class, "open"):
            return {"": self.zae.RateLimiter(name=self.name, skip_version_check=True, **place)}
        names = ["default", "tenant-a"]
        opened = {name: await self.repository_class.open(name, stack=self.name, **place) for name in names}
        gone = await self.repository_class.open("gone", stack=self.name, **place)
        await gone.create_entity(entity_id="left", principal=ACTOR)
        await gone.delete_namespace("gone")
        await gone.close()
        return {name: self.zae.RateLimiter(repository=repository) for name, repository in opened.items()}

    async def fill(self, limiter: Any, *, tokens: int) -> None:
        Limit, zae = self.zae.Limit, self.zae
        tpm, rpd = Limit.per_minute("tpm", 10_000, burst=15_000), Limit.per_day("rpd", 100)
        by = {"principal": ACTOR}
        allow = zae.OnUnavailable.ALLOW if hasattr(zae, "OnUnavailable") else "allow"
        await call(limiter, "set_system_defaults", limits=[Limit.per_minute("rpm", 60)], on_unavailable=allow, **by)
        per_hour = [Limit.per_hour("rph", 5, burst=7)]
        await call(limiter, "set_resource_defaults", resource=RESOURCE, limits=per_hour, **by)
        await call(limiter, "set_resource_defaults", resource="unused", limits=per_hour, **by)
        await call(limiter, "delete_resource_defaults", resource="unused", **by)
        await call(limiter, "create_entity", entity_id="org-1", name="Organisation", **by)
        details = {"metadata": {"tier": "gold", "seats": "3"}}
        await call(limiter, "create_entity", entity_id="proj-1", name="Project", **details, **by)
        await call(limiter, "create_entity", entity_id="dept-1", parent_id="org-1", **by)
        await call(limiter, "create_entity", entity_id="key-1", parent_id="proj-1", cascade=True, **by)
        await call(limiter, "create_entity", entity_id="orphan", parent_id="never-made", cascade=True, **by)
        await call(limiter, "create_entity", entity_id="gone", **by)
        await call(limiter, "delete_entity", entity_id="gone", **by)
        await call(limiter, "set_limits", entity_id="proj-1", limits=[tpm, rpd], resource=RESOURCE, **by)
        await call(limiter, "set_limits", entity_id="key-1", limits=[Limit.per_minute("tpm", 500)], **by)
        await call(limiter, "set_limits", entity_id="plain", limits=[rpd], resource=RESOURCE, **by)
        await call(limiter, "delete_limits", entity_id="plain", resource=RESOURCE, **by)
        await self.consume(limiter, "proj-1", RESOURCE, {"tpm": tokens, "rpd": 1}, [tpm, rpd])
        await self.consume(limiter, "proj-1", RESOURCE, {"tpm": 100, "rpd": 2}, [tpm, rpd], more={"tpm": 16_000})
        await self.consume(limiter, "key-1", "search", {"tpm": 40}, [Limit.per_minute("tpm", 500)])
        await self.consume(limiter, "user-1", "search", {"rpm": 7}, [Limit.per_minute("rpm", 60)])
        await self.consume(limiter, "user-2", RESOURCE, {"rph": 3}, per_hour)
        await self.count_usage(limiter)

    async def consume(
        self,
        limiter: Any,
        entity_id: str,
        resource: str,
        amounts: dict[str, int],
        limits: list[Any],
        more: dict[str, int] | None = None,
    ) -> None:
        """Releases before 0.6 have to be given limits; the others find those that are stored."""
        acquire = limiter.acquire
        stored = hasattr(limiter, "set_system_defaults")
        arguments = accepted(
            acquire,
            entity_id=entity_id,
            resource=resource,
            consume=amounts,
            limits=None if stored else limits,
            use_stored_limits=not stored,
        )
        async with acquire(**arguments) as lease:
            if more:
                await lease.adjust(**more)

    async def count_usage(self, limiter: Any) -> None:
        """What the aggregator makes of one change of the project's buckets, given to it as the stream does."""
        where = "zae_limiter.aggregator.processor", "zae_limiter_aggregator.processor"
        found = [name for name in where if importlib.util.find_spec(name.rpartition(".")[0])]
        process = importlib.import_module(found[0]).process_stream_records
        limits = [self.zae.Limit.per_minute("rpm", 60)]
        await self.consume(limiter, "proj-1", "batch", {"rpm": 5}, limits)
        before = self.items()
        await self.consume(limiter, "proj-1", "batch", {"rpm": 3}, limits)
        records = [
            {
                "eventName": "MODIFY",
                "eventID": str(place),
                "dynamodb": {
                    "ApproximateCreationDateTime": time.time(),
                    "Keys": {"PK": item["PK"], "SK": item["SK"]},
                    "OldImage": before[key],
                    "NewImage": item,
                },
            }
            for place, (key, item) in enumerate(self.items().items())
            if key in before and before[key] != item
        ]
        result = process(records, self.table, WINDOWS)
        assert not result.errors, result

    async def fill_newer(self, limiter: Any) -> None:
        """What headgate has no equivalent of."""
        Limit, repository = self.zae.Limit, limiter._repository
        schedule = importlib.import_module("zae_limiter.schedule")
        night = schedule.ScheduleEntry(cron="0 0-6 * * *", scale=0.5)
        await repository.set_limits("night", [Limit.per_minute("rpm", 60).with_schedule((night,))], "api")
        await repository.set_limits("soft", [Limit.per_minute("rpm", 60, soft=True)], "api")
        window = Limit(
            name="session", capacity=50, refill_amount=0, refill_period_seconds=1, reset_after=timedelta(hours=5)
        )
        await repository.set_limits("session", [window], "api")
        await repository.create_entity("deep", parent_id="key-1", cascade=True)
        await repository.disable_entity("blocked", "api")
        await repository.bypass_entity("free", "api")
        await repository.set_resource_defaults("api", [Limit.per_minute("rpm", 60)], cascade=False)
        for entity_id in ("night", "soft"):
            await self.consume(limiter, entity_id, "api", {"rpm": 5}, [])
        await self.consume(limiter, "session", "api", {"session": 5}, [])
        await self.consume(limiter, "session", "api", {"session": 5}, [])
        await repository.top_up("session", "api", {"session": 10})
        await repository.reset_bucket("soft", "api")

    async def fill_shards(self, limiter: Any) -> None:
        """A bucket of two shards, of which the second has been used too."""
        repository = limiter._repository
        limits = [self.zae.Limit.per_hour("rph", 1001, burst=1003)]
        await call(limiter, "set_limits", entity_id="hot", limits=limits, resource="api")
        await self.consume(limiter, "hot", "api", {"rph": 11}, limits)
        await repository.bump_shard_count("hot", "api", 1)
        for _ in range(12):
            await self.consume(limiter, "hot", "api", {"rph": 3}, limits)

    async def answers(self, limiter: Any) -> dict[str, Any]:
        """What the release itself says of what is stored, for headgate to say the same."""
        repository = limiter._repository
        found = {entity_id: await limiter.get_entity(entity_id) for entity_id in ENTITIES}
        system = await call(limiter, "get_system_defaults") or ([], None)
        resolve = getattr(repository, "resolve_limits", None)
        answers: dict[str, Any] = {
            "entities": {
                entity_id: [entity.name, entity.parent_id, getattr(entity, "cascade", False), entity.metadata]
                for entity_id, entity in found.items()
                if entity
            },
            "children": {each: [child.id for child in await limiter.get_children(each)] for each in found},
            "limits": {
                f"{entity_id} {resource}": shapes(await limiter.get_limits(entity_id, resource=resource))
                for entity_id in ENTITIES
                for resource in ("_default_", *RESOURCES)
            },
            "resource_defaults": {
                each: shapes(await call(limiter, "get_resource_defaults", resource=each) or []) for each in RESOURCES
            },
            "system_defaults": shapes(system[0]),
            "on_unavailable": getattr(system[1], "value", system[1]),
            "resolved": {
                f"{entity_id} {resource}": shapes((await resolve(entity_id, resource))[0])
                for entity_id in ENTITIES
                for resource in RESOURCES
                if resolve
            },
            "audit": {
                each: [[event.event_id, event.timestamp, event.action] for event in await events(each)]
                for each in (*ENTITIES, "gone", "$SYSTEM", f"$RESOURCE:{RESOURCE}")
                if (events := repository.get_audit_events)
            },
        }
        return answers

    def items(self) -> dict[tuple[str, str], Any]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.table, ConsistentRead=True)
        return {(item["PK"]["S"], item["SK"]["S"]): item for page in pages for item in page["Items"]}


async def make(release: str, endpoint_url: str, *, newer: bool) -> None:
    maker = Maker(release, endpoint_url)
    limiters = await maker.limiters()
    for place, limiter in enumerate(limiters.values()):
        await maker.fill(limiter, tokens=1_200 + place)
    last = list(limiters.values())[-1]
    if hasattr(maker.repository_class, "bump_shard_count"):
        await maker.fill_shards(last)
    if newer:
        await maker.fill_newer(last)
    answers = {name: await maker.answers(limiter) for name, limiter in limiters.items()}
    for limiter in limiters.values():
        await limiter.close()
    told: dict[str, Any] = {"release": release, "made_by": "make_table.py" + (" --newer" if newer else "")}
    told |= {"made_at_ms": time.time_ns() // 1_000_000, "answers": answers}
    items = [json.dumps(item, sort_keys=True) for _, item in sorted(maker.items().items())]
    to = Path(__file__).parent / f"{release}{'-newer' if newer else ''}.json"
    to.write_text(json.dumps(told)[:-1] + ', "items": [\n' + ",\n".join(items) + "\n]}\n")
    maker.client.delete_table(TableName=maker.table)
    sys.stdout.write(f"{to.name}: {len(items)} items\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("endpoint_url")
    parser.add_argument("--newer", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(make(arguments.release, arguments.endpoint_url, newer=arguments.newer))

"""A process that is interrupted amid twenty acquires (`gather`), or that forks in the body of one.

Usage: interrupted_process.py URL NAMESPACE WORK STORE_TIMEOUT
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from headgate import Limit, RateLimiter, SyncRateLimiter

LIMITS = [Limit.custom("n", 1000, 0.001, 366 * 86_400)]
WISH = ("e", "r", {"n": 10}, LIMITS)


class BodyFailed(Exception):
    pass


def forked() -> int:
    """In the child the body fails. In the parent: how the child ended."""
    child = os.fork()
    if child == 0:
        raise BodyFailed
    _, status = os.waitpid(child, 0)
    return status


def fork(url: str, settings: dict[str, Any]) -> None:
    parent, said = os.getpid(), {}
    with SyncRateLimiter(url, **settings) as limiter:
        try:
            with limiter.acquire(*WISH):
                said["child ended with"] = forked()
                said["in the body"] = limiter.available("e", "r", LIMITS)["n"]
                raise BodyFailed
        except BodyFailed:
            if os.getpid() != parent:
                os._exit(0)
        said["after it"] = limiter.available("e", "r", LIMITS)["n"]
    sys.stdout.write(json.dumps(said))


async def fork_in_a_task(url: str, settings: dict[str, Any]) -> None:
    parent, said = os.getpid(), {}
    async with RateLimiter(url, **settings) as limiter:
        try:
            async with limiter.acquire(*WISH):
                said["child ended with"] = forked()
                said["in the body"] = (await limiter.available("e", "r", LIMITS))["n"]
                raise BodyFailed
        except BodyFailed:
            if os.getpid() != parent:
                os._exit(0)
        said["after it"] = (await limiter.available("e", "r", LIMITS))["n"]
    sys.stdout.write(json.dumps(said))


async def gather(url: str, settings: dict[str, Any]) -> None:
    async with RateLimiter(url, **settings) as limiter:

        async def take_and_give_back() -> None:
            while True:
                with suppress(BodyFailed):
                    async with limiter.acquire("e", "r", {"n": 1}, LIMITS):
                        await asyncio.sleep(0)
                        raise BodyFailed

        sys.stdout.write("asking\n")
        sys.stdout.flush()
        await asyncio.gather(*(take_and_give_back() for _ in range(20)))


def main(url: str, namespace: str, work: str, store_timeout: str) -> None:
    settings = {"namespace": namespace, "store_timeout": float(store_timeout)}
    if work == "fork":
        fork(url, settings)
    else:
        asyncio.run({"gather": gather, "fork in a task": fork_in_a_task}[work](url, settings))


if __name__ == "__main__":
    main(*sys.argv[1:])

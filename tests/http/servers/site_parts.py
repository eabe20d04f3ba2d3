"""What all applications under test have in common: their rules, their settings, and requests that wait to be let go.

Each has the same routes, by the means of its framework:

/hello          no rule
/limited        3/day, GET and POST
/both           2/day and 100/hour, and 50/day of another rule
/slow           one at a time; ends when the test lets go its `key`
/stream         one at a time; `first`, and `last` when the test lets go its `key`
/endless        one at a time; goes on until the client has gone
/broken         one at a time; a stream that fails
/after          one at a time; work that goes on after the answer until the test lets go its `key`
/boom           one at a time; raises
/exempt         1/day, were it not exempt
/users/{id}     2/day
/batch          10/day, and a request costs what its header x-batch-size says
/unset          under limits that nobody has stored
/aside          3/day, and a shadow under limits that nobody has stored
/away           1,000/day in a store that comes and goes; 503 while it is away
/away-open      the same, but passes while it is away
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from headgate.http.addresses import Addresses
from headgate.http.call import HttpCall
from headgate.http.identity import Identity
from headgate.http.rules import Rule

AWAY_URL = os.environ.get("HEADGATE_SITE_AWAY_URL", "redis://127.0.0.1:1/0")
PROXY = "127.0.0.9"
PATIENCE_SECONDS = 20.0


def batch_size(call: HttpCall) -> int:
    return int(call.header("x-batch-size") or 1)


RULES = [
    Rule("limited", "/limited", limits="3/day"),
    Rule("both", "/both", limits="2/day; 100/hour"),
    Rule("both-more", "/both", limits="50/day", also=True),
    Rule("slow", "/slow", limits="1 concurrent"),
    Rule("stream", "/stream", limits="1 concurrent"),
    Rule("endless", "/endless", limits="1 concurrent"),
    Rule("broken", "/broken", limits="1 concurrent"),
    Rule("boom", "/boom", limits="1 concurrent"),
    Rule("after", "/after", limits="1 concurrent"),
    Rule("batch", "/batch", limits="10/day", cost=batch_size),
    Rule("unset", "/unset"),
    Rule("aside", "/aside", limits="3/day"),
    Rule("aside-shadow", "/aside", shadow=True, priority=1),
    Rule("exempt", "/exempt", limits="1/day"),
    Rule("users", "/users/{id}", limits="2/day"),
]
AWAY = [Rule("away", "/away", limits="1000/day")]
AWAY_OPEN = [Rule("away-open", "/away-open", limits="1000/day")]


def note(text: str) -> None:
    """What has become of the lifespan, in the folder of the server."""
    Path("lifespan").write_text(text)


def user(call: HttpCall) -> str | None:
    """Encoded, so that a test can send any characters."""
    return unquote(call.header("x-user") or "") or None


def is_vip(call: HttpCall) -> bool:
    return call.caller == "user:vip"


IDENTITY = Identity(user=user, addresses=Addresses([PROXY]))
SETTINGS: dict[str, Any] = {"identity": IDENTITY, "exempt_paths": ["/exempt"], "exempt": is_vip}


def key_of(query: str) -> str:
    return parse_qs(query).get("key", [""])[0]


def waits(key: str) -> Iterator[None]:
    """Files of these names, in the folder of the server, tell the test and are made by it."""
    Path(f"{key}.waits").touch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not Path(f"{key}.let-go").exists() and time.monotonic() < deadline:
        yield


def wait(key: str) -> str:
    for _ in waits(key):
        time.sleep(0.005)
    return "slow"


async def wait_async(key: str) -> str:
    for _ in waits(key):
        await asyncio.sleep(0.005)
    return "slow"


def stream(key: str) -> Iterator[bytes]:
    yield b"first\n"
    wait(key)
    yield b"last\n"


async def stream_async(key: str) -> AsyncIterator[bytes]:
    yield b"first\n"
    await wait_async(key)
    yield b"last\n"


def endless() -> Iterator[bytes]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield b"more\n" * 1000
        time.sleep(0.005)


async def endless_async() -> AsyncIterator[bytes]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        yield b"more\n" * 1000
        await asyncio.sleep(0.005)


def broken() -> Iterator[bytes]:
    yield b"first\n"
    raise RuntimeError("the stream breaks")


async def broken_async() -> AsyncIterator[bytes]:
    yield b"first\n"
    raise RuntimeError("the stream breaks")

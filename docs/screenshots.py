"""The pictures of docs/dashboard.md, from a dashboard with make-believe tenants: python docs/screenshots.py"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from headgate import Limit, SyncRateLimiter
from headgate.service import state
from headgate.service.app import ServiceApp
from headgate.service.ui.live import SECONDS, LiveStats
from headgate.testing import ManualClock

URL = "memory://screenshots"
IMAGES = Path(__file__).parent / "images"
HOUR_MS = 3_600_000
TENANTS = {
    "acme": ("Acme Corporation", None, {"plan": "enterprise", "region": "eu-west", "contact": "ops@acme.example"}),
    "acme:support-bot": ("Support assistant", "acme", {"team": "support"}),
    "acme:search": ("Search ranking", "acme", {"team": "discovery"}),
    "globex": ("Globex", None, {"plan": "pro", "region": "us-east"}),
    "hooli": ("Hooli", None, {"plan": "pro", "region": "us-west"}),
    "initech": ("Initech", None, {"plan": "free", "region": "us-east"}),
    "soylent": ("Soylent", None, {"plan": "pro", "region": "ap-south"}),
    "umbrella": ("Umbrella Health", None, {"plan": "enterprise", "region": "eu-central", "sla": "99.95"}),
    "vandelay": ("Vandelay Industries", None, {"plan": "free", "region": "us-east"}),
}
RESOURCES = {
    "gpt-4o": ["rpm=500/minute burst 600", "tpm=300000/minute", "usd=500/month resets Europe/Berlin alert 80% 100%"],
    "gpt-4o-mini": ["rpm=2000/minute", "tpm=2000000/minute"],
    "embeddings/large": ["rpm=3000/minute", "tpm=1000000/minute"],
    "images": ["rpm=50/minute", "parallel=8 concurrent"],
}


def limits(*texts: str) -> list[Limit]:
    return [Limit.parse(*text.split("=", 1)) for text in texts]


def fill() -> None:
    """Tenants, limits, and a day of use, as if it had happened."""
    clock = ManualClock(int(time.time() * 1000) - 26 * HOUR_MS)
    with SyncRateLimiter(URL, clock=clock, actor="deploy") as limiter:
        limiter.set_system_defaults(limits("rpm=60/minute"), "allow")
        for resource, texts in RESOURCES.items():
            limiter.set_resource_defaults(resource, limits(*texts))
        for entity_id, (name, parent_id, metadata) in TENANTS.items():
            limiter.create_entity(
                entity_id, name=name, parent_id=parent_id, cascade=parent_id is not None, metadata=metadata
            )
        limiter.set_limits("acme", limits("rpm=2000/minute burst 2500", "tpm=1500000/minute"), "gpt-4o")
        limiter.set_limits("acme:support-bot", limits("rpm=600/minute", "tpm=400000/minute"), "gpt-4o")
        limiter.set_limits("initech", limits("rpm=10/minute"))
        chance = random.Random(7)
        for hour in range(25):
            busy = 0.35 + 0.65 * max(0.0, math.sin((hour - 3) / 24 * 2 * math.pi)) + chance.uniform(-0.08, 0.08)
            clock.advance(3600)
            for entity_id, resource, rpm, tpm in (
                ("acme:support-bot", "gpt-4o", 2900, 1_450_000),
                ("acme:support-bot", "gpt-4o-mini", 5200, 900_000),
                ("acme:support-bot", "embeddings/large", 2100, 260_000),
                ("acme:search", "embeddings/large", 9000, 2_500_000),
                ("globex", "gpt-4o", 1500, 700_000),
            ):
                part = busy * chance.uniform(0.8, 1.2)
                limiter.adjust(entity_id, resource, {"rpm": int(rpm * part), "tpm": int(tpm * part)})
        clock.advance(3590)
    by_hand()


def by_hand() -> None:
    """What people did lately, and what is left by now."""
    with SyncRateLimiter(URL, actor="maria") as limiter:
        limiter.set_limits("acme", limits("rpm=2500/minute burst 3000", "tpm=2000000/minute"), "gpt-4o")
        limiter.update_entity("globex", metadata={"plan": "enterprise", "region": "us-east"})
        limiter.set_resource_defaults("images", limits("rpm=60/minute", "parallel=8 concurrent"), actor="jonas")
        limiter.reset("acme:support-bot", "gpt-4o", actor="jonas")
        limiter.reset("acme:support-bot", "embeddings/large", actor="jonas")
        limiter.adjust("acme:support-bot", "gpt-4o", {"rpm": 430, "tpm": 352_000, "usd": 412})
        limiter.adjust("acme:support-bot", "embeddings/large", {"rpm": 900, "tpm": 130_000})
        limiter.adjust("initech", "gpt-4o", {"rpm": 10})
        limiter.penalize("hooli", "gpt-4o", seconds=90)


class Past:
    """A clock for what happened before. It stands still at the end, for the pictures."""

    def __init__(self) -> None:
        self.now = int(time.monotonic()) - SECONDS - 1.0

    def __call__(self) -> float:
        return self.now


def remember(live: LiveStats, clock: Past) -> None:
    """Five minutes of decisions."""
    chance = random.Random(3)
    weights = {"acme:support-bot": 34, "acme:search": 26, "globex": 15, "umbrella": 9, "soylent": 6, "hooli": 5}
    weights |= {"initech": 3, "vandelay": 2}
    for second in range(SECONDS, -1, -1):
        clock.now += 1
        wave = 1 + 0.25 * math.sin(second / 34) + 0.12 * math.sin(second / 7)
        burst = 26 if 92 < second < 128 else 0
        count = int(168 * wave + chance.uniform(-9, 9))
        for entity_id in chance.choices(list(weights), list(weights.values()), k=count):
            refused = chance.random() < {"initech": 0.55, "hooli": 0.3, "acme:search": 0.02}.get(entity_id, 0.004)
            live.decided(entity_id, "gpt-4o", "refused" if refused else "allowed", 0.0004)
        for _ in range(burst):
            live.decided("vandelay", "gpt-4o", "refused", 0.0004)
        for _ in range(22):
            live.settled(8, chance.gammavariate(3, 0.00021), True)


@contextmanager
def dashboard() -> Iterator[str]:
    """Its address, as long as it runs."""
    clock = Past()
    state.LiveStats = lambda: LiveStats(clock)
    service = state.Service(URL)
    room = service.room("default")
    assert room.live is not None
    remember(room.live, clock)
    app = ServiceApp(service)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def shoot(
    browser: Browser, address: str, name: str, *, dark: bool = False, width: int = 1280, height: int = 860
) -> None:
    page = browser.new_page(
        color_scheme="dark" if dark else "light",
        viewport={"width": width, "height": height},
        device_scale_factor=1 if width > 600 else 2,
    )
    page.goto(address)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def preview(browser: Browser, root: str, name: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 560})
    page.goto(f"{root}/ui/limits/edit?entity=acme&resource=gpt-4o")
    page.get_by_label("What limit 1 allows").fill("4000/minute burst 5000")
    page.get_by_label("Name of limit 4").fill("rpd")
    page.get_by_label("What limit 4 allows").fill("1000000/day resets Europe/Berlin")
    page.get_by_role("button", name="Preview the change").click()
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    fill()
    with dashboard() as root, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        bot = f"{root}/ui/entities/acme%3Asupport-bot"
        shoot(browser, f"{root}/ui", "dashboard-overview", height=1130)
        shoot(browser, bot, "dashboard-entity", height=1240)
        preview(browser, root, "dashboard-preview")
        shoot(browser, bot, "dashboard-phone", dark=True, width=390, height=780)
        browser.close()


if __name__ == "__main__":
    main()

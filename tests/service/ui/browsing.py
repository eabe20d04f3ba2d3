"""Somebody at the dashboard with a real browser, in which nothing that is wrong goes unseen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from dashboard_site import Site
from playwright.sync_api import Browser, BrowserContext, Page

PATIENCE_MS = 30_000
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
CONTRAST = "color-contrast"


class Watched:
    """Whatever a page should not do."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.wrong: list[str] = []
        host = urlsplit(address).netloc
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (one) => console.error(`policy: ${one.violatedDirective}`))"
        )
        context.on("console", lambda message: self._console(message.type, message.text))
        context.on("weberror", lambda error: self.wrong.append(str(error.error)))
        context.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        context.on(
            "request",
            lambda request: None if urlsplit(request.url).netloc == host else self.wrong.append(request.url),
        )

    def _console(self, kind: str, text: str) -> None:
        # That a page was asked for which is none, or not allowed, is said by the browser, not by the page.
        if kind in ("error", "warning") and "Failed to load resource" not in text:
            self.wrong.append(f"{kind}: {text}")


@contextmanager
def somebody(browser: Browser, address: str, token: str | None = None, **settings: Any) -> Iterator[Page]:
    """At the dashboard, with a browser of their own; nothing that is wrong goes unseen."""
    context = browser.new_context(base_url=address, **settings)
    context.set_default_timeout(PATIENCE_MS)
    watched = Watched(context, address)
    try:
        if token is not None:
            with Site(address, token) as site:
                cookie = site.http.cookies["headgate_session"]
            context.add_cookies([{"name": "headgate_session", "value": cookie, "url": f"{address}/ui"}])
        yield context.new_page()
        assert watched.wrong == []
    finally:
        context.close()


def violations(page: Page, only: str | None = None) -> list[str]:
    """What axe has to say, in few words: the whole of it is megabytes. Contrast takes it longest."""
    page.evaluate(AXE)
    rules = {"runOnly": [only]} if only else {"rules": {CONTRAST: {"enabled": False}}}
    found: list[str] = page.evaluate(
        """async (options) => (await axe.run(document, options)).violations
            .map((one) => `${one.id}: ${one.nodes.map((node) => node.html)}`)""",
        {"resultTypes": ["violations"], **rules},
    )
    return found

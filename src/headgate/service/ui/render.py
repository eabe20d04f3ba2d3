"""Rendering templates. Every value is escaped, except for markup made in this module."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ... import __version__
from ...charts import TimeChart
from . import words
from .gauge import Gauge, moment_of, next_change
from .hours import spelled, spelled_entries
from .pages import ROOT, link
from .session import THEMES

_HERE = Path(__file__).parent
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Static:
    """The static files. The address of each contains its hash, so that browsers can cache it forever."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self._addresses: dict[str, str] = {}
        for path in sorted((_HERE / "static").iterdir()):
            body = path.read_bytes()
            digest = sha256(body).hexdigest()[:12]
            self.files[path.name] = (body, _KINDS[path.suffix])
            self._addresses[path.name] = f"{ROOT}/static/{path.name}?v={digest}"

    def address(self, name: str) -> str:
        return self._addresses[name]


class Renderer:
    def __init__(self, static: Static) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {
            "link": link,
            "root": ROOT,
            "static": static.address,
            "themes": THEMES,
            "version": __version__,
            "sources": words.SOURCES,
            "field_changes": words.field_changes,
        }
        self._environment.filters |= {
            "ago": words.ago,
            "brief": words.brief,
            "chart": _chart,
            "duration": words.duration,
            "gauge": Gauge.of,
            "grouped": words.grouped,
            "json": words.as_json,
            "lines": lambda schedule: spelled_entries(schedule) if schedule else [],
            "moment": moment_of,
            "next_change": next_change,
            "number": words.number,
            "rate": words.rate,
            "spelled": spelled,
            "when": words.when,
        }

    def __call__(self, template: str, context: Mapping[str, Any]) -> bytes:
        return self._environment.get_template(template).render(context).encode()


def _chart(chart: TimeChart) -> Markup:
    return Markup(chart.svg())  # svg() escapes its texts

"""Which versions are at work."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata

from ... import __version__
from ...stores.health import Finding

_EXTRAS = ("cli", "redis", "postgres", "dynamodb", "http", "server", "metrics")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")


def findings() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("headgate", "ok", f"{__version__} on Python {platform.python_version()}, {system}")
    try:
        extras = _extras()
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        return
    for extra in _EXTRAS:
        versions = {name: _version(name) for name in extras.get(extra, ())}
        found = [f"{name} {version}" for name, version in versions.items() if version]
        if len(found) == len(versions):
            yield Finding(f"extra {extra}", "ok", ", ".join(found))
        elif found:
            missing = ", ".join(name for name, version in versions.items() if not version)
            advice = f"if it is used: pip install 'headgate[{extra}]'"
            yield Finding(f"extra {extra}", "ok", f"{', '.join(found)}; without {missing} ({advice})")


def _extras() -> dict[str, list[str]]:
    """What each extra installs, but for what only some Pythons or systems need."""
    extras: dict[str, list[str]] = {}
    for requirement in metadata.requires("headgate") or ():
        text, _, marker = requirement.partition(";")
        extra, name = _EXTRA.search(marker), _REQUIREMENT.match(text)
        if extra and name and name[1] != "headgate" and " and " not in marker:
            extras.setdefault(extra[1], []).append(name[1])
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

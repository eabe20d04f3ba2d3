"""Health of the store in the process."""

from __future__ import annotations

from ..health import Finding


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    advice = "to share limits between processes use sqlite:///file.db, redis://host or dynamodb://table"
    return [Finding("sharing", "warn", "it lives in this process and ends with it", advice)]

"""The command, assembled."""

from __future__ import annotations

import click


@click.group()
def app() -> None:
    """Exact rate limits, shared by every process that uses the same store."""

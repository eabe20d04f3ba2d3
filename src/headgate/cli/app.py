"""The command, assembled."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .. import __version__
from ..core.errors import HeadgateError
from .aws import aws
from .buckets import buckets
from .check import check
from .command import Group
from .demo.command import demo
from .entity import entity
from .errors import INTERRUPTED, report
from .limits import limits
from .reconcile import reconcile
from .serve import serve, token


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="headgate")
def app() -> None:
    """Exact rate limits, shared by every process that uses the same store.

    Start with `headgate demo`.
    """


for command in (demo, check, limits, entity, buckets, reconcile, serve, token, aws):
    app.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. A command returns its own, or None for 0."""
    try:
        return int(app.main(list(arguments), prog_name="headgate", standalone_mode=False) or 0)
    except (HeadgateError, click.ClickException) as error:
        return report(error, as_json="--json" in arguments)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED

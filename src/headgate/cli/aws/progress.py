"""CloudFormation's progress, on standard error: live on a terminal, otherwise a line for each finished step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import click

from ...aws.stack import StackEvent
from ..output import printable

_DONE = {"CREATE": "created", "UPDATE": "updated", "DELETE": "deleted", "IMPORT": "imported"}
_DOING = {"CREATE": "creating", "UPDATE": "updating", "DELETE": "deleting", "IMPORT": "importing"}


def progress(as_json: bool) -> StackProgress:
    """Use it as a context, and as `on_event`."""
    if as_json:
        return StackProgress()
    if sys.stderr.isatty():
        from .live import LiveProgress  # rich is slow to import

        return LiveProgress()
    return LineProgress()


@contextmanager
def goes_on(name: str) -> Iterator[None]:
    """Ctrl-C stops the command, not CloudFormation."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"CloudFormation continues: `headgate aws status --name {name}` shows the result", err=True)
        raise


class StackProgress:
    """Shows nothing."""

    def __enter__(self) -> StackProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, event: StackEvent) -> None:
        return None


class Steps:
    """The steps that are running, and how many have ended."""

    def __init__(self) -> None:
        self.doing: dict[str, tuple[str, float]] = {}
        self.done = 0
        self.began = time.monotonic()

    def take(self, event: StackEvent) -> float | None:
        """The seconds a step took, if this event ends it."""
        if event.status.endswith("_IN_PROGRESS"):
            self.doing.setdefault(event.resource, (doing(event), time.monotonic()))
            return None
        _, began = self.doing.pop(event.resource, ("", time.monotonic()))
        self.done += 1
        return time.monotonic() - began


class LineProgress(StackProgress):
    def __init__(self) -> None:
        self._steps = Steps()

    def __call__(self, event: StackEvent) -> None:
        seconds = self._steps.take(event)
        ended = seconds is not None and event.kind != "AWS::CloudFormation::Stack"
        if ended or "ROLLBACK" in event.status:
            click.echo(printable(f"{event.resource}: {said(event)}"), err=True)


def said(event: StackEvent) -> str:
    """The status in one word, or with the reason of a failure."""
    verb, _, rest = event.status.partition("_")
    if event.failed:
        return f"failed: {event.reason}"
    if "ROLLBACK" in event.status:
        return "rolling back" if event.status.endswith("_IN_PROGRESS") else "rolled back"
    if rest == "SKIPPED":
        return "kept"
    return _DONE.get(verb, event.status.lower())


def doing(event: StackEvent) -> str:
    verb = event.status.partition("_")[0]
    return "rolling back" if "ROLLBACK" in event.status else _DOING.get(verb, event.status.lower())

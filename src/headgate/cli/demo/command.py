"""The command `headgate demo`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from ...core.errors import RateLimiterUnavailable
from ..command import CliCommand
from ..errors import ALLOWED, INTERRUPTED, REFUSED
from ..options import CommandSession, json_option, scratch_name, seconds_option, with_session, workers_option
from ..output import answer, answer_json
from ..workers import START_SECONDS, temporary_folder, watch

if TYPE_CHECKING:
    from .run import DemoRun
    from .view import View


@click.command(
    cls=CliCommand,
    examples=["headgate demo", "headgate demo --seconds 5 --workers 8", "headgate demo --url redis://localhost"],
)
@seconds_option("--seconds", 1, 3600, "How long the demo runs.", default=15)
@workers_option(64, "Number of processes that share the limits.")
@with_session(
    # Not from the environment: a look at the demo must not load a production store.
    click.option("--url", metavar="URL", help="The store to use. Default: a temporary SQLite file."),
    click.option("--namespace", metavar="NAME", help="The namespace in the store. Default: a new one."),
    json_option,
)
def demo(session: CommandSession, seconds: float, workers: int) -> int:
    """Watch several processes share two limits without overselling them.

    Worker processes ask as fast as they can, all for the same two limits: calls per minute and tokens per minute.
    A call that does not fit both takes from neither. Halfway, one worker is killed with kill -9 and another takes
    its place. The display compares what was admitted with the exact limit all the time. The demo needs no setup and
    leaves nothing behind. It does not read HEADGATE_URL and HEADGATE_NAMESPACE, because it has its own store.
    """
    from .run import DemoRun
    from .view import open_view, summary

    if session.url is not None and session.url.startswith("memory:"):
        raise click.UsageError("memory:// is not shared between processes: use another store, or leave out --url")
    with _stage(session) as (url, namespace, folder):
        run = DemoRun(url, namespace, folder, workers)
        try:
            with open_view(seconds, workers, session) as view:
                interrupted = _watch(run, view, seconds)
                run.stop()
                view.last_frame(run.state_at_end())
            result = run.result()
        finally:
            run.stop()
            if session.url is not None:
                run.clean_up(its_own_namespace=session.namespace is None)
    if session.as_json:
        answer_json(result.as_dict())
    else:
        answer(*summary(result, workers))
    if interrupted:
        return INTERRUPTED
    return ALLOWED if result.passed else REFUSED


@contextmanager
def _stage(session: CommandSession) -> Iterator[tuple[str, str, Path]]:
    """A store, a namespace and a folder."""
    with temporary_folder("headgate-demo-") as folder:
        url = session.url or f"sqlite:///{quote((folder / 'demo.db').as_posix(), safe='/:')}"
        yield url, session.namespace or scratch_name("demo"), folder


def _watch(run: DemoRun, view: View, seconds: float) -> bool:
    """Show frames until the time is up. True if it was interrupted."""
    deadline = time.monotonic() + START_SECONDS

    def frame() -> bool:
        state = run.state()
        if state.seconds >= seconds:
            return False
        if not state.decisions and time.monotonic() > deadline:
            raise RateLimiterUnavailable(f"no worker of the demo has started within {START_SECONDS:.0f} s")
        if run.kill is None and state.seconds >= seconds / 2:
            run.replace_one(state.seconds)
            view.note(f"{run.kill}")
        view.frame(state)
        return True

    return watch(frame)

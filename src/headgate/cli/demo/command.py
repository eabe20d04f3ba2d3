"""The command: set the stage, watch, sum up."""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from ...core.errors import RateLimiterUnavailable
from ..command import Command
from ..errors import ALLOWED, INTERRUPTED, REFUSED
from ..options import Session, json_option, with_session
from ..output import answer, answer_json

if TYPE_CHECKING:
    from .run import Run
    from .view import View

_FRAME_SECONDS = 0.125
_START_SECONDS = 30.0


@click.command(
    cls=Command,
    examples=["headgate demo", "headgate demo --seconds 5 --workers 8", "headgate demo --url redis://localhost"],
)
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(1, 3600), default=15, show_default=True, help="How long it runs."
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="How many processes share the limits.",
)
@with_session(
    # Not from the environment: nobody should load a production store by looking at a demo.
    click.option("--url", metavar="URL", help="The store to use; without one, a temporary SQLite file."),
    click.option("--namespace", metavar="NAME", help="The namespace in the store; without one, a new one."),
    json_option,
)
def demo(session: Session, seconds: float, workers: int) -> int:
    """Watch several processes share one limit, and none of it oversold.

    Worker processes ask as fast as they can, all for the same two limits: calls per minute and tokens per minute.
    A call that does not fit both takes from neither. Halfway one worker is killed with kill -9 and another
    takes over. What was admitted is held against the exact limit all the time. It needs no set-up and leaves
    nothing behind. HEADGATE_URL and HEADGATE_NAMESPACE are not read: the demo has a store of its own.
    """
    from .run import Run
    from .view import open_view, summary

    if session.url is not None and session.url.startswith("memory:"):
        raise click.UsageError("memory:// is not shared between processes, and that is what the demo is about")
    with _stage(session) as (url, namespace, folder):
        run = Run(url, namespace, folder, workers)
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
def _stage(session: Session) -> Iterator[tuple[str, str, Path]]:
    """A store, a namespace and a folder, and the folder gone afterwards, even when asked to terminate."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True) as name:
            folder = Path(name).resolve()
            url = session.url or f"sqlite:///{quote((folder / 'demo.db').as_posix(), safe='/:')}"
            yield url, session.namespace or f"demo-{secrets.token_hex(4)}", folder
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(run: Run, view: View, seconds: float) -> bool:
    """Show frame after frame until the time is up. True if somebody pressed Ctrl-C."""
    deadline = time.monotonic() + _START_SECONDS
    try:
        while (state := run.state()).seconds < seconds:
            if not state.decisions and time.monotonic() > deadline:
                raise RateLimiterUnavailable(f"no worker of the demo has started within {_START_SECONDS:.0f} s")
            if run.kill is None and state.seconds >= seconds / 2:
                run.replace_one(state.seconds)
                view.note(f"{run.kill}")
            view.frame(state)
            time.sleep(_FRAME_SECONDS)
    except KeyboardInterrupt:
        return True
    return False

"""The command: set the stage, watch, report, leave nothing behind."""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.units import tokens_to_milli
from ..command import Command
from ..errors import ALLOWED, INTERRUPTED, REFUSED
from ..options import Session, json_option, url_option, with_session
from ..output import answer, answer_json, number
from ..values import read_amounts, read_limits
from .load import Load

if TYPE_CHECKING:
    from .progress import Show
    from .run import Run

_FRAME_SECONDS = 0.125
_DEFAULT_SECONDS = 10.0
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@click.command(
    cls=Command,
    short_help="Load a store with decisions, and see that none is oversold.",
    examples=[
        "headgate loadtest",
        "headgate loadtest --url redis://localhost --workers 4 --tasks 32 --seconds 30",
        'headgate loadtest --limit "rpm=6000/minute burst 100" --limit tpm=1000000/minute --consume tpm=150',
        "headgate loadtest --entities 1000 --count 100000 --json",
    ],
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="How many processes ask.",
)
@click.option(
    "--tasks",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="How many tasks of each process ask at the same time.",
)
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(0.1, 86_400), help="How long: 10 without this or --count."
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="How many decisions, all workers together.")
@click.option(
    "--entities",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many entities they ask for in turn, each with buckets of its own.",
)
@click.option(
    "--limit",
    metavar="NAME=SPEC",
    multiple=True,
    default=["calls=1000/second"],
    show_default="calls=1000/second",
    help="A limit that holds for each entity. Repeatable.",
)
@click.option("--consume", metavar="NAME=AMOUNT", multiple=True, help="What a decision takes, if not 1. Repeatable.")
@with_session(url_option, json_option)
def loadtest(
    session: Session,
    workers: int,
    tasks: int,
    seconds: float | None,
    count: int | None,
    entities: int,
    limit: Sequence[str],
    consume: Sequence[str],
) -> int:
    """Load a store with decisions: how many a second, how long each takes, and whether a limit is oversold.

    Processes ask as fast as they can. What was admitted is held against the exact most that the limit allows in that
    time: a full bucket, and what it gains until the last decision, by the store's clock where it has one. The exit code
    is 1 if it was more. It happens in a namespace of its own, which is removed afterwards; others who use the store
    will notice the load.
    """
    from .progress import progress
    from .run import Run

    url = session.store_url
    if url.startswith("memory:"):
        raise click.UsageError("memory:// is not shared between processes: load another store, like sqlite:///file.db")
    if seconds and count:
        raise click.UsageError("--seconds and --count contradict each other: give one of them")
    limits = _limits(limit)
    load = _load(url, workers, tasks, entities, count, limits, consume)
    title = f"{workers} x {tasks} on {url.partition('://')[0]}"
    with _stage() as folder:
        run = Run(load, limits, folder)
        try:
            with progress(title, quiet=session.as_json) as show:
                run.begin()
                interrupted = _watch(run, show, None if count else seconds or _DEFAULT_SECONDS, count)
                run.stop()
            result = run.result()
        finally:
            run.stop()
            run.clean_up()
    if session.as_json:
        answer_json(result.as_dict())
    else:
        answer(*result.told())
    if not result.passed:
        return REFUSED
    return INTERRUPTED if interrupted else ALLOWED


def _limits(specs: Sequence[str]) -> list[Limit]:
    limits = read_limits(specs)
    for limit in limits:
        if limit.is_concurrent:
            raise ValidationError(
                f"limit {limit.name!r} is of slots, which come back: give one per time, like 100/second"
            )
    return limits


def _load(
    url: str,
    workers: int,
    tasks: int,
    entities: int,
    count: int | None,
    limits: Sequence[Limit],
    consume: Sequence[str],
) -> Load:
    amounts = read_amounts(consume)
    names = [limit.name for limit in limits]
    for name in amounts:
        if name not in names:
            raise ValidationError(f"there is no limit {name!r} to take from, only {', '.join(names)}")
        tokens_to_milli(amounts[name], f"amount of {name!r}")
    return Load(
        url=url,
        namespace=f"loadtest-{secrets.token_hex(4)}",
        workers=workers,
        tasks=tasks,
        entities=entities,
        consume={name: str(amounts.get(name, 1)) for name in names},
        count=count,
    )


@contextmanager
def _stage() -> Iterator[Path]:
    """A folder, gone afterwards, even when asked to terminate or when the terminal is closed."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDINGS}
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-loadtest-", ignore_cleanup_errors=True) as name:
            yield Path(name).resolve()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(run: Run, show: Show, seconds: float | None, count: int | None) -> bool:
    """Show how far it is until it is done. True if somebody pressed Ctrl-C."""
    try:
        while not run.done:
            run.check_alive()
            passed, decisions = run.seconds, run.decisions
            if count is not None:
                show(decisions / count, f"{number(decisions)} of {number(count)}", round(decisions / passed))
            elif seconds is not None:
                if passed >= seconds:
                    break
                show(passed / seconds, f"{passed:.0f} of {seconds:g} s", round(decisions / passed))
            time.sleep(_FRAME_SECONDS)
    except KeyboardInterrupt:
        return True
    return False

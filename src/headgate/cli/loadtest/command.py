"""The command `headgate loadtest`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ...core.errors import ValidationError
from ...core.limit import Limit
from ...core.units import tokens_to_milli
from ..command import CliCommand
from ..errors import ALLOWED, INTERRUPTED, REFUSED
from ..options import (
    CommandSession,
    count_option,
    json_option,
    scratch_name,
    seconds_option,
    url_option,
    with_session,
    workers_option,
)
from ..output import answer, answer_json, number
from ..progress import ShowProgress, progress_bar
from ..values import read_amounts, read_limits
from ..workers import temporary_folder, watch
from .load import Load

if TYPE_CHECKING:
    from .run import LoadRun

_DEFAULT_SECONDS = 10.0


@click.command(
    cls=CliCommand,
    short_help="Measure a store under load, and check that no limit is oversold.",
    examples=[
        "headgate loadtest",
        "headgate loadtest --url redis://localhost --workers 4 --tasks 32 --seconds 30",
        'headgate loadtest --limit "rpm=6000/minute burst 100" --limit tpm=1000000/minute --consume tpm=150',
        "headgate loadtest --entities 1000 --count 100000 --json",
    ],
)
@workers_option(256, "Number of processes that ask.")
@count_option("--tasks", 10_000, "Number of concurrent tasks in each process.", default=8)
@seconds_option("--seconds", 0.1, 86_400, "How long the test runs. Default: 10, unless --count is given.")
@count_option("--count", None, "Number of decisions, of all workers together.")
@count_option("--entities", 100_000, "Number of entities, used in turn, each with its own buckets.", default=1)
@click.option(
    "--limit",
    metavar="NAME=SPEC",
    multiple=True,
    default=["calls=1000/second"],
    show_default="calls=1000/second",
    help="A limit for each entity. Repeatable.",
)
@click.option(
    "--consume", metavar="NAME=AMOUNT", multiple=True, help="What a decision takes from a limit, if not 1. Repeatable."
)
@with_session(url_option, json_option)
def loadtest(
    session: CommandSession,
    workers: int,
    tasks: int,
    seconds: float | None,
    count: int | None,
    entities: int,
    limit: Sequence[str],
    consume: Sequence[str],
) -> int:
    """Measure decisions per second and latency on a store, and check that no limit is oversold.

    Processes ask as fast as they can. The test compares what was admitted with the exact maximum of the limit in that
    time: a full bucket, plus its refill until the last decision, by the store's clock if it has one; of a quota, its
    amount in each window. The exit code is 1 if more was admitted. The test uses a namespace of its own, and removes it
    at the end. Other users of the store will notice the load.
    """
    from .run import LoadRun

    url = session.store_url
    if url.startswith("memory:"):
        raise click.UsageError("memory:// is not shared between processes: use another store, like sqlite:///file.db")
    if seconds and count:
        raise click.UsageError("--seconds and --count contradict each other: give one of them")
    limits = _limits(limit)
    load = _load(url, workers, tasks, entities, count, limits, consume)
    title = f"{workers} x {tasks} on {url.partition('://')[0]}"
    with temporary_folder("headgate-loadtest-") as folder:
        run = LoadRun(load, limits, folder)
        try:
            with progress_bar(title, quiet=session.as_json) as show:
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
                f"limit {limit.name!r} is a limit of slots, which cannot be oversold over time: "
                "give a rate, like 100/second"
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
            raise ValidationError(f"there is no limit {name!r} to take from: the limits are {', '.join(names)}")
        tokens_to_milli(amounts[name], f"amount of {name!r}")
    return Load(
        url=url,
        namespace=scratch_name("loadtest"),
        workers=workers,
        tasks=tasks,
        entities=entities,
        consume={name: str(amounts.get(name, 1)) for name in names},
        count=count,
    )


def _watch(run: LoadRun, show: ShowProgress, seconds: float | None, count: int | None) -> bool:
    """Show the progress until the test is done. True if it was interrupted."""

    def frame() -> bool:
        run.check_alive()
        passed, decisions = run.seconds, run.decisions
        rate = f"{number(round(decisions / passed))}/s"
        if count is not None:
            show(decisions / count, f"{number(decisions)} of {number(count)}  {rate}")
        elif seconds is not None:
            show(passed / seconds, f"{passed:.0f} of {seconds:g} s  {rate}")
        return not run.done and (seconds is None or passed < seconds)

    return watch(frame)

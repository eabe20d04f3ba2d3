"""`headgate replay`: what proposed limits would have done to requests that were made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import ValidationError
from ..limiter.ids import to_stored_id
from .command import CliCommand
from .errors import ALLOWED, REFUSED
from .options import hash_key, hash_option, json_option
from .output import Cell, TextTable, answer, answer_json, duration, moment, number

if TYPE_CHECKING:
    from ..declare import Declaration
    from ..replay import EntityReport, Report, Traffic

_LENGTHS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _read_share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """1%, 0.5% or 0.01."""
    if text is None:
        return None
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{text!r} is no share: write 1% or 0.01")
    return share


def _read_length(_: click.Context, __: click.Parameter, text: str) -> float:
    """90s, 30m, 24h or 7d."""
    try:
        return float(text[:-1]) * _LENGTHS[text[-1:]]
    except (ValueError, KeyError):
        raise click.BadParameter(f"{text!r} is no length of time: write 90s, 30m, 24h or 7d") from None


@click.command(
    cls=CliCommand,
    short_help="Try limits on a log of requests.",
    examples=[
        "headgate replay --generate requests.jsonl --entities 50 --rate 5 --for 24h",
        "headgate replay --log requests.jsonl --limits limits.yaml",
        "headgate replay --log requests.jsonl.gz --limits limits.yaml -o report.svg --fail-above 1%",
        "headgate replay --log monday.jsonl --log tuesday.jsonl --limits limits.yaml --json",
    ],
)
@click.option("--log", "logs", metavar="FILE", multiple=True, help="A log of requests, gzip too; - is standard input.")
@click.option("--limits", metavar="FILE", help="The limits to try, a .yaml or .toml file as `headgate apply` reads it.")
@click.option("-o", "--output", metavar="FILE", help="Also draw it, as an SVG file.")
@click.option(
    "--top", metavar="N", type=click.IntRange(0), default=20, show_default=True, help="Show so many entities."
)
@click.option(
    "--fail-above", metavar="SHARE", callback=_read_share, help="Exit with 1 if more than this is refused, like 1%."
)
@click.option("--skip-bad", is_flag=True, help="Leave out lines that cannot be used, and count them.")
@click.option("--generate", metavar="FILE", help="First make a log up, and write it there.")
@click.option("--entities", metavar="N", type=int, default=50, show_default=True, help="How many are in it.")
@click.option("--rate", metavar="N", type=float, default=5.0, show_default=True, help="Requests a second, on average.")
@click.option(
    "--for", "length", metavar="TIME", default="24h", show_default=True, callback=_read_length, help="How long."
)
@click.option("--burst", metavar="N", type=float, default=4.0, show_default=True, help="How many come at once.")
@click.option(
    "--swing", metavar="N", type=float, default=0.8, show_default=True, help="More by day than by night, from 0 to 1."
)
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Another one, other requests.")
@hash_option
@json_option
def replay(
    logs: Sequence[str],
    limits: str | None,
    output: str | None,
    top: int,
    fail_above: float | None,
    skip_bad: bool,
    generate: str | None,
    entities: int,
    rate: float,
    length: float,
    burst: float,
    swing: float,
    seed: int,
    hash_entity_ids: bool,
    as_json: bool,
) -> int:
    """Play a log of requests under other limits, and tell who would have been refused. Nothing is stored.

    Limiters write such logs (RequestLog). Each line is a request: {"at": "2026-01-31T14:00:00Z", "entity": "acme",
    "resource": "chat", "consume": {"rpm": 1, "tpm": 500}, "allowed": true}. With --generate it makes one up.

    With --hash-entity-ids the ids in the file of limits are hashed; those in the log are taken as they are.
    """
    from ..declare import read_limits_file
    from ..replay import Traffic

    _check(logs, generate, limits)
    declaration = limits and read_limits_file(limits, to_stored_id(hash_entity_ids and hash_key()))
    if generate is not None:
        _generate(Traffic(entities, rate, length, burst, swing, seed=seed), generate, as_json, tells=not declaration)
        logs = [*logs, generate]
    if not declaration:
        return ALLOWED
    report = _play(declaration, logs, skip_bad, as_json)
    if output is not None:
        _draw(report, output)
    if as_json:
        answer_json(report.as_dict(top))
    else:
        answer(*_told(report, top), *_warned(report, declaration.plans or declaration.rules))
    return REFUSED if fail_above is not None and report.refused_share > fail_above else ALLOWED


def _check(logs: Sequence[str], generate: str | None, limits: str | None) -> None:
    if generate is None and not logs:
        raise click.UsageError("what is to be played? give --log FILE, or --generate FILE to make one up")
    if logs and limits is None:
        raise click.UsageError("which limits? give --limits FILE, as `headgate export` writes it")


def _generate(traffic: Traffic, file: str, as_json: bool, *, tells: bool) -> None:
    from ..replay import write_traffic

    count = write_traffic(traffic, file)
    if tells and as_json:
        answer_json({"requests": count, "file": file})
    elif tells:
        answer(f"{number(count)} requests are in {file}")


def _play(declaration: Declaration, logs: Sequence[str], skip_bad: bool, as_json: bool) -> Report:
    from ..replay import replay as play

    with _progress(as_json) as progress:
        return play(declaration, *logs, skip_bad=skip_bad, progress=progress)


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[int], object] | None]:
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # slow to import
    from rich.progress import Progress, SpinnerColumn, TextColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, description=f"{number(count)} requests")


def _draw(report: Report, path: str) -> None:
    from ..replay import picture

    try:
        Path(path).write_text(picture(report), encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"{path!r} cannot be written: {error.strerror}") from None


def _told(report: Report, top: int) -> Iterator[str | TextTable]:
    if not report.requests:
        yield "there is no request in the log"
        return
    refused = [entity for entity in report.entities if entity.refused]
    if refused[:top]:
        yield _table(refused[:top])
        yield ""
    first, last = report.moments[0].start, report.moments[-1].start
    yield (f"{number(report.requests)} requests of {_entities(report.entities)}, {moment(first)} to {moment(last)}")
    yield (
        f"{number(report.refused)} would be refused ({report.refused_share:.2%}), "
        f"of {_entities(refused)}{_reasons(report)}"
    )
    if report.newly_refused or report.newly_allowed:
        yield (
            f"against what the log says: {number(report.newly_refused)} refused that were allowed, "
            f"{number(report.newly_allowed)} allowed that were refused"
        )


def _entities(entities: Sequence[EntityReport]) -> str:
    return f"{number(len(entities))} {'entity' if len(entities) == 1 else 'entities'}"


def _reasons(report: Report) -> str:
    reasons = [f"{name} {number(count)} times" for name, count in list(report.because_of.items())[:5]]
    return f": {', '.join(reasons)}" if reasons else ""


def _warned(report: Report, has_rules: object) -> Iterator[str]:
    if report.unlimited:
        yield f"{number(report.unlimited)} consume nothing that has a limit, and pass"
    if report.bad:
        yield f"{number(report.bad)} lines were left out, the first: {report.first_bad}"
    if report.sample < 1:
        yield (
            f"the log has {report.sample:.2%} of the entities: what they have together, like a parent's limit, is less "
            "used here than it would be"
        )
    if has_rules:
        yield "plans and rules are about HTTP requests, and are not played"


def _table(entities: Sequence[EntityReport]) -> TextTable:
    compared = any(entity.newly_refused or entity.newly_allowed for entity in entities)
    return TextTable(
        ["entity", ">requests", ">refused", ">share", ">newly", "first at", ">longest wait", "because of"],
        [_row(entity, compared) for entity in entities],
    )


def _row(entity: EntityReport, compared: bool) -> list[Cell]:
    share = entity.refused / entity.requests
    return [
        entity.entity_id,
        number(entity.requests),
        number(entity.refused),
        f"{share:.1%}",
        number(entity.newly_refused) if compared else "",
        moment(entity.first_refused),
        "never" if entity.never else duration(entity.longest_wait_seconds),
        ", ".join(entity.because_of),
    ]

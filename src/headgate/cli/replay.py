"""`headgate replay`: proposed limits applied to a log of past requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import ValidationError
from ..limiter.ids import to_stored_id
from .command import CliCommand
from .errors import ALLOWED, REFUSED
from .options import hash_key, hash_option, json_option
from .output import Cell, TextTable, answer, answer_json, duration, moment, number
from .progress import progress_bar

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
        raise click.BadParameter(f"{text!r} is not a share: write 1% or 0.01")
    return share


def _read_length(_: click.Context, __: click.Parameter, text: str) -> float:
    """90s, 30m, 24h or 7d."""
    try:
        return float(text[:-1]) * _LENGTHS[text[-1:]]
    except (ValueError, KeyError):
        raise click.BadParameter(f"{text!r} is not a duration: write 90s, 30m, 24h or 7d") from None


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
@click.option(
    "--log",
    "logs",
    metavar="FILE",
    multiple=True,
    help="A log of requests, possibly compressed with gzip; - is standard input. Repeatable.",
)
@click.option("--limits", metavar="FILE", help="The limits to try: a .yaml or .toml file for `headgate apply`.")
@click.option("-o", "--output", metavar="FILE", help="Also write a chart, as an SVG file.")
@click.option(
    "--top", metavar="N", type=click.IntRange(0), default=20, show_default=True, help="Show this many entities."
)
@click.option(
    "--fail-above", metavar="SHARE", callback=_read_share, help="Exit with 1 if a larger share is refused, like 1%."
)
@click.option("--skip-bad", is_flag=True, help="Skip invalid lines, and count them.")
@click.option("--generate", metavar="FILE", help="First generate a log, and write it to this file.")
@click.option(
    "--entities", metavar="N", type=int, default=50, show_default=True, help="Number of entities in the generated log."
)
@click.option("--rate", metavar="N", type=float, default=5.0, show_default=True, help="Average requests per second.")
@click.option(
    "--for",
    "length",
    metavar="TIME",
    default="24h",
    show_default=True,
    callback=_read_length,
    help="The time that the generated log covers.",
)
@click.option(
    "--burst", metavar="N", type=float, default=4.0, show_default=True, help="Average number of requests in a burst."
)
@click.option(
    "--swing",
    metavar="N",
    type=float,
    default=0.8,
    show_default=True,
    help="How much traffic differs between day and night, from 0 to 1.",
)
@click.option("--seed", metavar="N", type=int, default=1, show_default=True, help="Seed of the random generator.")
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
    """Replay a log of requests under other limits, and show which would have been refused. Nothing is stored.

    Limiters write such logs (RequestLog). Each line is a request: {"at": "2026-01-31T14:00:00Z", "entity": "acme",
    "resource": "chat", "consume": {"rpm": 1, "tpm": 500}, "allowed": true}. --generate makes an artificial log.

    With --hash-entity-ids the ids in the file of limits are hashed; the ids in the log are used as they are.
    """
    from ..declare import read_limits_file
    from ..replay import Traffic

    _check(logs, generate, limits)
    declaration = limits and read_limits_file(limits, to_stored_id(hash_entity_ids and hash_key()))
    if generate is not None:
        _generate(Traffic(entities, rate, length, burst, swing, seed=seed), generate, as_json, quiet=bool(declaration))
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
        raise click.UsageError("no log: use --log FILE, or --generate FILE to make one")
    if logs and limits is None:
        raise click.UsageError("no limits: use --limits FILE, a file like those of `headgate export`")


def _generate(traffic: Traffic, file: str, as_json: bool, *, quiet: bool) -> None:
    from ..replay import write_traffic

    count = write_traffic(traffic, file)
    if quiet:
        return
    if as_json:
        answer_json({"requests": count, "file": file})
    else:
        answer(f"{number(count)} requests written to {file}")


def _play(declaration: Declaration, logs: Sequence[str], skip_bad: bool, as_json: bool) -> Report:
    from ..replay import replay as play

    with progress_bar("replaying", quiet=as_json) as show:

        def progress(count: int) -> None:
            show(None, f"{number(count)} requests")

        return play(declaration, *logs, skip_bad=skip_bad, progress=progress)


def _draw(report: Report, path: str) -> None:
    from ..replay import picture

    try:
        Path(path).write_text(picture(report), encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"{path!r} cannot be written: {error.strerror}") from None


def _told(report: Report, top: int) -> Iterator[str | TextTable]:
    if not report.requests:
        yield "the log contains no requests"
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
            f"compared with the log: {number(report.newly_refused)} refused that were allowed, "
            f"{number(report.newly_allowed)} allowed that were refused"
        )


def _entities(entities: Sequence[EntityReport]) -> str:
    return f"{number(len(entities))} {'entity' if len(entities) == 1 else 'entities'}"


def _reasons(report: Report) -> str:
    reasons = [f"{name} {number(count)} times" for name, count in list(report.because_of.items())[:5]]
    return f": {', '.join(reasons)}" if reasons else ""


def _warned(report: Report, has_rules: object) -> Iterator[str]:
    if report.unlimited:
        yield f"{number(report.unlimited)} consume nothing that is limited, and pass"
    if report.bad:
        yield f"{number(report.bad)} lines were skipped, the first: {report.first_bad}"
    if report.sample < 1:
        yield (
            f"the log has {report.sample:.2%} of the entities: limits that entities share, like a parent's, are used "
            "less here than they would be"
        )
    if has_rules:
        yield "plans and rules apply to HTTP requests, and are not replayed"


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

"""The command: look, and say what to do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ..command import CliCommand
from ..errors import ALLOWED, REFUSED
from ..options import CommandSession, confirmed, work_options, yes_option
from ..output import TextTable, answer, answer_json

if TYPE_CHECKING:
    from ...core.errors import CorruptState
    from ...stores.health import Finding

_SHOWN = 10


@click.command(
    cls=CliCommand,
    short_help="Find out what is wrong, and what to do about it.",
    examples=[
        "headgate doctor",
        "headgate doctor --url redis://localhost --namespace shop",
        "headgate doctor --rules rules.yaml",
        "headgate doctor --read-only --json",
        "headgate doctor --repair",
    ],
)
@click.option("--read-only", is_flag=True, help="Write nothing: leave out what has to be tried in a scratch namespace.")
@click.option("--rules", metavar="FILE", help="The rules of a file, and not those that are stored.")
@click.option("--repair", is_flag=True, help="Remove what is corrupt in the namespace, after asking.")
@yes_option
@work_options
def doctor(session: CommandSession, read_only: bool, rules: str | None, repair: bool, yes: bool) -> int:
    """Look at everything that keeps limits from working, and say what to do about it.

    Versions; whether the store answers and how it is set up; its clock; what this user may do there, tried in a
    scratch namespace that is removed again; how long a decision takes; whether the namespace is in use, its limits can
    pass and its rules can be obeyed; whether anything stored there is corrupt. The exit code is 1 if something failed;
    a warning leaves it 0.

    With --repair, what is corrupt is removed first. A bucket that was starts full again, and a removed record is as if
    it had never been stored: limits have to be stored again.
    """
    if repair and read_only:
        raise click.UsageError("--repair writes, and --read-only forbids it: give one of them")
    repaired = _repaired(session, yes) if repair else []
    found = list(_findings(session, read_only, rules))
    failed = sum(finding.verdict == "fail" for finding in found)
    warned = sum(finding.verdict == "warn" for finding in found)
    if session.as_json:
        said = {"ok": not failed, "findings": [finding.as_dict() for finding in found]}
        answer_json(said | ({"repaired": list(map(_described, repaired))} if repair else {}))
    else:
        if repair:
            answer(*map(_removed, repaired), "" if repaired else "nothing was removed\n")
        answer(_table(found), "", _sum(failed, warned))
    return REFUSED if failed else ALLOWED


def _repaired(session: CommandSession, yes: bool) -> list[CorruptState]:
    """Until nothing more is found: a corrupt record of the namespace hides the rest."""
    repaired: list[CorruptState] = []
    with session.limiter() as limiter:
        while found := limiter.find_corrupt():
            some = "\n".join(f"  {error}" for error in found[:_SHOWN])
            more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            question = f"{some}{more}\nRemove {'them' if len(found) > 1 else 'it'}? Buckets start full again"
            if not confirmed(question, yes, f"{len(found)} corrupt"):
                break
            done = limiter.repair(found)
            repaired += done
            if not done:
                break
    return repaired


def _removed(error: CorruptState) -> str:
    if error.record_key:
        return f"removed: record {error.record_key} ({error.why})"
    return f"removed: buckets of {error.entity_id} on {error.resource}, which start full ({error.why})"


def _described(error: CorruptState) -> dict[str, str]:
    place = {"record_key": error.record_key} if error.record_key else _place(error)
    return {**place, "why": error.why}


def _place(error: CorruptState) -> dict[str, str]:
    return {"entity_id": error.entity_id, "resource": error.resource}


def _findings(session: CommandSession, read_only: bool, rules_file: str | None) -> Iterator[Finding]:
    from ...core.errors import NamespaceNotFound
    from ...limiter import SyncRateLimiter
    from . import checks, rules

    def limiter(namespace: str) -> SyncRateLimiter:
        # Looking is not worth an event.
        timeout = checks.TIMEOUT_SECONDS
        return SyncRateLimiter(url, namespace=namespace, store_timeout=timeout, audit_days=0, usage_days=0)

    url = session.store_url
    yield from checks.package_findings()
    found = list(checks.store_findings(url))
    yield from found
    if found[0].verdict == "fail":
        return
    namespace = session.namespace or "default"
    with limiter(namespace if read_only else f"doctor-{secrets.token_hex(4)}") as scratch:
        yield from (checks.ping_findings if read_only else checks.scratch_findings)(scratch)
    with limiter(namespace) as own:
        corrupt: list[CorruptState] = []
        with suppress(NamespaceNotFound):  # it is deleted, which is said below
            corrupt = own.find_corrupt(pages=checks.PAGES_LOOKED_AT)
            yield from checks.corrupt_findings(corrupt)
        if any(error.record_key for error in corrupt):
            return  # what they say of limits and rules cannot be known
        usable = True
        for finding in checks.namespace_findings(own):
            usable = usable and finding.verdict != "fail"
            yield finding
        if usable:
            yield from rules.rules_findings(own, rules_file)


def _table(found: Sequence[Finding]) -> TextTable:
    rows: list[list[str]] = []
    for finding in found:
        rows.append([finding.verdict, finding.check, finding.found])
        if finding.advice:
            rows.append(["", "", f"-> {finding.advice}"])
    return TextTable(["", "", ""], rows)


def _sum(failed: int, warned: int) -> str:
    if not failed and not warned:
        return "all is well"
    counts = [
        f"{count} {what}{'s' if count > 1 and what == 'warning' else ''}" for count, what in _named(failed, warned)
    ]
    return ", ".join(counts)


def _named(failed: int, warned: int) -> list[tuple[int, str]]:
    return [(count, what) for count, what in ((failed, "failed"), (warned, "warning")) if count]

"""The command `headgate doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ..command import CliCommand
from ..errors import ALLOWED, REFUSED
from ..options import DEFAULT_NAMESPACE, CommandSession, confirmed, scratch_name, work_options, yes_option
from ..output import TextTable, answer, answer_json

if TYPE_CHECKING:
    from ...core.errors import CorruptState
    from ...stores.health import Finding

_SHOWN = 10


@click.command(
    cls=CliCommand,
    short_help="Find problems, and how to correct them.",
    examples=[
        "headgate doctor",
        "headgate doctor --url redis://localhost --namespace shop",
        "headgate doctor --rules rules.yaml",
        "headgate doctor --read-only --json",
        "headgate doctor --repair",
    ],
)
@click.option("--read-only", is_flag=True, help="Write nothing: skip the checks in a scratch namespace.")
@click.option("--rules", metavar="FILE", help="Check the rules of this file instead of the stored rules.")
@click.option("--repair", is_flag=True, help="Remove corrupt data of the namespace, after confirmation.")
@yes_option
@work_options
def doctor(session: CommandSession, read_only: bool, rules: str | None, repair: bool, yes: bool) -> int:
    """Check everything that limits depend on, and say how to correct problems.

    It checks versions; whether the store answers, and its configuration; its clock; the permissions of this user, in a
    scratch namespace that is removed again; the latency of a decision; whether the namespace is active, its limits can
    admit requests, and its rules can be obeyed; and whether stored data is corrupt. The exit code is 1 if a check
    failed, and 0 if there are only warnings.

    With --repair, corrupt data is removed first. A removed bucket starts full again. A removed record is as if it had
    never been stored: store the limits again.
    """
    if repair and read_only:
        raise click.UsageError("--repair and --read-only contradict each other: use one of them")
    repaired = _repaired(session, yes) if repair else None
    found = list(_findings(session, read_only, rules))
    verdicts = Counter(finding.verdict for finding in found)
    if session.as_json:
        answer_json(_as_dict(found, repaired))
    else:
        answer(*_lines(found, repaired), "", _sum(verdicts["fail"], verdicts["warn"]))
    return REFUSED if verdicts["fail"] else ALLOWED


def _as_dict(found: Sequence[Finding], repaired: Sequence[CorruptState] | None) -> dict[str, Any]:
    shown = {
        "ok": all(finding.verdict != "fail" for finding in found),
        "findings": [finding.as_dict() for finding in found],
    }
    return shown if repaired is None else shown | {"repaired": list(map(_described, repaired))}


def _lines(found: Sequence[Finding], repaired: Sequence[CorruptState] | None) -> Iterator[str | TextTable]:
    if repaired is not None:
        yield from map(_removed, repaired)
        yield from [""] if repaired else ["nothing was removed", ""]
    yield _table(found)


def _repaired(session: CommandSession, yes: bool) -> list[CorruptState]:
    """Repeated until nothing is found: a corrupt record of the namespace itself hides the rest."""
    repaired: list[CorruptState] = []
    with session.limiter() as limiter:
        while found := limiter.find_corrupt():
            lines = [f"  {error}" for error in found[:_SHOWN]]
            lines += [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            question = f"Remove {'them' if len(found) > 1 else 'it'}? Buckets will start full"
            if not confirmed(question, yes, f"{len(found)} corrupt", lines):
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
        # A check writes no audit events and no usage.
        timeout = checks.TIMEOUT_SECONDS
        return SyncRateLimiter(url, namespace=namespace, store_timeout=timeout, audit_days=0, usage_days=0)

    url = session.store_url
    yield from checks.package_findings()
    found = list(checks.store_findings(url))
    yield from found
    if found[0].verdict == "fail":
        return
    namespace = session.namespace or DEFAULT_NAMESPACE
    with limiter(namespace if read_only else scratch_name("doctor")) as scratch:
        yield from (checks.ping_findings if read_only else checks.scratch_findings)(scratch)
    with limiter(namespace) as own:
        corrupt: list[CorruptState] = []
        with suppress(NamespaceNotFound):  # it is deleted, which namespace_findings reports
            corrupt = own.find_corrupt(pages=checks.PAGES_LOOKED_AT)
            yield from checks.corrupt_findings(corrupt)
        if any(error.record_key for error in corrupt):
            return  # limits and rules may be unreadable
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
        return "no problems found"
    counts = [
        f"{count} {what}{'s' if count > 1 and what == 'warning' else ''}" for count, what in _named(failed, warned)
    ]
    return ", ".join(counts)


def _named(failed: int, warned: int) -> list[tuple[int, str]]:
    return [(count, what) for count, what in ((failed, "failed"), (warned, "warning")) if count]

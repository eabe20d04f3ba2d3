"""Running a migration: first the whole table is read and converted, then it is copied page by page.

The result of the first pass is the preview, and the report of a real run. If something cannot be migrated, the run ends
there, before anything is written. Both passes use the same code to read and convert.

In place, the new items have namespaces with new ids, so no old item is touched before the new ones are complete. Then
the version of the table changes, and a third pass removes the old items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ....core.errors import ValidationError
from ....core.names import check_namespace
from ....plan import Plan
from ..deliver import Deliverer
from ..exchange import MoreTime, Send
from ..items import ItemKey, item_key_of, key_of, page_plan
from ..namespaces import Namespaces
from ..table import VERSION_KEY, DynamoDBTable, Foreign, Found, Versions
from .record import MigrationRecord, Noted
from .source import Piece, Renamed, ZaeTable
from .writes import Addition, Context, NewItem
from .zae_convert import convert, differences
from .zae_items import DERIVED, SCHEMAS, UNKNOWN

PAGE = 100
_AT_ONCE = 25
_SHOWN = 20


@dataclass
class MigrationReport:
    """`counts`: items of the source by kind. `problems`: what cannot be migrated, or behaves differently afterwards.

    `finished_at_ms`: when an earlier run finished; 0 if none did.
    """

    source: str
    target: str
    found: str
    namespaces: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    finished_at_ms: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "counts": dict(sorted(self.counts.items()))}


class MigrationRefused(ValidationError):
    """Not all of a table can be migrated. `problems`: the reasons, one for each part."""

    def __init__(self, report: MigrationReport) -> None:
        self.report, self.problems = report, report.problems
        more = len(report.problems) - _SHOWN
        lines = [*report.problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__(
            f"table {report.source!r} ({report.found}) cannot be migrated completely, and nothing was written:\n  "
            + "\n  ".join(lines)
            + "\nchange these, or leave them out with --force"
        )


class _Page(NamedTuple):
    counts: Counter[str]
    problems: list[str]
    writes: list[NewItem | Addition]
    carried: list[ItemKey]
    after: ItemKey | None


class Migrator:
    """From the table of `source` into that of `target`, which may be the same. `now_ms` is the clock."""

    def __init__(self, source: Deliverer, target: Deliverer, now_ms: Callable[[], int], page_size: int = PAGE) -> None:
        self._from, self._to = source, target
        self._source = ZaeTable(source)
        self._record = MigrationRecord(target, now_ms)
        self._now_ms = now_ms
        self._page_size = page_size
        self._in_place = source.table == target.table

    def run_plan(
        self, namespace: str = "default", *, dry: bool = False, cascade: bool | None = None, force: bool = False
    ) -> Plan[MigrationReport | None]:
        """Migrate the table. None if there is nothing to do. With `dry`, write nothing and return the same report.

        `namespace`: for a table without namespaces. `cascade`: for entities that do not say. `force`: leave out what
        cannot be migrated.
        """
        check_namespace(namespace)
        found = yield from self._look_plan()
        noted = yield from self._noted_plan()
        if not isinstance(found, Foreign):
            if self._in_place and noted is not None and not (noted.swept or dry):
                yield from self._sweep_plan(noted)
            return None
        report = MigrationReport(self._from.table, self._to.table, found.maker)
        if noted is not None and noted.finished_at_ms:
            report.finished_at_ms = noted.finished_at_ms
        else:
            job, report.notes = yield from self._job_plan(namespace, cascade, noted)
            yield from self._preview_plan(report, job, force=force)
            if not dry:
                yield from self._copy_plan(job, force=force)
        return report

    # Looking

    def _look_plan(self) -> Plan[Found]:
        if not (yield from DynamoDBTable(self._from).exists_plan()):
            raise ValidationError(f"there is no table {self._from.table!r} in {self._from.settings.where}")
        found = yield from Versions(self._from).read_plan()
        if not isinstance(found, Foreign):
            return Versions(self._from).checked(found)
        if found.schema is not None and found.schema not in SCHEMAS:
            raise ValidationError(
                f"table {self._from.table!r} has schema version {found.schema!r} of zae-limiter; this headgate reads "
                f"{', '.join(SCHEMAS)}, which its releases 0.1 to 0.17 write. Nothing was written: upgrade headgate"
            )
        return found

    def _noted_plan(self) -> Plan[Noted | None]:
        """The notes of an earlier run; an error if the target is in use, or was filled from another table."""
        if not (yield from DynamoDBTable(self._to).exists_plan()):
            return None
        noted = yield from self._record.read_plan()
        if noted is not None and noted.source == self._from.table:
            return noted
        if self._in_place or (noted is None and (yield from self._target_is_free_plan())):
            return None
        raise ValidationError(
            f"table {self._to.table!r} is in use, or was filled from another table: name a new or unused one with "
            "--to-table. Nothing was written"
        )

    def _target_is_free_plan(self) -> Plan[bool]:
        """It may have been deployed and set up, with namespaces that have no data yet."""
        if isinstance((yield from Versions(self._to).read_plan()), Foreign):
            return False
        scan = {
            "FilterExpression": "PK <> :registry",
            "ExpressionAttributeValues": {":registry": {"S": VERSION_KEY[0]}},
        }
        start: Any = None
        while True:
            yield from MoreTime()
            reply, start = yield from page_plan(self._to, scan, start, "Scan")
            if reply["Items"] or not start:
                return not reply["Items"]

    def _job_plan(self, namespace: str, cascade: bool | None, noted: Noted | None) -> Plan[tuple[Noted, list[str]]]:
        """The notes for this run; those of an earlier run, if there was one."""
        found, notes = yield from self._source.namespaces_plan(namespace, self._now_ms())
        if noted is None:
            return Noted(self._from.table, found, cascade), notes
        if "" in noted.namespaces and noted.namespaces[""].name != namespace:
            raise ValidationError(f"this migration was begun for namespace {noted.namespaces[''].name!r}: use the same")
        return noted, notes

    def _preview_plan(self, report: MigrationReport, job: Noted, *, force: bool) -> Plan[None]:
        report.namespaces = sorted(each.name for each in job.carried)
        start = None
        while True:
            page = yield from self._page_plan(start, job)
            report.counts.update(page.counts)
            report.problems += [problem for problem in page.problems if problem not in report.problems]
            start = page.after
            if start is None:
                break
        if report.problems and not force:
            raise MigrationRefused(report)

    # Writing

    def _copy_plan(self, wanted: Noted, *, force: bool) -> Plan[None]:
        yield from DynamoDBTable(self._to).create_missing_plan()
        if not self._in_place:
            wanted = wanted._replace(namespaces=(yield from self._registered_plan(wanted.namespaces)))
        job = yield from self._record.begin_plan(wanted)
        if job.finished_at_ms:
            return
        if not self._in_place:
            yield from self._record.mark_plan()
        start = job.start
        while True:
            page = yield from self._page_plan(start, job)
            if page.problems and not force:
                raise ValidationError(
                    f"table {self._from.table!r} has changed since the first pass: {page.problems[0]}. Run it again"
                )
            yield from self._all_plan([write.send(self._to.table) for write in page.writes])
            start = page.after
            if start is None:
                break
            yield from self._record.save_plan(start)
        yield from self._record.end_plan(job.carried)
        if self._in_place:
            yield from self._sweep_plan(job)

    def _registered_plan(self, namespaces: Mapping[str, Renamed]) -> Plan[dict[str, Renamed]]:
        """With the target's ids for these names, because policies may be restricted to them."""
        ids = {each.name: each.id for each in (yield from Namespaces(self._to).all_plan())}
        return {
            ns: each._replace(id=ids.get(each.name, each.id)) if each.id else each for ns, each in namespaces.items()
        }

    def _sweep_plan(self, job: Noted) -> Plan[None]:
        """Remove the migrated items. Items that were left out stay, so that they can be examined."""
        yield from self._record.begin_plan(job)
        start = None
        while True:
            page = yield from self._page_plan(start, job)
            deletes = [{"TableName": self._from.table, "Key": key_of(each)} for each in page.carried]
            yield from self._all_plan([Send("DeleteItem", delete, repeatable=True) for delete in deletes])
            start = page.after
            if start is None:
                break
            yield from self._record.save_plan(None)
        yield from self._record.save_plan(None, swept=1)

    def _all_plan(self, sends: Sequence[Send]) -> Plan[None]:
        for start in range(0, len(sends), _AT_ONCE):
            yield from MoreTime()
            yield from self._to.all_plan(sends[start : start + _AT_ONCE])

    # One page

    def _page_plan(self, start: ItemKey | None, job: Noted) -> Plan[_Page]:
        ours = frozenset(each.id for each in job.carried) if self._in_place else frozenset()
        pieces, after = yield from self._source.page_plan(start, self._page_size, ours)
        parents = yield from self._source.parents_plan(pieces)
        page = _Page(Counter(), [], [], [], after)
        for piece in pieces:
            renamed = job.namespaces.get(piece.group.ns)
            if renamed is None or piece.group.kind == DERIVED:
                _pass_over(page, piece)
            elif not renamed.id:
                page.counts["of namespaces that are left out"] += len(piece.on_page)
            else:
                there = {entity_id: fields for (ns, entity_id), fields in parents.items() if ns == piece.group.ns}
                _add(page, piece, Context(renamed.id, renamed.name, self._now_ms(), job.cascade, there))
        return page


def _pass_over(page: _Page, piece: Piece) -> None:
    group, on_page, _ = piece
    if group.kind == DERIVED:
        # The version and the names in the registry are headgate's by now.
        gone = [each for each in map(item_key_of, on_page) if each[0] != VERSION_KEY[0] or each[1].startswith("#NSID#")]
        page.carried.extend(gone)
    elif group.ns:
        page.problems.append(f"{group}: no namespace has the id {group.ns!r}")
    else:
        page.counts["not read by zae-limiter from 0.10 on"] += len(on_page)


def _add(page: _Page, piece: Piece, context: Context) -> None:
    group, on_page, items = piece
    where = f"{group} in namespace {context.name!r}"
    try:
        if group.kind == UNKNOWN:
            raise ValidationError("zae-limiter has no items with such a key")
        page.writes.extend(convert(group, items, context))
        page.problems.extend(f"{where}: {each}" for each in differences(group, items, context))
    except ValidationError as error:
        page.problems.append(f"{where}: {error}")
        return
    page.counts[group.kind] += len(on_page)
    page.carried.extend(map(item_key_of, on_page))

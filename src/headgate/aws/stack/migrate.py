"""Carrying a table of zae-limiter's over to headgate."""

from __future__ import annotations

from contextlib import closing

from ...core.errors import ValidationError
from ...stores.dynamodb.migrations import MigrationRefused as MigrationRefused
from ...stores.dynamodb.migrations import MigrationReport
from ...stores.dynamodb.url import check_table
from .clients import Aws
from .registry import Registry

SUFFIX = "-headgate"


def migrate_table(
    name: str,
    to_table: str | None = None,
    *,
    in_place: bool = False,
    namespace: str = "default",
    cascade: bool | None = None,
    force: bool = False,
    dry_run: bool = False,
    region: str | None = None,
    profile: str | None = None,
    endpoint_url: str | None = None,
) -> MigrationReport | None:
    """Copy the table `name`, one of zae-limiter's, into `to_table` (`name` and "-headgate", unless it says otherwise).

    None if there is nothing to do: the table is headgate's already, or empty. MigrationRefused, before anything is
    written, if not all of it can be carried; `force` goes on without the rest. The table `name` is only
    read, unless `in_place`: then stop all its clients first, and do not use it with zae-limiter afterwards. If the
    migration is interrupted, run it again.

    `namespace`: for what was written before zae-limiter had namespaces. `cascade`: of entities with a parent that were
    written before entities said so themselves. Region and profile, if not given, are those of the AWS configuration.
    """
    target = check_table(name if in_place else to_table or f"{name}{SUFFIX}")
    if in_place and to_table not in (None, name):
        raise ValidationError(f"in place, and into the table {to_table!r}: give one of the two")
    if not in_place and target == name:
        raise ValidationError(f"table {name!r} would be copied into itself: name another one, or say in place")
    with closing(Aws(region, profile, endpoint_url)) as aws:
        registry = Registry(aws, check_table(name))
        return registry.migrate(target, namespace, cascade=cascade, force=force, dry=dry_run)

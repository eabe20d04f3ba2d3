"""`headgate namespace`: the namespaces of a store."""

from __future__ import annotations

import click

from ..core.errors import ValidationError
from ..limiter import Namespace
from .command import CliCommand, CliGroup
from .errors import REFUSED
from .options import (
    CommandSession,
    actor_option,
    confirmed,
    confirmed_name,
    json_option,
    url_option,
    with_session,
    yes_option,
)
from .output import TextTable, all_pages, answer, answer_json, moment, number

_look_options = with_session(url_option, json_option)
_change_options = with_session(url_option, actor_option, json_option, changes=True)
_name_argument = click.argument("name")


@click.group(cls=CliGroup, short_help="Namespaces: register, delete, recover, purge.")
def namespace() -> None:
    """Register, delete, recover and purge namespaces. Each has its own entities, limits and buckets.

    A namespace is registered when it is first used. A deleted namespace can be recovered until it is purged.
    """


@namespace.command("list", cls=CliCommand, examples=["headgate namespace list"])
@_look_options
def list_(session: CommandSession) -> None:
    """List the namespaces of the store, deleted ones too."""
    with session.limiter() as limiter:
        found = list(all_pages(lambda cursor: limiter.list_namespaces(cursor=cursor)))
    if session.as_json:
        answer_json([one.as_dict() for one in found])
    elif found:
        rows = [[one.name, one.status, moment(one.created_at), moment(one.deleted_at), one.id] for one in found]
        answer(TextTable(["namespace", "status", "created", "deleted", "id"], rows))
    else:
        answer("no namespaces are registered")


@namespace.command(cls=CliCommand, examples=["headgate namespace register blue"])
@_name_argument
@_change_options
def register(session: CommandSession, name: str) -> None:
    """Register the namespace NAME before its first use."""
    with session.limiter() as limiter:
        _tell(session, limiter.register_namespace(name), "registered")


@namespace.command(cls=CliCommand, examples=["headgate namespace get blue"])
@_name_argument
@_look_options
def get(session: CommandSession, name: str) -> None:
    """Show the namespace NAME, and how much is stored in it."""
    with session.limiter() as limiter:
        found = limiter.get_namespace(name)
        count = limiter.count_namespace(name)
    if session.as_json:
        answer_json(found.as_dict() | {"stored": count})
        return
    rows = [
        ["namespace", found.name],
        ["status", found.status],
        ["created", moment(found.created_at)],
        ["deleted", moment(found.deleted_at)],
        ["id", found.id],
        ["stored", f"{number(count)} rows and records"],
    ]
    answer(TextTable(["", ""], [row for row in rows if row[1]]))


@namespace.command(
    cls=CliCommand,
    short_help="Delete a namespace; it can be recovered.",
    examples=["headgate namespace delete blue"],
)
@_name_argument
@yes_option
@_change_options
def delete(session: CommandSession, name: str, yes: bool) -> int | None:
    """Delete the namespace NAME: its clients get an error within a minute.

    Its data stays, and `headgate namespace recover` restores it.
    """
    with session.limiter() as limiter:
        limiter.get_namespace(name)
        if not confirmed(f"Delete the namespace {name}? Its clients will get errors.", yes):
            answer("nothing was deleted")
            return REFUSED
        _tell(session, limiter.delete_namespace(name), "deleted")
    return None


@namespace.command(cls=CliCommand, examples=["headgate namespace recover blue"])
@_name_argument
@_change_options
def recover(session: CommandSession, name: str) -> None:
    """Recover the namespace NAME, which was deleted and not yet purged."""
    with session.limiter() as limiter:
        _tell(session, limiter.recover_namespace(name), "recovered")


@namespace.command(
    cls=CliCommand,
    short_help="Remove all data of a deleted namespace.",
    examples=["headgate namespace purge blue", "headgate namespace purge blue --confirm blue"],
)
@_name_argument
@click.option("--confirm", metavar="NAME", help="The name again, instead of a prompt.")
@click.option("--orphan", is_flag=True, help="NAME is not registered, but listed by `headgate namespace orphans`.")
@_change_options
def purge(session: CommandSession, name: str, confirm: str | None, orphan: bool) -> int | None:
    """Remove all data of the namespace NAME permanently. It must be deleted first.

    The command shows how much data there is, and asks for the name. A purge that was interrupted can be repeated.
    """
    with session.limiter() as limiter:
        if not orphan and limiter.get_namespace(name).status == "active":
            raise ValidationError(f"namespace {name!r} is active: 'headgate namespace delete {name}' comes first")
        much = "All data" if orphan else f"{number(limiter.count_namespace(name))} rows and records"
        question = f"{much} of the namespace {name} will be removed permanently."
        typed = confirmed_name(name, question, confirm)
        if typed != name and confirm is None:
            answer("nothing was purged")
            return REFUSED
        remove = limiter.purge_orphan if orphan else limiter.purge_namespace
        removed = remove(name, confirm=typed)
    if session.as_json:
        answer_json({"name": name, "removed": removed})
    else:
        answer(f"purged: {name}, {number(removed)} rows and records")
    return None


@namespace.command(
    cls=CliCommand,
    short_help="List unregistered namespaces that have data.",
    examples=["headgate namespace orphans"],
)
@_look_options
def orphans(session: CommandSession) -> None:
    """List the namespaces that have data but are not registered.

    Clients that had not yet noticed a purge left that data. `headgate namespace purge --orphan` removes it.
    """
    with session.limiter() as limiter:
        found = limiter.list_orphans()
    if session.as_json:
        answer_json(found)
    else:
        answer(*(found or ["no orphans"]))


def _tell(session: CommandSession, found: Namespace, done: str) -> None:
    if session.as_json:
        answer_json(found.as_dict())
    else:
        answer(f"{done}: {found.name}")

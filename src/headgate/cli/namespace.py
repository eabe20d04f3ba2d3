"""`headgate namespace`: what a store is divided into."""

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
    """What a store is divided into: each namespace has entities, limits and buckets of its own.

    A namespace registers itself when it is first used. One that was deleted can be recovered until it is purged.
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
        answer("no namespace is registered")


@namespace.command(cls=CliCommand, examples=["headgate namespace register blue"])
@_name_argument
@_change_options
def register(session: CommandSession, name: str) -> None:
    """Register the namespace NAME before anybody uses it."""
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
        ["stored", f"{number(count)} things"],
    ]
    answer(TextTable(["", ""], [row for row in rows if row[1]]))


@namespace.command(
    cls=CliCommand,
    short_help="Delete a namespace, so that it can be recovered.",
    examples=["headgate namespace delete blue"],
)
@_name_argument
@yes_option
@_change_options
def delete(session: CommandSession, name: str, yes: bool) -> int | None:
    """Delete the namespace NAME: whoever uses it gets an error, within a minute.

    All that is in it stays, and `headgate namespace recover` brings it back.
    """
    with session.limiter() as limiter:
        limiter.get_namespace(name)
        if not confirmed(f"Delete the namespace {name}, so that nobody can use it?", yes):
            answer("nothing was deleted")
            return REFUSED
        _tell(session, limiter.delete_namespace(name), "deleted")
    return None


@namespace.command(cls=CliCommand, examples=["headgate namespace recover blue"])
@_name_argument
@_change_options
def recover(session: CommandSession, name: str) -> None:
    """Bring back the namespace NAME, which was deleted and not yet purged."""
    with session.limiter() as limiter:
        _tell(session, limiter.recover_namespace(name), "recovered")


@namespace.command(
    cls=CliCommand,
    short_help="Remove all that is stored of a deleted namespace.",
    examples=["headgate namespace purge blue", "headgate namespace purge blue --confirm blue"],
)
@_name_argument
@click.option("--confirm", metavar="NAME", help="The name once more, instead of being asked for it.")
@click.option("--orphan", is_flag=True, help="It is not registered: one of `headgate namespace orphans`.")
@_change_options
def purge(session: CommandSession, name: str, confirm: str | None, orphan: bool) -> int | None:
    """Remove all that is stored of the namespace NAME, for good. It must have been deleted before.

    It says how much that is, and asks for the name. One that was interrupted can be purged again.
    """
    with session.limiter() as limiter:
        if not orphan and limiter.get_namespace(name).status == "active":
            raise ValidationError(f"namespace {name!r} is in use: 'headgate namespace delete {name}' comes first")
        much = "All" if orphan else f"{number(limiter.count_namespace(name))} things"
        question = f"{much} stored of the namespace {name} will be gone for good."
        typed = confirmed_name(name, question, confirm)
        if typed != name and confirm is None:
            answer("nothing was purged")
            return REFUSED
        remove = limiter.purge_orphan if orphan else limiter.purge_namespace
        removed = remove(name, confirm=typed)
    if session.as_json:
        answer_json({"name": name, "removed": removed})
    else:
        answer(f"purged: {name}, {number(removed)} things")
    return None


@namespace.command(
    cls=CliCommand,
    short_help="List data of namespaces that are not registered.",
    examples=["headgate namespace orphans"],
)
@_look_options
def orphans(session: CommandSession) -> None:
    """List the namespaces of which something is stored though they are not registered.

    It is left by clients that had not noticed yet while their namespace was purged. `headgate namespace purge --orphan`
    removes it.
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

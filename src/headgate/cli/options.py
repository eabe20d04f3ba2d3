"""Options that commands share, the limiter they open, and confirmations."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias
from urllib.parse import quote

import click

from ..core.errors import ValidationError
from ..core.names import shown_url
from ..limiter import SyncRateLimiter
from ..limiter.ids import MAX_KEY_BYTES, ToStoredId, to_stored_id
from .output import printable

Decorator: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"

KEY_VARIABLE = "HEADGATE_HASH_KEY"
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The store and namespace of a command, and its output format.

    A command passes every entity id it was given to `stored_id`, and the limiter does not hash: so the ids in the
    output can be used in other commands, and no output shows an id that is stored as a hash.
    """

    url: str | None
    namespace: str | None
    as_json: bool
    stored_id: ToStoredId
    actor: str | None = None
    reads: bool = False

    def limiter(self) -> SyncRateLimiter:
        limiter = SyncRateLimiter(self.store_url, namespace=self.namespace or DEFAULT_NAMESPACE, actor=self.actor)
        if self.reads and limiter.namespace != DEFAULT_NAMESPACE:
            try:
                limiter.get_namespace(limiter.namespace)  # a mistyped name is an error, not an empty answer
            except BaseException:
                limiter.close()
                raise
        return limiter

    def say_where(self) -> None:
        """Print the store and namespace of a change. On standard error: a program may read standard output."""
        own = "" if self.url else " (the default file: use --url or HEADGATE_URL for another store)"
        namespace = f"namespace {self.namespace} of " if self.namespace else ""
        click.echo(printable(f"in {namespace}{shown_url(self.store_url)}{own}"), err=True)

    @property
    def store_url(self) -> str:
        return self.url or default_url()


def default_url() -> str:
    """A file in the user's data directory, which is created if necessary."""
    import platformdirs

    folder = platformdirs.user_data_path("headgate", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(
            f"the folder {str(folder)!r} of the default store cannot be created ({error.strerror}): "
            "use --url or HEADGATE_URL"
        ) from None
    return f"sqlite:///{quote((folder / 'headgate.db').as_posix(), safe='/:')}"


def hash_key() -> bytes | bool:
    """The key from the environment, or True: hash without a key. An empty variable is an error."""
    if KEY_VARIABLE not in os.environ:
        return True
    key = os.fsencode(os.environ[KEY_VARIABLE])
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValidationError(
            f"{KEY_VARIABLE} must be 1 to {MAX_KEY_BYTES} bytes, not {len(key)}: unset it to hash without a key"
        )
    return key


def scratch_name(purpose: str) -> str:
    """Of a namespace that exists as long as a command runs."""
    return f"{purpose}-{secrets.token_hex(4)}"


def remove_namespace(limiter: SyncRateLimiter) -> None:
    """The limiter's own, with everything in it."""
    limiter.delete_namespace(limiter.namespace)
    limiter.purge_namespace(limiter.namespace, confirm=limiter.namespace)


def seconds_option(name: str, least: float, most: float, help: str, *, default: float | None = None) -> Decorator:
    bounds = click.FloatRange(least, most)
    shown = default is not None
    return click.option(name, metavar="SECONDS", type=bounds, default=default, show_default=shown, help=help)


def count_option(name: str, most: int | None, help: str, *, default: int | None = None) -> Decorator:
    bounds = click.IntRange(1, most)
    shown = default is not None
    return click.option(name, metavar="N", type=bounds, default=default, show_default=shown, help=help)


def workers_option(most: int, help: str) -> Decorator:
    return count_option("--workers", most, help, default=4)


def bind_option(default: str, help: str) -> Decorator:
    return click.option("--bind", metavar="HOST:PORT", default=default, show_default=True, help=help)


url_option = click.option(
    "--url",
    metavar="URL",
    envvar="HEADGATE_URL",
    show_envvar=True,
    help="The store to use. Default: an SQLite file in your data directory.",
)
namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    default=DEFAULT_NAMESPACE,
    show_default=True,
    envvar="HEADGATE_NAMESPACE",
    show_envvar=True,
    help="The namespace in the store.",
)
hash_option = click.option(
    "--hash-entity-ids",
    is_flag=True,
    envvar="HEADGATE_HASH_ENTITY_IDS",
    show_envvar=True,
    help="Store and show a hash of each entity id, never the id itself.",
)
actor_option = click.option(
    "--actor",
    metavar="WHO",
    envvar="HEADGATE_ACTOR",
    show_envvar=True,
    help="Who makes the change, for `headgate audit`. Default: your user name.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, errors too.")


def with_session(*options: Callable[[Any], Any], reads: bool = False, changes: bool = False) -> Decorator:
    """Add the options, and pass them on as one CommandSession. `reads`: the namespace must exist. `changes`: print
    where the change was made."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(
            *args: Any,
            url: str | None,
            as_json: bool,
            namespace: str | None = None,
            hash_entity_ids: bool = False,
            actor: str | None = None,
            **kwargs: Any,
        ) -> Any:
            stored_id = to_stored_id(hash_entity_ids and hash_key())
            session = CommandSession(url, namespace, as_json, stored_id, actor, reads)
            code = function(session, *args, **kwargs)
            if changes and not as_json and not code:
                session.say_where()
            return code

        for option in reversed(options):
            command = option(command)
        return command

    return decorate


store_options = with_session(url_option, namespace_option, hash_option, json_option, reads=True)
work_options = with_session(url_option, namespace_option, hash_option, json_option)  # the namespace need not exist
change_options = with_session(url_option, namespace_option, hash_option, actor_option, json_option, changes=True)


# Asking before something is removed

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")


def confirmed(question: str, yes: bool, why: str = "", above: Iterable[str] = ()) -> bool:
    """`yes`: already confirmed. `why`: the reason to ask, for the error if there is no terminal. `above`: lines to show
    above the question."""
    if yes:
        return True
    if not sys.stdin.isatty():
        reason = f"{why}; " if why else ""
        raise click.UsageError(f"{reason}there is no terminal to ask for confirmation: use --yes to confirm")
    _show(above)
    return click.confirm(printable(question), err=True)


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line), err=True)


def confirmed_name(name: str, question: str, given: str | None) -> str:
    """The name as given or typed. The caller compares it with the real one."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask for confirmation: use --confirm {name} to confirm")
    _show([question])
    typed: str = click.prompt("Type its name to confirm", default="", show_default=False, err=True)
    return typed

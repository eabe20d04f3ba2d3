"""The options every command has, and what they open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import quote

import click

from ..core.errors import ValidationError
from ..limiter import SyncRateLimiter


@dataclass(frozen=True, slots=True)
class Session:
    """Where a command works, and how it answers."""

    url: str | None
    namespace: str | None
    as_json: bool

    def limiter(self) -> SyncRateLimiter:
        return SyncRateLimiter(self.url or default_url(), namespace=self.namespace or "default")


def default_url() -> str:
    """A file in the user's data directory, which is made if it is not there."""
    import platformdirs

    folder = platformdirs.user_data_path("headgate", appauthor=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(
            f"the default store needs the folder {str(folder)!r}, which cannot be made ({error.strerror}): "
            "give --url or set HEADGATE_URL"
        ) from None
    return f"sqlite:///{quote((folder / 'headgate.db').as_posix(), safe='/:')}"


url_option = click.option(
    "--url",
    metavar="URL",
    envvar="HEADGATE_URL",
    show_envvar=True,
    help="The store to use; without one, an SQLite file in your data directory.",
)
namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    default="default",
    show_default=True,
    envvar="HEADGATE_NAMESPACE",
    show_envvar=True,
    help="The namespace in the store.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, errors too.")


def with_session(*options: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options and pass them on as one Session."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*args: Any, url: str | None, namespace: str | None, as_json: bool, **kwargs: Any) -> Any:
            return function(Session(url, namespace, as_json), *args, **kwargs)

        for option in reversed(options):
            command = option(command)
        return command

    return decorate


store_options = with_session(url_option, namespace_option, json_option)

"""The URLs of PostgreSQL: libpq's own, plus a few options of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from ...core.errors import ValidationError
from ...core.names import shown_url
from .driver import check_conninfo

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,54}")
_OWN = ("schema", "unlogged", "pool", "prepare", "listen")
_POOL = 10


@dataclass(frozen=True)
class PostgresSettings:
    """`conninfo` is for libpq. `unlogged`: how `setup` creates the tables; None: as they are. `listen`: where to
    listen for free slots; None: nowhere."""

    url: str = field(repr=False)
    conninfo: str = field(repr=False)
    schema: str = "headgate"
    unlogged: bool | None = None
    pool: int = _POOL
    prepare: bool = True
    listen: str | None = field(default=None, repr=False)


def read_url(url: str) -> PostgresSettings:
    options, conninfo = _split(url)
    why = check_conninfo(conninfo)
    if why:
        raise _wrong(url, f"{why}; headgate's own options are {', '.join(_OWN)}")
    schema = options.get("schema", "headgate")
    if not _SCHEMA.fullmatch(schema):
        raise _wrong(url, f"schema={schema!r}; write 1 to 55 of a-z 0-9 _ and no digit first")
    pool = options.get("pool", str(_POOL))
    if not (pool.isascii() and pool.isdigit() and 0 < int(pool) <= 1000):
        raise _wrong(url, f"pool={pool!r}; write how many connections one process may have, from 1 to 1000")
    return PostgresSettings(
        url=url,
        conninfo=conninfo,
        schema=schema,
        unlogged=_yes(url, options, "unlogged"),
        pool=int(pool),
        prepare=_yes(url, options, "prepare") is not False,
        listen=_listen(url, options.get("listen", "1"), conninfo),
    )


def _wrong(url: str, why: str) -> ValidationError:
    return ValidationError(f"store URL {shown_url(url)!r} is not allowed: {why}")


def _split(url: str) -> tuple[dict[str, str], str]:
    """Our options, and the URL without them."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    options: dict[str, str] = {}
    rest: dict[str, str] = {}  # as it is: libpq reads it its own way
    for pair in filter(None, parts.query.split("&")):
        name, _, value = pair.partition("=")
        if name in options or name in rest:
            raise _wrong(url, f"{name} is given twice")
        if name in _OWN:
            options[name] = unquote(value)
        else:
            rest[name] = pair
    return options, urlunsplit(parts._replace(query="&".join(rest.values())))


def _yes(url: str, options: dict[str, str], option: str) -> bool | None:
    given = options.get(option)
    if given not in (None, "0", "1"):
        raise _wrong(url, f"{option}={given!r}; choose from 0, 1")
    return None if given is None else given == "1"


def _listen(url: str, given: str, conninfo: str) -> str | None:
    if given not in ("0", "1") and ("://" not in given or check_conninfo(given)):
        raise _wrong(url, "listen is 0, 1, or the URL of a direct connection to the server")
    return {"0": None, "1": conninfo}.get(given, given)

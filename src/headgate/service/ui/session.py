"""Login sessions. A session has a random id in a cookie, is known to all workers of this service, and ends with its
token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from secrets import token_bytes, token_urlsafe

import msgspec

from ...core.limit import Limit
from ...limiter import RateLimiter
from ..problems import ProblemError
from ..reading import Headers
from ..shared import put_file
from ..tokens import Token

COOKIE = "headgate_session"
THEME_COOKIE = "headgate_theme"
THEMES = ("system", "light", "dark")
SESSION_SECONDS = 8 * 3600
SESSIONS_PER_TOKEN = 20
WRONG_LOGINS = Limit.per_minute("logins", 10)

_PATH = "/ui"
_RESOURCE = "login"
_YEAR_SECONDS = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class LoginSession:
    """`csrf` is in every form. Pages of other sites do not know it."""

    session_id: str
    csrf: str
    token: Token
    expires_at: float

    def check_csrf(self, sent: str) -> None:
        if not hmac.compare_digest(self.csrf.encode(), sent.encode("utf-8", "surrogateescape")):
            raise ProblemError(403, "the form is not from this session: go back, reload the page, and send it again")


class StoredSession(msgspec.Struct):
    token: Token
    expires_at: float


class SessionFiles(MutableMapping[str, StoredSession]):
    """The sessions of all workers: a file for each, by the hash of its id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> StoredSession:
        try:
            return msgspec.json.decode(self._path(name).read_bytes(), type=StoredSession)
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, session: StoredSession) -> None:
        put_file(self._path(name), msgspec.json.encode(session))

    def __delitem__(self, name: str) -> None:
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in self._folder.glob("*.session"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.session"


class Sessions:
    """`find` returns the token with a hash, if it is still valid. `secret` is the key of the csrf values.

    `stored` has the sessions by the hash of their ids: an id is known to its browser only. Its times are of the
    monotonic clock, which all processes of a machine share.
    """

    def __init__(
        self,
        find: Callable[[str], Token | None],
        now: Callable[[], float] = time.monotonic,
        *,
        secret: bytes = b"",
        stored: MutableMapping[str, StoredSession] | None = None,
    ) -> None:
        self._find = find
        self._now = now
        self._secret = secret or token_bytes(32)
        self._stored: MutableMapping[str, StoredSession] = {} if stored is None else stored

    def csrf(self, session_id: str) -> str:
        return hmac.new(self._secret, session_id.encode(), sha256).hexdigest()

    def open(self, token: Token) -> LoginSession:
        now = self._now()
        found = {name: one for name in list(self._stored) if (one := self._stored.get(name)) is not None}
        of_token = [name for name, one in found.items() if one.token.sha256 == token.sha256]
        of_token.sort(key=lambda name: found[name].expires_at)
        oldest = of_token[: max(0, len(of_token) - SESSIONS_PER_TOKEN + 1)]
        for name in {*oldest, *(name for name, one in found.items() if one.expires_at <= now)}:
            self._forget(name)
        session_id = token_urlsafe(32)
        self._stored[_name(session_id)] = StoredSession(token, now + SESSION_SECONDS)
        return LoginSession(session_id, self.csrf(session_id), token, now + SESSION_SECONDS)

    def get(self, session_id: str | None) -> LoginSession | None:
        if not session_id:
            return None
        stored = self._stored.get(_name(session_id))
        if stored is None:
            return None
        session = LoginSession(session_id, self.csrf(session_id), stored.token, stored.expires_at)
        if stored.expires_at <= self._now() or self._find(stored.token.sha256) != stored.token:
            self.close(session)
            return None
        return session

    def close(self, session: LoginSession) -> None:
        self._forget(_name(session.session_id))

    def _forget(self, name: str) -> None:
        with suppress(KeyError):
            del self._stored[name]


def _name(session_id: str) -> str:
    return sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


class Logins:
    """A limit on wrong tokens per minute and address, by headgate itself, for all workers of this service.

    A valid token is always accepted, whatever was tried before from the same address: many people may share an address,
    and a token cannot be guessed, however many attempts there are.
    """

    def __init__(self, limiter: RateLimiter | None = None) -> None:
        self._limiter = limiter or RateLimiter("memory://")

    async def was_wrong(self, address: str) -> None:
        decision = await self._limiter.try_acquire(f"from-{address}", _RESOURCE, {WRONG_LOGINS.name: 1}, [WRONG_LOGINS])
        if not decision.allowed:
            seconds = ceil(decision.retry_after_seconds or 1)
            detail = f"too many wrong tokens from your address: try again in {seconds} s"
            raise ProblemError(429, detail, [("Retry-After", str(seconds))])

    async def close(self) -> None:
        await self._limiter.close()


def read_cookies(headers: Headers) -> dict[str, str]:
    """In one pass, without unescaping: our cookies have no quotes, and unescaping others takes unbounded time."""
    pairs = (part.partition("=") for part in headers.get(b"cookie", b"").decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def session_cookie(session: LoginSession | None, *, secure: bool) -> tuple[str, str]:
    """The header that sets the cookie; None: that deletes it."""
    value, age = (session.session_id, SESSION_SECONDS) if session else ("", 0)
    flags = f"Path={_PATH}; Max-Age={age}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
    return "Set-Cookie", f"{COOKIE}={value}; {flags}"


def theme_cookie(theme: str) -> tuple[str, str]:
    """Not a secret. With scripts, the page sets it itself."""
    return "Set-Cookie", f"{THEME_COOKIE}={theme}; Path={_PATH}; Max-Age={_YEAR_SECONDS}; SameSite=Strict"


def check_origin(headers: Headers) -> None:
    """A form must come from a page of this service. Browsers send its origin, and scripts cannot change it."""
    site = headers.get(b"sec-fetch-site")
    if site is None:
        origin, host = (headers.get(name, b"") for name in (b"origin", b"host"))
        same = bool(host) and origin.partition(b"://")[2] == host
    else:
        same = site == b"same-origin"  # also behind a proxy that changes the Host
    if not same:
        raise ProblemError(403, "the form comes from another site; nothing was changed")

"""Login sessions. A session has a random id in a cookie, lives in this process, and ends with its token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from secrets import token_urlsafe

from ...core.limit import Limit
from ...limiter import RateLimiter
from ..problems import ProblemError
from ..reading import Headers
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


class Sessions:
    """`find` returns the token with a hash, if it is still valid."""

    def __init__(self, find: Callable[[str], Token | None], now: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._now = now
        self._sessions: dict[str, LoginSession] = {}

    def open(self, token: Token) -> LoginSession:
        now = self._now()
        self._sessions = {name: one for name, one in self._sessions.items() if one.expires_at > now}
        of_token = [one for one in self._sessions.values() if one.token.sha256 == token.sha256]
        for oldest in of_token[: max(0, len(of_token) - SESSIONS_PER_TOKEN + 1)]:
            self.close(oldest)
        session = LoginSession(token_urlsafe(32), token_urlsafe(32), token, now + SESSION_SECONDS)
        self._sessions[session.session_id] = session
        return session

    def get(self, session_id: str | None) -> LoginSession | None:
        session = self._sessions.get(session_id or "")
        if session is None:
            return None
        if session.expires_at <= self._now() or self._find(session.token.sha256) != session.token:
            self.close(session)
            return None
        return session

    def close(self, session: LoginSession) -> None:
        self._sessions.pop(session.session_id, None)


class Logins:
    """A limit on wrong tokens per minute and address, by headgate itself, in this process.

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

"""The pages as a table: path, scope and handler of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from ...core.errors import ValidationError
from ...http.answer import HeaderList
from ...limiter import RateLimiter
from ..problems import ProblemError
from ..reading import Headers
from ..reading import read_cursor as read_page_cursor
from ..schema import PageQuery
from ..state import Room
from ..tokens import Scope, Token
from .session import LoginSession

if TYPE_CHECKING:
    from .dashboard import Dashboard

ROOT = "/ui"
Context: TypeAlias = "dict[str, Any]"

_FORM = b"application/x-www-form-urlencoded"
_MAX_FIELDS = 500


@dataclass(frozen=True, slots=True)
class Shown:
    """A page made from a template."""

    template: str
    context: Context = field(default_factory=dict)
    status: int = 200
    headers: HeaderList = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Go to another page, which shows a message: `done` is its key."""

    path: str
    done: str = ""
    headers: HeaderList = field(default_factory=list)

    @property
    def location(self) -> str:
        return f"{self.path}{'&' if '?' in self.path else '?'}done={self.done}" if self.done else self.path


Answer: TypeAlias = Shown | Redirect
Handler: TypeAlias = "Callable[[Visit], Awaitable[Answer]]"


class Fields:
    """The fields of a query or a form. A field may be repeated."""

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self._pairs = pairs

    @classmethod
    def read(cls, text: bytes) -> Fields:
        try:
            pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        except (ValueError, UnicodeDecodeError):
            raise ProblemError(400, "the request cannot be read") from None
        return cls(pairs)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def get(self, name: str) -> str:
        """The first value, without surrounding spaces; "" if there is none."""
        return next((value.strip() for key, value in self._pairs if key == name), "")

    def or_none(self, name: str) -> str | None:
        return self.get(name) or None


@dataclass(slots=True)
class Visit:
    """A request for a page. `secure`: by TLS. `looks`: a limiter without a cache, with ids as they are stored."""

    dashboard: Dashboard
    headers: Headers
    secure: bool
    address: str
    session: LoginSession | None = None
    room: Room | None = None
    looks: RateLimiter | None = None
    query: Fields = field(default_factory=lambda: Fields())
    form: Fields = field(default_factory=lambda: Fields())
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def token(self) -> Token:
        assert self.session is not None
        return self.session.token

    @property
    def actor(self) -> str | None:
        """The actor in the audit trail: the token. Without tokens, the user of this process."""
        return self.token.name if self.session and self.session.session_id else None

    @property
    def limiter(self) -> RateLimiter:
        assert self.looks is not None
        return self.looks

    @property
    def may_change(self) -> bool:
        return self.session is not None and self.token.allows("admin") and not self.dashboard.read_only

    @property
    def sees_namespaces(self) -> bool:
        return self.session is not None and self.token.allows("namespaces")

    def changed(self) -> None:
        """Make this process read the change at once, and the other workers soon."""
        assert self.room is not None
        self.room.limiter.invalidate_config_cache()
        self.dashboard.service.changed()


@dataclass(frozen=True, slots=True)
class PageRoute:
    """`scope` None: no login is needed. `changes`: not allowed while the dashboard is read-only."""

    method: str
    path: str
    scope: Scope | None
    handler: Handler
    changes: bool


def page(
    method: str, path: str, scope: Scope | None = "read", *, changes: bool | None = None
) -> Callable[[Handler], PageRoute]:
    def made(handler: Handler) -> PageRoute:
        return PageRoute(method, ROOT + path, scope, handler, scope == "admin" if changes is None else changes)

    return made


def check_form(headers: Headers) -> None:
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _FORM:
        raise ProblemError(415, "a form must be sent as application/x-www-form-urlencoded")


def link(*parts: str, **query: str | None) -> str:
    """A path of the dashboard. Characters of an id are escaped."""
    path = "/".join([ROOT, *(quote(part, safe="") for part in parts)])
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def whole_number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValidationError(f"{what} must be a whole number, not {text[:40]!r}") from None


def read_cursor(query: Fields) -> str | None:
    return read_page_cursor(PageQuery(cursor=query.get("cursor")))

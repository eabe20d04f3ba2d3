"""The webhook's end: a URL that signed messages are posted to."""

from __future__ import annotations

import asyncio
import hmac
import re
import ssl
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .. import __version__
from ..core.errors import ValidationError

TIMEOUT_SECONDS = 8.0
SIGNATURE = "Headgate-Signature"
LEAST_SECRET_BYTES = 16
_MOST_SECRET_BYTES = 4096
_MOST_URL_CHARACTERS = 2048
_MOST_ANSWER_BYTES = 16 * 1024
_REST_SECONDS = 0.5
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: .*)?\r\n")


class NotDelivered(Exception):
    """Says why, without the URL."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An http or https URL, and the secret that messages are signed with."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # no port, or no address
            sound = False
        if not sound or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise ValidationError("the webhook must be a URL like 'https://example.com/alerts', with nothing to escape")
        if len(self.url) > _MOST_URL_CHARACTERS:
            raise ValidationError(f"the webhook's URL must have at most {_MOST_URL_CHARACTERS:,} characters")
        if len(self.secret) < LEAST_SECRET_BYTES:
            raise ValidationError(
                f"the webhook needs a secret of at least {LEAST_SECRET_BYTES} bytes to sign its messages: set "
                "HEADGATE_WEBHOOK_SECRET, or pass --webhook-secret-file"
            )

    def __str__(self) -> str:
        """Without what may be secret: the path, the query and the user."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    async def post(self, body: bytes) -> None:
        """Post JSON, or raise NotDelivered. Redirects are not followed."""
        try:
            status = await asyncio.wait_for(self._answer_to(body), TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            raise NotDelivered(f"no answer within {TIMEOUT_SECONDS:g} s") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise NotDelivered("the answer is not HTTP") from None
        except (OSError, ValueError) as error:  # ValueError: of a name that cannot be one
            raise NotDelivered(str(error) or type(error).__name__) from None
        if not 200 <= status < 300:
            more = "; redirects are not followed" if 300 <= status < 400 else ""
            raise NotDelivered(f"it answered {status}{more}")

    async def _answer_to(self, body: bytes) -> int:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if parts.scheme == "https" else 80),
            ssl=_tls() if parts.scheme == "https" else None,
            limit=_MOST_ANSWER_BYTES,
        )
        try:
            writer.write(self._request(body))
            await writer.drain()
            while True:
                found = _STATUS.fullmatch(await reader.readuntil(b"\r\n"))
                if found is None:
                    raise NotDelivered("the answer is not HTTP")
                if (status := int(found[1])) >= 200:
                    with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):  # do not cut it off
                        await asyncio.wait_for(reader.readexactly(_MOST_ANSWER_BYTES), _REST_SECONDS)
                    return status
                await reader.readuntil(b"\r\n\r\n")  # of an interim answer
        finally:
            writer.transport.abort()  # a server cannot keep the connection by not ending it

    def _request(self, body: bytes) -> bytes:
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            f"User-Agent: headgate/{__version__}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"{SIGNATURE}: {signed(self.secret, body, int(time.time()))}",
            "Connection: close",
        ]
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Authorization: Basic {b64encode(user.encode()).decode()}")
        return "\r\n".join([*lines, "", ""]).encode() + body


def signed(secret: bytes, body: bytes, timestamp: int) -> str:
    """The value of the header: a time, and the HMAC-SHA256 of it and the body."""
    mac = hmac.new(secret, b"%d." % timestamp + body, sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


def read_secret(path: str | Path) -> bytes:
    """The secret in a file, without white space around it."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MOST_SECRET_BYTES + 1)
    except OSError as error:
        raise ValidationError(
            f"the secret of the webhook cannot be read from {str(path)!r}: {error.strerror}"
        ) from None
    if len(found) > _MOST_SECRET_BYTES:
        raise ValidationError(f"{str(path)!r} has more than {_MOST_SECRET_BYTES:,} bytes: is it the webhook's secret?")
    return found.strip()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()

"""Parsing and checking `dynamodb://table?region=eu-west-1`.

Options: `region`, `endpoint_url` (of a local engine), `profile` (of the AWS configuration), `shards` (the most items
that a hot bucket is split over, a power of two).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from ...core.errors import ValidationError
from ...core.names import shown_url

MAX_SHARDS = 64
_OPTIONS = ("region", "endpoint_url", "profile", "shards")
_SHARDS = [str(1 << n) for n in range(MAX_SHARDS.bit_length())]
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+")
_ENDPOINT = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/.*)?")


@dataclass(frozen=True)
class DynamoDBSettings:
    """None means the AWS configuration: the environment, a file, or the role of the machine."""

    table: str
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    max_shards: int = MAX_SHARDS

    @property
    def where(self) -> str:
        return shown_url(self.endpoint_url) if self.endpoint_url else f"region {self.region or 'by default'}"

    def misconfigured(self, why: object) -> ValidationError:
        return ValidationError(
            f"table {self.table!r} cannot be used with this AWS configuration: {why}. Set AWS_DEFAULT_REGION, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`; region= and profile= of the URL "
            "choose among several"
        )


def check_table(name: str) -> str:
    if not isinstance(name, str) or not _TABLE.fullmatch(name):
        raise ValidationError(f"table name {name!r} is not allowed: 3 to 255 of A-Z a-z 0-9 _ . -")
    return name


class _NotAllowed(Exception):
    """Why a URL is not allowed."""


def read_url(url: str) -> DynamoDBSettings:
    try:
        table, options = _split(url)
        _check_options(options)
    except _NotAllowed as why:
        raise ValidationError(f"store URL {_shown(url)!r} is not allowed: {why}") from None
    shards = int(options.get("shards", MAX_SHARDS))
    return DynamoDBSettings(table, options.get("region"), options.get("endpoint_url"), options.get("profile"), shards)


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The table, and the options."""
    try:
        split = urlsplit(url)
        pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
    except ValueError:  # its text may contain a secret
        raise _NotAllowed("after the ? come options, like region=eu-west-1&profile=me") from None
    options = dict(pairs)
    if "@" in split.netloc or "@" in options.get("endpoint_url", ""):
        raise _NotAllowed(
            "credentials come from the AWS configuration (profile=, the environment, a role), not from the URL"
        )
    if split.path.strip("/") or split.fragment or not _TABLE.fullmatch(split.netloc):
        raise _NotAllowed("write dynamodb://table?region=eu-west-1; a table's name is 3 to 255 of A-Z a-z 0-9 _ . -")
    if len(options) < len(pairs):
        raise _NotAllowed("an option is given twice")
    return split.netloc, options


def _check_options(options: Mapping[str, str]) -> None:
    for option, value in options.items():
        if option not in _OPTIONS:
            raise _NotAllowed(f"there is no option {option!r}, only {', '.join(_OPTIONS)}")
        if not value:
            raise _NotAllowed(f"the option {option!r} is empty")
    _check_values(options)


def _check_values(options: Mapping[str, str]) -> None:
    region, endpoint, shards = (options.get(option) for option in ("region", "endpoint_url", "shards"))
    if region is not None and not _REGION.fullmatch(region):
        raise _NotAllowed(f"region {region!r} is not allowed: write it like eu-west-1")
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise _NotAllowed(f"endpoint_url {endpoint!r} must be like http://127.0.0.1:8000 or https://host")
    if shards is not None and shards not in _SHARDS:
        raise _NotAllowed(f"shards {shards!r} must be a power of two from 1 to {MAX_SHARDS}")


def _shown(url: str) -> str:
    """For messages: values that may be secrets are hidden."""
    start, mark, query = shown_url(url).partition("?")
    parts = [part.partition("=") for part in query.split("&")]
    return (
        start
        + mark
        + "&".join(
            name + equals + (value if name in _OPTIONS and "@" not in unquote(value) else "***" if equals else "")
            for name, equals, value in parts
        )
    )

"""The URLs of Redis, read and checked.

redis://user:password@host:6379/0                  rediss:// for TLS
redis+unix://user:password@/path/to.sock?db=0
redis+sentinel://host:26379,host:26379/service/0   rediss+sentinel:// for TLS
redis+cluster://host:6379,host:6379                rediss+cluster:// for TLS
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from ...core.errors import ValidationError
from ...core.names import shown_url
from .keys import Together

Address: TypeAlias = "tuple[str, int]"  # host and port; the path of a socket and 0
Topology: TypeAlias = Literal["single", "sentinel", "cluster"]

SCHEMES: dict[str, tuple[Topology, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_PORTS: dict[Topology, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_OPTIONS = {"together", "cold_start", "wait_replicas", "wait_timeout_ms"}
_TLS_OPTIONS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}


class Wait(NamedTuple):
    """A write counts once so many replicas have confirmed it, within so many milliseconds."""

    replicas: int
    timeout_ms: int


@dataclass(frozen=True)
class RedisSettings:
    """`servers`: the server, some nodes of the cluster, or the sentinels."""

    url: str = field(repr=False)
    topology: Topology
    servers: tuple[Address, ...]
    together: Together
    cold_milli: int = 1000
    wait: Wait | None = None
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: dict[str, str | bool] | None = None


class _Reader:
    """One URL. Each method returns a part of it, or raises a ValidationError that names it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scheme, _, rest = url.partition("://")
        self.topology, self.secure = SCHEMES[self.scheme]
        try:
            # urlsplit parses any URL whose scheme it knows.
            split = urlsplit(f"redis://{rest}")
            if "@" in rest.removeprefix(split.netloc):
                raise ValueError("in a user name or a password, / ? # and @ are written %2F %3F %23 and %40")
            pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
        except ValueError as error:
            raise self.wrong(str(error)) from None
        self.path = unquote(split.path)
        credentials, _, self.hosts = split.netloc.rpartition("@")
        username, _, password = credentials.partition(":")
        self.username, self.password = unquote(username) or None, unquote(password) or None
        self.options = dict(pairs)
        if len(self.options) < len(pairs):
            raise self.wrong("an option is given twice")

    def wrong(self, why: str) -> ValidationError:
        return ValidationError(f"store URL {shown_url(self.url)!r} is not allowed: {why}")

    def check_options(self) -> None:
        allowed = set(_OPTIONS)
        if self.scheme == "redis+unix":
            allowed.add("db")
        if self.secure:
            allowed |= _TLS_OPTIONS
        if self.topology == "sentinel":
            allowed |= _SENTINEL_OPTIONS
        for option in self.options:
            if option not in allowed:
                raise self.wrong(f"unknown option {option!r}; {self.scheme}:// has: {', '.join(sorted(allowed))}")

    def servers(self) -> tuple[Address, ...]:
        if self.scheme == "redis+unix":
            if self.hosts or not self.path.strip("/"):
                raise self.wrong("write redis+unix:///path/to.sock")
            return ((self.path, 0),)
        servers = tuple(self.server(host) for host in self.hosts.split(","))
        if len(servers) > 1 and self.topology == "single":
            raise self.wrong("one host only; for several there are redis+cluster:// and redis+sentinel://")
        return servers

    def server(self, host: str) -> Address:
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        name = name.strip("[]")
        if not name:
            raise self.wrong("the host is missing, as in redis://localhost:6379")
        if not port:
            return name, _PORTS[self.topology]
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise self.wrong(f"{port!r} is not a port, like 6379")
        return name, int(port)

    def service_and_db(self) -> tuple[str, int]:
        if self.scheme == "redis+unix":
            return "", self.number(self.options.get("db", "0"), "db")
        parts = [part for part in self.path.split("/") if part]
        service = ""
        if self.topology == "sentinel":
            if not parts:
                raise self.wrong("the name of the service is missing, as in redis+sentinel://host:26379/mymaster")
            service = parts.pop(0)
        if self.topology == "cluster" and parts:
            raise self.wrong("a cluster has no databases, so there is nothing to write after the hosts")
        if len(parts) > 1:
            raise self.wrong(f"{self.path!r} is not a database number, like /0")
        return service, self.number(parts[0], "database") if parts else 0

    def number(self, text: str, what: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 5:
            raise self.wrong(f"{what} {text!r} is not a number, like 0")
        return int(text)

    def together(self) -> Together:
        given = self.options.get("together", "entity" if self.topology == "cluster" else "namespace")
        if given not in get_args(Together):
            raise self.wrong(f"together={given!r}; choose from {', '.join(get_args(Together))}")
        return cast(Together, given)

    def cold_milli(self) -> int:
        given = self.options.get("cold_start", "1")
        try:
            milli = round(float(given) * 1000)
        except (ValueError, OverflowError):
            milli = -1
        if not 0 <= milli <= 1000:
            raise self.wrong(f"cold_start={given!r}; write the share of its capacity a bucket starts with, from 0 to 1")
        return milli

    def wait(self) -> Wait | None:
        if "wait_replicas" not in self.options:
            if "wait_timeout_ms" in self.options:
                raise self.wrong("wait_timeout_ms needs wait_replicas, as in ?wait_replicas=1&wait_timeout_ms=100")
            return None
        replicas = self.number(self.options["wait_replicas"], "wait_replicas")
        timeout_ms = self.number(self.options.get("wait_timeout_ms", "100"), "wait_timeout_ms")
        if not replicas or not timeout_ms:  # 0 ms would wait forever
            raise self.wrong("wait_replicas and wait_timeout_ms must be 1 or more; leave both out for no waiting")
        return Wait(replicas, timeout_ms)

    def tls(self) -> dict[str, str | bool] | None:
        if not self.secure:
            return None
        tls: dict[str, str | bool] = {name: self.options[name] for name in _TLS_OPTIONS & set(self.options)}
        if tls.get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
            raise self.wrong(f"ssl_cert_reqs={tls['ssl_cert_reqs']!r}; choose from required, optional, none")
        if "ssl_check_hostname" in tls:
            if tls["ssl_check_hostname"] not in ("true", "false"):
                raise self.wrong(f"ssl_check_hostname={tls['ssl_check_hostname']!r}; choose from true, false")
            tls["ssl_check_hostname"] = tls["ssl_check_hostname"] == "true"
        return tls


def read_url(url: str) -> RedisSettings:
    reader = _Reader(url)
    reader.check_options()
    service, db = reader.service_and_db()
    return RedisSettings(
        url=url,
        topology=reader.topology,
        servers=reader.servers(),
        together=reader.together(),
        cold_milli=reader.cold_milli(),
        wait=reader.wait(),
        service=service,
        db=db,
        username=reader.username,
        password=reader.password,
        sentinel_username=reader.options.get("sentinel_username"),
        sentinel_password=reader.options.get("sentinel_password"),
        tls=reader.tls(),
    )

"""The state of the service: a limiter for each namespace, tokens, rules and bounds."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from ..core.errors import HeadgateError, ValidationError
from ..core.limit import Limit
from ..http.engine import AsyncGate, RuleEngine
from ..http.identity import Identity
from ..http.limits import read_limits
from ..http.rule_set import STORED
from ..http.rules import Rules
from ..http.rules_file import RulesFile
from ..http.tiers import Tiers
from ..limiter import RateLimiter
from .bounds import MAX_REQUESTS, MAX_WAITING, RequestBound, Waiting
from .endpoint import Endpoint
from .metrics import NamespaceMetrics
from .operations import Asked
from .problems import ProblemError
from .reading import Clients, Headers, Receive
from .shared import LimiterState, SharedFolder, WorkerCounts
from .tokens import AuthFailures, Door, Token, Tokens
from .ui.live import LiveStats
from .webhook import Webhook

log = logging.getLogger("headgate")

_READY_SECONDS = 0.5  # between two pings of the store
_LONGEST_HOST = 300
_CHALLENGE = 'Bearer realm="headgate"'
_IDENTITY = Identity(
    organisation=lambda call: call.native.organisation,
    api_key=lambda call: call.native.api_key,
)
NO_RULES = RulesFile(Rules([]), {}, {})


class Room(NamedTuple):
    """What the tokens of one namespace use."""

    limiter: RateLimiter
    gate: AsyncGate | None
    live: LiveStats | None
    metrics: NamespaceMetrics

    def counts(self) -> WorkerCounts:
        """What this process has counted."""
        limiter = self.limiter
        state = LimiterState(limiter.breaker_state, limiter.waiters, limiter.leases_held)
        return WorkerCounts(self.metrics.families(), None if self.live is None else self.live.counts(), state)


class Service:
    """`tokens`: None allows every client everything, and is for loopback addresses only.

    `rules`: rules from a file, for all namespaces, or "stored": each namespace has its own.
    `max_requests`: the rate limit of each token; None: no limit.
    `metrics_resources`: the resources with their own labels in metrics.
    `proxies`: addresses and networks whose `X-Forwarded-For` is trusted.
    `workers`: the number of processes of this service; `shared`: what they share, if there are several.
    `secret`: the key of the sessions, the same in all workers.
    `webhook`: where alerts are sent; `None`: nowhere.
    `dashboard`: whether the dashboard is served; `read_only`: whether it can change anything.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        tokens: Tokens | None = None,
        rules: RulesFile | Literal["stored"] = NO_RULES,
        max_requests: str | None = MAX_REQUESTS,
        max_waiting: int = MAX_WAITING,
        hash_entity_ids: bool | bytes = False,
        dashboard: bool = True,
        read_only: bool = False,
        metrics_resources: Iterable[str] = (),
        proxies: Iterable[str] = (),
        workers: int = 1,
        shared: SharedFolder | None = None,
        secret: bytes | None = None,
        webhook: Endpoint | None = None,
    ) -> None:
        # A name, so that all limiters of the service share one store: `memory://` is another for each.
        self.url = f"memory://service-{secrets.token_hex(8)}" if url == "memory://" else url
        self.namespace = namespace
        self.tokens = tokens
        self.dashboard = dashboard
        self.read_only = read_only
        self.clients = Clients(proxies)
        self.auth_failures = AuthFailures()
        self.reloads: dict[str, bool] = {}
        self.anybody = Token("anybody", "", frozenset(["admin", "namespaces"]), namespace)
        self._rules = rules
        self._bound = None if max_requests is None else RequestBound(_one_limit(max_requests))
        self._hash_entity_ids = hash_entity_ids
        self._metrics_resources = tuple(metrics_resources)
        self.workers = workers
        self.shared = shared
        self.secret = secret or secrets.token_bytes(32)
        self._rooms: dict[str, Room] = {}
        self._ready = (0.0, False)
        self.waiting = Waiting(max_waiting)
        self.stopping = False
        self.webhook = None if webhook is None else Webhook(webhook, self._served)
        self.room(namespace)  # raises now if the store cannot be opened

    def room(self, namespace: str) -> Room:
        """The room of a namespace. There are at most as many as tokens."""
        room = self._rooms.get(namespace)
        if room is None:
            limiter = RateLimiter(self.url, namespace=namespace, hash_entity_ids=self._hash_entity_ids)
            live = LiveStats() if self.dashboard else None
            room = self._rooms[namespace] = Room(
                limiter,
                _gate(limiter, self._rules),
                live,
                NamespaceMetrics(limiter, self._metrics_resources, self, live),
            )
        return room

    def _served(self) -> list[RateLimiter]:
        """The limiters of all namespaces that there are tokens for."""
        if self.tokens is None:
            return [self.room(self.namespace).limiter]
        return [self.room(name).limiter for name in {token.namespace for token in self.tokens.all}]

    def counts(self, namespace: str) -> list[WorkerCounts]:
        """The counts of a namespace, of each worker."""
        own = self.room(namespace).counts()
        return [own] if self.shared is None else self.shared.of_all(namespace, own)

    async def share(self, rest: float) -> None:
        """Let the other workers know what was counted, and learn of their changes.

        It rests so many times as long as it works. So even thousands of namespaces do not keep decisions waiting.
        """
        assert self.shared is not None
        if self.shared.was_changed():
            self.forget()
        for namespace, room in list(self._rooms.items()):
            began = time.perf_counter()
            self.shared.write(namespace, room.counts())
            await asyncio.sleep(rest * (time.perf_counter() - began))

    def changed(self) -> None:
        """Limits, entities or namespaces were changed: the other workers read them again within a second."""
        if self.shared is not None:
            self.shared.tell_change()

    def use_rules(self, rules: RulesFile) -> None:
        """Apply other rules from now on, in all namespaces. If they are invalid, nothing changes."""
        rooms = {name: room._replace(gate=_gate(room.limiter, rules)) for name, room in self._rooms.items()}
        self._rules, self._rooms = rules, rooms

    def use_tokens(self, tokens: Tokens) -> None:
        """Accept other tokens from now on. Sessions of removed tokens end."""
        self.tokens = tokens

    def forget(self) -> None:
        """Read stored limits and rules again before their next use."""
        for room in self._rooms.values():
            room.limiter.invalidate_config_cache()

    def authorize(self, presented: str | None, scope: str) -> RateLimiter | None:
        """The limiter for a token with the scope; None if the token is refused."""
        token = self._token(presented)
        if token is None:
            self.count_refused("envoy", presented, "the port for Envoy")
            return None
        if not token.allows(scope):
            self.auth_failures.count("envoy", "scope", token.name)
            return None
        return self.room(token.namespace).limiter

    def count_refused(self, door: Door, presented: str | None, who: str) -> None:
        """Count a token that is missing, unknown or expired."""
        if not presented or self.tokens is None:
            self.auth_failures.count(door, "missing", who)
        else:
            self.auth_failures.count(door, "unknown" if self.tokens.match(presented) is None else "expired", who)

    def _token(self, presented: str | None) -> Token | None:
        if self.tokens is None:
            return self.anybody
        return None if presented is None else self.tokens.find(presented)

    def admit(self, scope: str, headers: Headers, request: Mapping[str, Any], receive: Receive) -> Asked:
        """The context of a request with the scope, or ProblemError. `request` is the ASGI scope."""
        presented = None if self.tokens is None else _bearer(headers)
        token = self._token(presented)
        if token is None:
            self.count_refused("api", presented, self.clients.address(request))
            raise ProblemError(
                401, "a valid token is needed: send Authorization: Bearer <token>", [("WWW-Authenticate", _CHALLENGE)]
            )
        if not token.allows(scope):
            self.auth_failures.count("api", "scope", token.name)
            challenge = f'{_CHALLENGE}, error="insufficient_scope", scope="{scope}"'
            raise ProblemError(403, f"the token lacks the scope {scope!r}", [("WWW-Authenticate", challenge)])
        room = self.room(token.namespace)
        return Asked(self, room.limiter, room.gate, receive, token)

    async def count(self, token: Token) -> None:
        """Count a request of a token. ProblemError if there are too many."""
        if self._bound is not None:
            await self._bound.check(token.name)

    def check_host(self, headers: Headers) -> None:
        """Without tokens, only loopback names are accepted: any site could have a name for this machine."""
        if self.tokens is None and not _is_loopback(headers.get(b"host", b"")):
            raise ProblemError(421, "without tokens the service answers only as localhost, 127.0.0.1 or [::1]")

    async def ready(self) -> bool:
        """Whether the store answers, now or a moment ago, and the service is not shutting down."""
        if self.stopping:
            return False
        until, ready = self._ready
        if time.monotonic() >= until:
            try:
                await self.room(self.namespace).limiter.ping()
                ready = True
            except HeadgateError:
                ready = False
            self._ready = (time.monotonic() + _READY_SECONDS, ready)
        return ready

    async def reconcile(self) -> None:
        """Sweep expired leases in all namespaces."""
        for namespace, room in list(self._rooms.items()):
            try:
                await room.limiter.reconcile()
            except HeadgateError as error:
                log.warning("expired leases in %r could not be swept: %s", namespace, error)

    async def close(self) -> None:
        if self.webhook is not None:
            await self.webhook.close()
        for room in self._rooms.values():
            await room.limiter.close()
        if self._bound is not None:
            await self._bound.close()


def _gate(limiter: RateLimiter, rules: RulesFile | Literal["stored"]) -> AsyncGate | None:
    if isinstance(rules, str):
        return AsyncGate(RuleEngine(limiter, STORED, identity=_IDENTITY))
    if not len(rules.rules):
        return None
    tiers = Tiers(rules.plans, "stored") if rules.plans else None
    return AsyncGate(RuleEngine(limiter, rules.rules, plans=tiers, identity=_IDENTITY))


def _one_limit(spec: str) -> Limit:
    found = read_limits(spec)
    if len(found) > 1 or found[0].is_concurrent:
        raise ValidationError(f"max_requests must be one limit like '1000/second', not {spec!r}")
    return found[0]


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _is_loopback(host: bytes) -> bool:
    return len(host) <= _LONGEST_HOST and _names_loopback(host)


@lru_cache(256)
def _names_loopback(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False

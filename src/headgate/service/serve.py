"""Running the service: HTTP and, for Envoy, gRPC in one process, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import uvicorn

from ..core.errors import ValidationError
from ..http.failures import Minutely
from ..http.rule_set import STORED
from ..http.rules_file import RulesFile, load_rules
from .app import ServiceApp
from .bounds import MAX_REQUESTS
from .endpoint import Endpoint
from .envoy.rules import SECTION, DescriptorRules, read_descriptors
from .envoy.server import EnvoyServer, start_envoy_server
from .envoy.servicer import RateLimitServicer
from .listen import Address, room_for
from .protocol import IDLE_SECONDS, MAX_CONNECTIONS, READ_SECONDS, BoundedProtocol, Bounds
from .reload import ReloadedFile, Reloader, stamp_of
from .shared import WRITE_SECONDS, SharedFolder
from .state import NO_RULES, Service
from .tokens import load_tokens

try:
    from uvloop import run
except ImportError:
    from asyncio import run  # type: ignore[assignment]

log = logging.getLogger("headgate")

BIND = "127.0.0.1:8080"
GRPC = "127.0.0.1:8081"
OFF = "off"
_WITH_TOKENS = "pass --tokens (`headgate token NAME` makes one), or listen on 127.0.0.1"
_WITHOUT_API = "listen on 127.0.0.1, or run `headgate serve --tokens FILE`, which has the dashboard too"
_LOOK_TICKS = 5  # of a tenth of a second
_SHARE_REST = 9.0
_LATER_SECONDS = 5.0  # after the timeout; then open connections are closed


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """The addresses on which the service listens. `grpc` is None if it does not serve Envoy."""

    http: str
    grpc: str | None

    def as_dict(self) -> dict[str, str | None]:
        return {"http": self.http, "grpc": self.grpc}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The options of `headgate serve`. `grpc` None: the default address, if there are rules for descriptors."""

    url: str
    namespace: str = "default"
    rules: str | Path | None = None
    tokens: str | Path | None = None
    bind: str = BIND
    grpc: str | None = None
    max_requests: str = MAX_REQUESTS
    shutdown_timeout: float = 10.0
    reconcile_every: float = 60.0
    reload_every: float = 2.0
    proxies: Sequence[str] = ()
    hash_entity_ids: bool | bytes = False
    dashboard: bool = True
    read_only: bool = False
    metrics_resources: Sequence[str] = ()
    api: bool = True
    read_timeout: float = READ_SECONDS
    idle_timeout: float = IDLE_SECONDS
    max_connections: int = MAX_CONNECTIONS
    workers: int = 1
    webhook: str | None = field(default=None, repr=False)
    webhook_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What a worker shares with the others: the ports, a folder and a key. `beats`: each worker counts up its own."""

    http_port: int
    grpc_port: int
    folder: str
    beats: Any = field(repr=False)
    secret: bytes = field(repr=False)
    number: int = 0


def serve(settings: ServeSettings, on_listening: Callable[[ListenAddresses], object]) -> None:
    """Serve until SIGTERM or SIGINT, then finish open requests and return. A second signal returns at once."""
    files = ServeFiles(settings)
    settings = replace(settings, max_connections=room_for(settings.max_connections))
    with files.http.bound() as listener:
        run(_Process(settings, files, listener, on_listening).run())


def serve_here(
    settings: ServeSettings,
    files: ServeFiles,
    place: WorkerPlace,
    on_listening: Callable[[ListenAddresses], object],
    orphaned: int,
) -> None:
    """Serve as one of several workers. `orphaned`: a file that is at its end when the supervisor has died."""
    files.http = files.http.at(place.http_port)
    if files.grpc is not None:
        files.grpc = files.grpc.at(place.grpc_port)
    with files.http.bound(shared=True) as listener:
        run(_Process(settings, files, listener, on_listening, place, orphaned).run())


class ServeFiles:
    """Files and addresses, checked before anything is opened."""

    def __init__(self, settings: ServeSettings) -> None:
        # Before they are read: a change from now on must be noticed.
        self.tokens_stamp = None if settings.tokens is None else stamp_of(settings.tokens)
        self.rules_stamp = None if settings.rules is None else stamp_of(settings.rules)
        self.stored = settings.rules == STORED
        given = None if self.stored else settings.rules
        self.rules, self.descriptors = (NO_RULES, DescriptorRules()) if given is None else _read_rules(given)
        self.tokens = None if settings.tokens is None else load_tokens(settings.tokens)
        self.webhook = None if settings.webhook is None else Endpoint(settings.webhook, settings.webhook_secret)
        self.http = Address.parse(settings.bind, "--bind")
        self.grpc = self._grpc(settings)
        for address in filter(None, (self.http, self.grpc)):
            if self.tokens is None and not address.is_loopback():
                advice = _WITH_TOKENS if settings.api else _WITHOUT_API
                raise ValidationError(
                    f"{address} can be reached from other machines, and without tokens any client could do everything: "
                    f"{advice}"
                )

    def _grpc(self, settings: ServeSettings) -> Address | None:
        if settings.grpc == OFF:
            return None
        if len(self.descriptors):
            return Address.parse(settings.grpc or GRPC, "--grpc")
        if settings.grpc is not None:
            raise ValidationError(
                "--grpc is for Envoy, which needs rules for descriptors: pass a --rules file that has some"
            )
        return None


def _read_rules(path: str | Path) -> tuple[RulesFile, DescriptorRules]:
    rules = load_rules(path, [SECTION])
    return rules, read_descriptors(rules.sections.get(SECTION))


class HttpServer(uvicorn.Server):
    def __init__(self, app: Any, settings: ServeSettings, on_started: Callable[[], object]) -> None:
        bounds = Bounds(settings.read_timeout, settings.idle_timeout, settings.max_connections)
        config = uvicorn.Config(
            app,
            http=bounds.protocol(),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # any client could fill the log with warnings
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=ceil(settings.idle_timeout),
            timeout_graceful_shutdown=ceil(settings.shutdown_timeout + _LATER_SECONDS),
        )
        super().__init__(config)
        self._on_started = on_started

    async def on_tick(self, counter: int) -> bool:
        if counter % _LOOK_TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.look(now)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are handled for both servers together."""
        yield


class _Process:
    def __init__(
        self,
        settings: ServeSettings,
        files: ServeFiles,
        listener: socket.socket,
        on_listening: Callable[[ListenAddresses], object],
        place: WorkerPlace | None = None,
        orphaned: int | None = None,
    ) -> None:
        self._settings = settings
        self._place = place
        self._shared = None if place is None else SharedFolder(place.folder, place.number)
        self._orphaned = orphaned
        self._minutely = Minutely()
        self._files = files
        self._listener = listener
        self._on_listening = on_listening
        self._service = Service(
            settings.url,
            namespace=settings.namespace,
            tokens=files.tokens,
            rules="stored" if files.stored else files.rules,
            max_requests=None if settings.max_requests == OFF else settings.max_requests,
            hash_entity_ids=settings.hash_entity_ids,
            dashboard=settings.dashboard,
            read_only=settings.read_only,
            metrics_resources=settings.metrics_resources,
            proxies=settings.proxies,
            workers=settings.workers,
            shared=self._shared,
            secret=None if place is None else place.secret,
            webhook=files.webhook,
        )
        self._servicer = RateLimitServicer(files.descriptors, self._service.authorize)
        self._app = ServiceApp(self._service, api=settings.api)
        self._http = HttpServer(self._app, settings, self._started)
        self._reloader = Reloader([*self._files_to_watch()], settings.reload_every)
        self._reloading: asyncio.Task[None] | None = None
        self._envoy: EnvoyServer | None = None
        self._envoy_ends: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        if self._settings.api:  # `headgate ui` ends with its terminal
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        tasks = [loop.create_task(self._reconcile()), loop.create_task(self._reloader.watch())]
        if self._place is not None:
            tasks += [loop.create_task(self._share()), loop.create_task(self._beat(self._place))]
        if self._service.webhook is not None:
            self._service.webhook.start()
        if self._orphaned is not None:
            loop.add_reader(self._orphaned, self._end_alone, self._orphaned)
        try:
            if self._files.grpc is not None:
                self._envoy = await start_envoy_server(
                    self._servicer,
                    str(self._files.grpc),
                    max_connections=self._settings.max_connections,
                    read_seconds=self._settings.read_timeout,
                    shared_port=self._shared is not None,
                )
            await self._http.serve([self._listener])
        finally:
            for task in tasks:
                task.cancel()
            if self._envoy is not None:
                await (self._envoy_ends or self._envoy.stop(0))
            if self._shared is not None:
                await self._share_once(0)
            await self._app.close()

    def _started(self) -> None:
        port = self._listener.getsockname()[1]
        grpc = self._files.grpc.at(self._envoy.port) if self._envoy and self._files.grpc else None
        self._on_listening(ListenAddresses(f"http://{self._files.http.at(port)}", str(grpc) if grpc else None))

    def _end(self) -> None:
        if self._service.stopping:
            self._http.force_exit = True
            self._service.waiting.end()
            return
        self._service.stopping = True
        self._http.should_exit = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._settings.shutdown_timeout, self._service.waiting.end)
        if self._envoy is not None:
            self._envoy_ends = loop.create_task(self._envoy.stop(self._settings.shutdown_timeout))

    def _end_alone(self, orphaned: int) -> None:
        """Nothing would ever end a worker whose supervisor has died."""
        asyncio.get_running_loop().remove_reader(orphaned)
        if not self._service.stopping:
            log.error("the supervisor has died: this worker ends")
            self._end()

    async def _share(self) -> None:
        while True:
            await self._share_once(_SHARE_REST)
            await asyncio.sleep(WRITE_SECONDS)

    async def _beat(self, place: WorkerPlace) -> None:
        """Let the supervisor see that this worker does not hang."""
        while True:
            place.beats[place.number] += 1
            await asyncio.sleep(WRITE_SECONDS)

    async def _share_once(self, rest: float) -> None:
        try:
            await self._service.share(rest)
        except OSError as error:  # the disk is full: decisions go on
            if times := self._minutely.times("share"):
                log.error("this worker cannot share its counts (%d times since the last message): %s", times, error)

    def _reload(self) -> None:
        self._service.forget()
        self._reloading = asyncio.get_running_loop().create_task(self._reloader.reload())  # or it might be collected

    def _files_to_watch(self) -> Iterator[ReloadedFile[Any]]:
        tokens, rules, reloads = self._settings.tokens, self._settings.rules, self._service.reloads
        if tokens is not None:
            use_tokens = self._service.use_tokens
            yield ReloadedFile("tokens", tokens, load_tokens, use_tokens, reloads, self._files.tokens_stamp)
        if rules is not None and not self._files.stored:
            yield ReloadedFile("rules", rules, _read_rules, self._use_rules, reloads, self._files.rules_stamp)

    def _use_rules(self, read: tuple[RulesFile, DescriptorRules]) -> None:
        rules, descriptors = read
        if self._envoy is not None and not len(descriptors):
            path = self._settings.rules
            raise ValidationError(f"{path} has no descriptors any more: Envoy would let everything pass")
        if self._files.grpc is None and len(descriptors) and self._settings.grpc != OFF:
            log.warning("the rules have descriptors now: restart the service to listen for Envoy")
        self._service.use_rules(rules)
        self._servicer.use(descriptors)

    async def _reconcile(self) -> None:
        """Sweep leases whose holders may have died."""
        while self._settings.reconcile_every:
            # Not all processes at the same time.
            await asyncio.sleep(self._settings.reconcile_every * random.uniform(0.8, 1.2))
            await self._service.reconcile()

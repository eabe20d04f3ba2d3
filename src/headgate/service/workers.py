"""`headgate serve --workers N`: a supervisor, and N processes that share its ports."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import Any

from ..core.errors import HeadgateError, ValidationError
from .listen import Address, room_for
from .serve import ListenAddresses, ServeFiles, ServeSettings, WorkerPlace, serve_here
from .shared import bury

log = logging.getLogger("headgate")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_LOOK_SECONDS, _MOST_MISSED = 5.0, 6  # then a worker hangs
_MOST_FAILED_STARTS = 5  # in a row, with no worker left that serves
_SPAWN = multiprocessing.get_context("spawn")


def check_workers(settings: ServeSettings) -> None:
    if settings.url.startswith("memory://"):
        raise ValidationError(
            "--workers needs a store that processes can share, and memory:// is another one in each process: "
            "use --url with redis://, postgresql://, dynamodb:// or sqlite:///file"
        )


def serve_workers(settings: ServeSettings, on_listening: Callable[[ListenAddresses], object]) -> None:
    """Serve by several processes until SIGTERM or SIGINT, then let all of them finish their requests."""
    check_workers(settings)
    files = ServeFiles(settings)
    with ExitStack() as stack:
        # Each worker has its own socket on a port. A shared one would give one worker most of the connections that
        # come together, and clients keep them.
        http_port, grpc_port = (
            0 if address is None else stack.enter_context(_reserved(address)).getsockname()[1]
            for address in (files.http, files.grpc)
        )
        beats = _SPAWN.RawArray("Q", settings.workers)
        folder = stack.enter_context(TemporaryDirectory(prefix="headgate-"))
        _Supervisor(settings, WorkerPlace(http_port, grpc_port, folder, beats, token_bytes(32)), on_listening).run()


def _reserved(address: Address) -> socket.socket:
    """A port for all workers. It must be free: without the first attempt it could be shared with another service."""
    address.bound().close()
    return address.bound(shared=True)


class _Worker:
    def __init__(self, settings: ServeSettings, place: WorkerPlace) -> None:
        self.number = place.number
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(settings, place, theirs), name="headgate-worker")
        self.process.start()
        theirs.close()
        self.ready_at = 0.0
        self.beat = self.missed = 0
        self.reload = False
        self.error = ""

    @property
    def ready(self) -> bool:
        return self.ready_at > 0

    def read(self) -> ListenAddresses | None:
        """Where it listens, when it says so; or None, and `error` may be set."""
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if isinstance(said, ListenAddresses):
            self.ready_at = time.monotonic()
            if self.reload:
                self.signal(signal.SIGHUP)
            return said
        self.error = str(said)
        return None

    def signal(self, number: int) -> None:
        if self.process.is_alive() and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class _Supervisor:
    def __init__(
        self, settings: ServeSettings, place: WorkerPlace, on_listening: Callable[[ListenAddresses], object]
    ) -> None:
        self._settings = settings
        self._place = place
        self._on_listening = on_listening
        self._workers: list[_Worker] = []
        self._announced = self._stopping = False
        self._failures = self._failed_starts = 0
        self._start_at = self._look_at = 0.0
        self._wake, self._waker = socket.socketpair()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        try:
            while not self._stopping or self._workers:
                self._start_missing()
                self._look()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.process.join()

    def _signalled(self, number: int, frame: Any) -> None:
        self._waker.send(bytes([number]))

    def _start_missing(self) -> None:
        if self._stopping or time.monotonic() < self._start_at:
            return
        for number in sorted({*range(self._settings.workers)} - {worker.number for worker in self._workers}):
            self._workers.append(_Worker(self._settings, replace(self._place, number=number)))

    def _look(self) -> None:
        waited: list[Any] = [self._wake]
        for worker in self._workers:
            waited += [worker.process.sentinel] if worker.ready else [worker.process.sentinel, worker.pipe]
        now = time.monotonic()
        missing = len(self._workers) < self._settings.workers and not self._stopping
        found = wait(waited, max(0.0, (min(self._start_at, self._look_at) if missing else self._look_at) - now))
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            self._end_hanging()
        if self._wake in found:
            for number in self._wake.recv(64):
                self._pass_on(number)
        for worker in list(self._workers):
            if worker.pipe in found:
                self._heard(worker, worker.read())
            if worker.process.sentinel in found:
                self._died(worker)

    def _end_hanging(self) -> None:
        """Kill a worker that does nothing any more: connections that the system gives to it would get no answer.

        Looks are counted, not seconds: after a pause of the whole machine, all workers would seem to hang.
        """
        for worker in self._workers:
            beat = self._place.beats[worker.number]
            worker.missed = worker.missed + 1 if worker.ready and beat == worker.beat and not self._stopping else 0
            worker.beat = beat
            if worker.missed >= _MOST_MISSED:
                log.error("worker %s hangs, and is killed", worker.process.pid)
                worker.process.kill()

    def _pass_on(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._stopping = True
        for worker in self._workers:
            if number == signal.SIGHUP and not worker.ready:
                worker.reload = True  # it cannot handle the signal yet, and may have read the files before the change
            else:
                worker.signal(number)

    def _heard(self, worker: _Worker, where: ListenAddresses | None) -> None:
        if where is None:
            return
        self._failed_starts = 0
        if not self._announced and sum(one.ready for one in self._workers) == self._settings.workers:
            self._announced = True
            self._on_listening(where)

    def _died(self, worker: _Worker) -> None:
        worker.process.join()
        self._workers.remove(worker)
        worker.pipe.close()
        self._bury(worker)
        if self._stopping:
            return
        why = worker.error or f"exit code {worker.process.exitcode}"
        if worker.ready and time.monotonic() - worker.ready_at > _LONGEST_PAUSE_SECONDS:
            self._failures = 0
        self._failures += 1
        self._failed_starts += not worker.ready
        serving = any(one.ready for one in self._workers)
        if not self._announced or (self._failed_starts >= _MOST_FAILED_STARTS and not serving):
            raise HeadgateError(worker.error or f"a worker ended at its start: {why}")
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)
        self._start_at = time.monotonic() + pause
        log.error("worker %s died (%s), and is replaced", worker.process.pid, why)

    def _bury(self, worker: _Worker) -> None:
        try:
            bury(self._place.folder, worker.number)
        except OSError as error:  # the disk is full
            log.error("the gauges of worker %s stay in the metrics until it is replaced: %s", worker.process.pid, error)


def _work(settings: ServeSettings, place: WorkerPlace, pipe: Connection) -> None:
    """The main function of a worker."""
    os.setpgrp()  # Ctrl-C is for the supervisor, which passes it on: a second signal would end it at once
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    try:
        files = ServeFiles(settings)
        settings = replace(settings, max_connections=room_for(settings.max_connections))
        serve_here(settings, files, place, pipe.send, orphaned=pipe.fileno())
    except HeadgateError as error:
        pipe.send(str(error))
        raise SystemExit(2) from None

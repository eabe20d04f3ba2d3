"""What a client without a token can do to the service: little. Each test is an attack on the process itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from service_process import TOKENS, Api, ServeProcess, tokens_file

from headgate.service.problems import ProblemError
from headgate.service.protocol import MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED
from headgate.service.reading import _unique, read_headers
from headgate.service.ui.session import read_cookies
from headgate.testing.servers.process import eventually

PATIENCE = 20.0  # for what takes half a second
MEGABYTE = 1_000_000
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[ServeProcess]:
    """A service with little time, and few places."""
    options = ("--read-timeout", "0.5", "--idle-timeout", "0.5", "--max-connections", "20")
    with ServeProcess("--url", "memory://", "--tokens", "tokens.yaml", *options) as process:
        process.write("tokens.yaml", tokens_file())
        yield process.start()


def raw(service: ServeProcess, *, small: bool = False) -> socket.socket:
    host, _, port = service.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect((host, int(port)))
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Until the service closes the connection; the test fails if it never does."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionError:
        pass
    return found


def read_until(connection: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end) and (part := connection.recv(65_536)):
        found += part
    return found


def flood(connection: socket.socket, parts: Iterator[bytes], most: int) -> int:
    """Send as long as the service takes it: how many bytes it was."""
    sent = 0
    try:
        for part in parts:
            connection.sendall(part)
            sent += len(part)
            if sent >= most:
                break
    except OSError:
        pass
    return sent


def memory(service: ServeProcess) -> int:
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1024


def sockets(service: ServeProcess) -> int:
    found = 0
    for one in Path(f"/proc/{service.pid}/fd").iterdir():
        try:
            found += os.readlink(one).startswith("socket:")
        except OSError:
            pass
    return found


# Bytes


class Counted(bytes):
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return bytes.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("many", [1000, 4000])
def test_duplicates_are_found_in_one_pass(many: int) -> None:
    """As many comparisons as there are names, and not their square."""
    names = [Counted(b"x-%d" % number) for number in range(many)]
    pairs = [(name, b"") for name in (*names, Counted(names[-1]))]
    Counted.compared = 0
    assert len(read_headers(pairs)) == many - 1
    with pytest.raises(ProblemError, match="is repeated"):
        _unique(pairs)  # type: ignore[arg-type]
    assert Counted.compared <= 4 * many


def test_a_large_batch_with_a_key_twice_is_refused_while_others_are_served(service: ServeProcess) -> None:
    """With the square of comparisons it took four minutes."""
    keys = ",".join(f'"k{number}":1' for number in range(85_000))
    body = f'{{"asks":[{{"entity_id":"e","resource":"r","consume":{{{keys},"k84999":2}}}}]}}'.encode()
    assert 900_000 < len(body) < 1_048_576
    with service.client(TOKENS["decide"]) as client:
        answer = client.post("/v1/acquire/batch", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert "'k84999' is repeated" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"".join(b"X-%d: y\r\n" % number for number in range(MAX_HEADERS - 1)), b"200"),
        (b"".join(b"X-%d: y\r\n" % number for number in range(MAX_HEADERS)), b"431"),
        (b"".join(b"A%d:\r\n" % number for number in range(9000)), b"431"),
        (b"X: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n", b"200"),
        (b"X: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n", b"431"),
    ],
    ids=["many", "too-many", "too-many-small-ones", "large", "too-large"],
)
def test_a_head_has_only_so_many_headers_and_bytes(service: ServeProcess, head: bytes, status: bytes) -> None:
    with raw(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
        assert connection.recv(1000).split()[1] == status


def test_a_large_url_in_one_piece_is_refused(service: ServeProcess) -> None:
    with raw(service) as connection:
        connection.sendall(b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).split()[1] == b"431"


ENDLESS: dict[str, tuple[bytes, Callable[[], Iterator[bytes]]]] = {
    "trailers": (CHUNKED + b"0\r\n", lambda: (b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in count())),
    "small trailers": (CHUNKED + b"0\r\n", lambda: (b"".join(b"X%d:\r\n" % n for _ in range(500)) for n in count())),
    "a trailer": (CHUNKED + b"0\r\nX: ", lambda: (b"y" * 10_000 for _ in count())),
    "a chunk's extension": (CHUNKED + b"1;x=", lambda: (b"y" * 10_000 for _ in count())),
    "chunks with extensions": (CHUNKED, lambda: (b"1;x=%s\r\nz\r\n" % (b"y" * 10_000) for _ in count())),
    "small chunks": (CHUNKED, lambda: (b"1\r\nx\r\n" * 2000 for _ in count())),
    "large chunks": (CHUNKED, lambda: (b"10000\r\n" + b"x" * 65_536 + b"\r\n" for _ in count())),
    "a body": (POST + b"Content-Length: 99999999999\r\n\r\n", lambda: (b"x" * 10_000 for _ in count())),
    "lines between requests": (HEALTH, lambda: (b"\r\n" * 5000 for _ in count())),
    "lines before a request": (b"", lambda: (b"\r\n" * 5000 for _ in count())),
    "an upgrade": (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        lambda: (b"x" * 10_000 for _ in count()),
    ),
}


@pytest.mark.parametrize("token", [None, TOKENS["decide"]], ids=["no token", "a token"])
@pytest.mark.parametrize("what", ENDLESS)
def test_nothing_is_read_without_end(service: ServeProcess, what: str, token: str | None) -> None:
    start, parts = ENDLESS[what]
    if token is not None:
        start = start.replace(b"Host: x", b"Host: x\r\nAuthorization: Bearer " + token.encode(), 1)
    before = memory(service)
    with raw(service) as connection:
        connection.sendall(start)
        sent = flood(connection, parts(), 60 * MEGABYTE)
    assert sent < 40 * MEGABYTE  # what is in buffers on the way included
    assert memory(service) < before + 30 * MEGABYTE


def test_trailers_are_no_headers(service: ServeProcess) -> None:
    """They come after the token was looked at, in a list that is still read."""
    for trailer in (b"Authorization: Bearer " + TOKENS["decide"].encode(), b"Content-Type: application/json"):
        body = b'{"entity_id":"e","resource":"r","limits":["n=1/week"]}'
        with raw(service) as connection:
            head = CHUNKED.replace(b"Content-Type", b"X") if trailer.startswith(b"Content") else CHUNKED
            if trailer.startswith(b"Content"):
                head = head.replace(b"Host", b"Authorization: Bearer " + TOKENS["decide"].encode() + b"\r\nHost", 1)
            connection.sendall(head + b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, trailer))
            assert connection.recv(1000).split()[1] in (b"401", b"415")


def test_a_refused_body_can_be_sent_to_its_end(service: ServeProcess) -> None:
    """Who still sends can read the refusal, and the connection goes on."""
    body = b"x" * (MAX_BODY_BYTES - 1)
    with raw(service) as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert b"HTTP/1.1 401" in read_until(connection, b"}")
        connection.sendall(HEALTH)
        assert b"HTTP/1.1 200" in read_until(connection, b"}")


def test_only_so_many_requests_wait_for_one_before_them(service: ServeProcess) -> None:
    with raw(service) as connection:
        connection.sendall(HEALTH * 20)
        found = b""
        while found.count(b"200 OK") < 20:
            found += connection.recv(65_536)
    with raw(service) as connection:
        connection.sendall(HEALTH * 5000)
        assert read_all(connection).count(b"HTTP/1.1 200") <= MAX_PIPELINED + 5


def test_cookies_are_read_in_one_pass() -> None:
    """Quotes and backslashes mean nothing: to take them away took 4 s for 60 KB."""
    sent = 'a="' + '\\"' * 5 + '"; b ; headgate_session=x=y ;'
    assert read_cookies({b"cookie": sent.encode()}) == {
        "a": '"' + '\\"' * 5 + '"',
        "b": "",
        "headgate_session": "x=y",
        "": "",
    }


# Time


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET", b"408"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"408"),
        (b"\r\n\r\n", b"408"),
        (POST + b"Content-Length: 100\r\n\r\n{", b"401"),
        (POST + b"Authorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{" % TOKENS["decide"].encode(), b"408"),
        (CHUNKED + b"5\r\nabc", b"401"),
        (CHUNKED + b"0\r\nX: y", b"401"),
        (HEALTH, b"200"),
        (HEALTH + b"GET /he", b"200"),
    ],
)
def test_a_connection_that_is_half_way_is_closed(hasty: ServeProcess, sent: bytes, answer: bytes) -> None:
    with raw(hasty) as connection:
        connection.sendall(sent)
        found = read_all(connection)
    assert (found.split()[1] if found else b"") == answer


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"X: y\r\n"),
        (b"", b"\r\n"),
        (HEALTH, b"\r\n"),
        (POST + b"Content-Length: 100000\r\n\r\n", b"x"),
        (POST + b"Authorization: Bearer %s\r\nContent-Length: 99999\r\n\r\n" % TOKENS["decide"].encode(), b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
        (CHUNKED + b"0\r\n", b"X: y\r\n"),
    ],
)
def test_a_byte_now_and_then_keeps_no_connection_open(hasty: ServeProcess, start: bytes, drop: bytes) -> None:
    with raw(hasty) as connection:
        connection.sendall(start)
        deadline = time.monotonic() + PATIENCE
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                connection.sendall(drop)
                time.sleep(0.02)


def test_a_client_that_does_not_read_is_cut_off(hasty: ServeProcess) -> None:
    eventually(lambda: sockets(hasty) <= idle_sockets(hasty), "nobody is connected")
    before = sockets(hasty)
    with raw(hasty, small=True) as connection:
        flood(connection, iter([b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n" * 60]), MEGABYTE)
        eventually(lambda: sockets(hasty) > before, "it is connected")
        eventually(lambda: sockets(hasty) == before, "it is cut off")


def idle_sockets(process: ServeProcess) -> int:
    """Of a process with no connections: the listener, and those of the event loop."""
    return _IDLE.setdefault(process.pid, sockets(process))


_IDLE: dict[int, int] = {}


class Waiting(threading.Thread):
    """A request that waits for its tokens."""

    def __init__(self, process: ServeProcess, wish: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._process, self._wish = process, wish
        self.allowed: bool | None = None
        self.start()

    def run(self) -> None:
        with self._process.client(TOKENS["decide"]) as client:
            self.allowed = client.post("/v1/acquire", json=self._wish | {"max_wait": 20}).json()["allowed"]


def test_a_request_under_way_is_not_cut_off_by_its_duration(hasty: ServeProcess) -> None:
    """It waits for longer than a request may take to arrive."""
    wish = {"entity_id": "slow", "resource": "r", "limits": ["n=1/2s"]}
    with hasty.client(TOKENS["admin"]) as client:
        Api(client).post("/v1/acquire", wish)
        waiting = Waiting(hasty, wish)
        waiting.join(PATIENCE)
    assert waiting.allowed


def test_a_flood_of_connections_closes_the_oldest_without_a_request(hasty: ServeProcess) -> None:
    wish = {"entity_id": "flooded", "resource": "r", "limits": ["n=1/3s"]}
    with ExitStack() as opened:
        with hasty.client(TOKENS["admin"]) as client:
            Api(client).post("/v1/acquire", wish)
            waiting = Waiting(hasty, wish)
            usage = {"entity_id": "flooded", "resource": "r"}
            eventually(lambda: client.get("/v1/usage", params=usage).json()["limits"][0]["available"] < 0, "it waits")
        silent = [opened.enter_context(raw(hasty)) for _ in range(60)]
        for _ in range(5):
            with raw(hasty) as connection:  # everyone else is served meanwhile
                connection.sendall(HEALTH)
                assert b"HTTP/1.1 200" in connection.recv(1000)
        assert b"503" in read_all(silent[0])
        waiting.join(PATIENCE)
    assert waiting.allowed


@pytest.mark.parametrize(("soft", "hard", "most"), [(100, 600, 200), (64, 250, 25), (100, 5000, 2000)])
def test_there_are_no_more_connections_than_files(soft: int, hard: int, most: int) -> None:
    """Without files the service could not even reach its store."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "from headgate.service.listen import room_for; print(room_for(2000))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(most), "")


def test_bad_requests_do_not_fill_the_log(hasty: ServeProcess) -> None:
    before = len(hasty.log)
    for sent in (
        b"\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET  x\r\n\r\n",
    ):
        with raw(hasty) as connection:
            connection.sendall(sent)
            read_all(connection)
    assert hasty.log[before:] == ""


def test_the_service_says_what_its_bounds_may_be() -> None:
    from headgate.cli.app import run

    for option in (["--read-timeout", "0"], ["--idle-timeout", "-1"], ["--max-connections", "0"]):
        assert run(["serve", "--url", "memory://", *option]) == 2


def test_the_attacks_above_left_the_service_well(service: ServeProcess, api: Api) -> None:
    assert api.get("/readyz") == {"status": "ready"}
    assert json.loads(json.dumps(api.get("/v1/limits/system")))["version"] == 0
    assert "Traceback" not in service.log

"""Alerts reach the webhook, at least once, whoever wrote them and whatever fails."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from service_process import TOKENS, Api, ServeProcess, tokens_file, workers_of
from webhook_server import SECRET, WebhookServer, documented_check

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.service import endpoint as endpoint_module
from headgate.service.endpoint import Endpoint, NotDelivered
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis.certificate import make_certificate

USD = Limit.quota("usd", 10, "day", alert_at=(0.8,))
Serve = Callable[..., ServeProcess]


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    yield server
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/limits.db"


@pytest.fixture
def serve(webhook: WebhookServer, store: str) -> Iterator[Serve]:
    processes: list[ServeProcess] = []

    def started(*arguments: str, url: str = "", before: Callable[[ServeProcess], Any] = lambda _: None) -> ServeProcess:
        where = url or f"http://{webhook.origin}/alerts"
        options = ("--url", store, "--webhook", where, *arguments)
        process = ServeProcess(*options, HEADGATE_WEBHOOK_SECRET=SECRET)
        processes.append(process)
        before(process)
        return process.start()

    yield started
    for process in processes:
        process.close()


def cross(store: str, *entities: str, namespace: str = "default") -> None:
    """As a library does, in another process than the service."""
    with SyncRateLimiter(store, namespace=namespace) as limiter:
        for entity in entities:
            assert limiter.try_acquire(entity, "r", {"usd": 9}, [USD])


def delivered(store: str, namespace: str = "default") -> set[str]:
    with SyncRateLimiter(store, namespace=namespace) as limiter:
        return {alert.id for alert in limiter.list_alerts(limit=1000) if alert.delivered}


def counted(service: ServeProcess, result: str) -> float:
    with service.client() as client:
        lines = client.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith(f'headgate_webhook_requests_total{{result="{result}"}}')]
    return float(line.rpartition(" ")[2])


def test_an_alert_is_posted_signed_and_marked(serve: Serve, webhook: WebhookServer, store: str) -> None:
    service = serve()
    with service.client() as client:
        api = Api(client)
        body = {"entity_id": "acme", "resource": "r", "consume": {"usd": 9}, "limits": [f"usd={USD}"]}
        assert api.post("/v1/acquire", body)["allowed"]
        (posted,) = webhook.wait_for(1)
        (alert,) = api.get("/v1/alerts")["items"]
        eventually(lambda: bool(api.get("/v1/alerts")["items"][0]["delivered"]), "the alert is marked")
    told = posted.alert
    assert (told.pop("event"), told.pop("namespace")) == ("limit.threshold", "default")
    assert told.keys() == alert.keys() - {"delivered"}
    assert (told["id"], told["entity_id"], told["threshold"], told["used"]) == (alert["id"], "acme", 0.8, 9)
    assert posted.path == "/alerts"
    assert posted.headers["content-type"] == "application/json"
    assert counted(service, "delivered") == 1
    assert counted(service, "failed") == 0

    is_genuine, header = documented_check(), posted.headers["headgate-signature"]
    assert is_genuine(header, posted.body, SECRET.encode())
    assert not is_genuine(header, posted.body + b" ", SECRET.encode())
    assert not is_genuine(header, posted.body, b"another secret")
    assert not is_genuine(header.replace("v1=", "v1=0"), posted.body, SECRET.encode())
    assert not is_genuine(header, posted.body, SECRET.encode(), time.time() + 301)
    assert not is_genuine("v1=é", posted.body, SECRET.encode())


def test_alerts_of_other_processes_and_from_before(serve: Serve, webhook: WebhookServer, store: str) -> None:
    cross(store, "before")
    service = serve()
    webhook.wait_for(1)
    cross(store, "while")
    webhook.wait_for(2)
    assert service.end() == 0
    cross(store, "between")
    serve()
    webhook.wait_for(3)
    assert [posted.alert["entity_id"] for posted in webhook.posted] == ["before", "while", "between"]
    eventually(lambda: delivered(store) == set(webhook.ids), "all are marked")


def test_failures_are_tried_again(serve: Serve, webhook: WebhookServer, store: str) -> None:
    webhook.statuses = [500, 302, 404]
    cross(store, "acme")
    service = serve()
    webhook.wait_for(4)
    assert len(set(webhook.ids)) == 1
    assert {posted.path for posted in webhook.posted} == {"/alerts"}
    eventually(lambda: delivered(store) == set(webhook.ids), "it is marked")
    assert len(webhook.posted) == 4
    assert counted(service, "failed") == 3


def test_one_that_is_never_accepted_holds_up_no_other(serve: Serve, webhook: WebhookServer, store: str) -> None:
    cross(store, "one", "two")
    webhook.status = 500
    service = serve()
    webhook.wait_for(3)
    webhook.status = 204
    eventually(lambda: delivered(store) == set(webhook.ids), "both are marked")
    assert len(set(webhook.ids)) == 2
    assert counted(service, "delivered") == 2


def test_decisions_do_not_wait_for_it(serve: Serve, webhook: WebhookServer, store: str) -> None:
    webhook.answering.clear()
    service = serve()
    cross(store, "acme")
    webhook.wait_for(1)
    with service.client() as client:  # while it hangs: no answer comes before the test lets it
        for number in range(20):
            Api(client).post("/v1/acquire", {"entity_id": f"e{number}", "resource": "r", "limits": [f"usd={USD}"]})
    assert delivered(store) == set()
    webhook.answering.set()
    eventually(lambda: delivered(store) == set(webhook.ids), "it is marked")


def test_a_service_that_dies_between_post_and_mark(serve: Serve, webhook: WebhookServer, store: str) -> None:
    webhook.answering.clear()
    first = serve()
    cross(store, "acme")
    webhook.wait_for(1)
    first.kill()
    webhook.answering.set()
    assert delivered(store) == set()
    serve()
    webhook.wait_for(2)
    assert webhook.ids[0] == webhook.ids[1]
    eventually(lambda: delivered(store) == set(webhook.ids), "it is marked")


def test_many_processes(serve: Serve, webhook: WebhookServer, store: str) -> None:
    service = serve("--workers", "3")
    serve()
    assert len(workers_of(service)) == 3
    script = (
        "import sys; from headgate import Limit, SyncRateLimiter\n"
        "usd = Limit.quota('usd', 10, 'day', alert_at=(0.4, 0.8))\n"
        "with SyncRateLimiter(sys.argv[1]) as limiter:\n"
        "    for turn in range(10):\n"
        "        for number in range(15):\n"
        "            limiter.try_acquire(f'e{number}', 'r', {'usd': 1}, [usd])\n"
    )
    takers = [subprocess.Popen([sys.executable, "-c", script, store]) for _ in range(4)]
    assert [taker.wait() for taker in takers] == [0] * 4
    eventually(lambda: len(delivered(store)) == 30, "all alerts are marked")
    told = {posted.alert["id"]: posted.alert for posted in webhook.posted}
    assert told.keys() == delivered(store)
    places = {(alert["entity_id"], alert["threshold"]) for alert in told.values()}
    assert places == {(f"e{number}", threshold) for number in range(15) for threshold in (0.4, 0.8)}


def test_every_namespace_with_a_token(serve: Serve, webhook: WebhookServer, store: str) -> None:
    cross(store, "here")
    cross(store, "there", namespace="elsewhere")
    cross(store, "nowhere", namespace="unserved")

    def tokens(process: ServeProcess) -> None:
        process.write("tokens.yaml", tokens_file())

    service = serve("--tokens", "tokens.yaml", before=tokens)
    webhook.wait_for(2)
    found = {posted.alert["namespace"]: posted.alert["entity_id"] for posted in webhook.posted}
    assert found == {"default": "here", "elsewhere": "there"}
    with service.client(TOKENS["other"]) as client:  # it sees its own
        assert 'headgate_webhook_requests_total{result="delivered"} 1.0' in client.get("/metrics").text


def test_nothing_secret_is_logged(serve: Serve, webhook: WebhookServer, store: str) -> None:
    webhook.statuses = [500]
    cross(store, "acme")
    service = serve(url=f"http://ann:s3cret-word@{webhook.origin}/hooks/s3cret-path?token=s3cret-query#s3cret")
    webhook.wait_for(2)
    (first, *_) = webhook.posted
    assert first.path == "/hooks/s3cret-path?token=s3cret-query"
    assert first.headers["authorization"] == "Basic YW5uOnMzY3JldC13b3Jk"
    eventually(lambda: "answered 500" in service.log, "the failure is logged")
    assert webhook.origin in service.log
    assert "s3cret" not in service.log
    assert SECRET not in service.log


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--webhook", "ftp://host/x"], {"HEADGATE_WEBHOOK_SECRET": SECRET}, "webhook must be a URL"),
        (["--webhook", "http://"], {"HEADGATE_WEBHOOK_SECRET": SECRET}, "webhook must be a URL"),
        (["--webhook", "http://h/a b"], {"HEADGATE_WEBHOOK_SECRET": SECRET}, "webhook must be a URL"),
        (["--webhook", "http://h/\r\nX: y"], {"HEADGATE_WEBHOOK_SECRET": SECRET}, "webhook must be a URL"),
        (["--webhook", "http://h:99999/"], {"HEADGATE_WEBHOOK_SECRET": SECRET}, "webhook must be a URL"),
        (["--webhook", "http://h/"], {}, "HEADGATE_WEBHOOK_SECRET"),
        (["--webhook", "http://h/"], {"HEADGATE_WEBHOOK_SECRET": "short"}, "16 bytes"),
        (["--webhook", "http://h/", "--webhook-secret-file", "missing"], {}, "cannot be read"),
        (["--webhook-secret-file", "missing"], {}, "--webhook URL"),
    ],
)
def test_mistakes_are_said_at_the_start(arguments: list[str], environment: dict[str, str], says: str) -> None:
    with ServeProcess("--url", "memory://", *arguments, **environment) as process, pytest.raises(AssertionError):
        process.start()
    assert SECRET not in process.log


def test_the_secret_may_be_in_a_file(serve: Serve, webhook: WebhookServer, store: str) -> None:
    cross(store, "acme")
    secret = "another-secret-in-a-file"
    serve("--webhook-secret-file", "secret", before=lambda process: process.write("secret", f"{secret}\n"))
    (posted,) = webhook.wait_for(1)
    assert documented_check()(posted.headers["headgate-signature"], posted.body, secret.encode())


# The endpoint alone

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def posted_to(talk: Talk, *, scheme: str = "http", tls: ssl.SSLContext | None = None) -> None:
    """Post to a server that talks so. All its connections end."""
    ended: list[asyncio.Event] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        try:
            await talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            ended[-1].set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        await Endpoint(f"{scheme}://127.0.0.1:{port}/", SECRET.encode()).post(b"{}")
    finally:
        server.close()
        for event in ended:
            await event.wait()


def answered(answer: bytes, *, endless: bool = False) -> str:
    """What comes of an answer: "" if it is accepted."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(answer)
        await writer.drain()
        while endless and not writer.transport.is_closing():
            writer.write(answer)
            await writer.drain()

    try:
        asyncio.run(posted_to(talk))
    except NotDelivered as why:
        return str(why)
    return ""


def test_only_the_status_of_an_answer_counts() -> None:
    assert answered(b"HTTP/1.1 200 OK\r\n") == ""
    assert answered(b"HTTP/1.1 204\r\n\r\n") == ""
    assert answered(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 202 Accepted\r\n") == ""
    assert answered(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000, endless=True) == ""
    assert "307; redirects" in answered(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://elsewhere/\r\n\r\n")
    for nonsense in (b"", b"200\r\n", b"HTTP/1.1 20\r\n", b"HTTP/1.1 999 X\r\n", b"SSH-2.0-x\r\n"):
        assert answered(nonsense) == "the answer is not HTTP"
    assert answered(b"HTTP/1.1 200 " + b"x" * 100, endless=True) == "the answer is not HTTP"  # without an end


def test_it_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "TIMEOUT_SECONDS", 0.2)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.transport.is_closing():  # a little all the time
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    with pytest.raises(NotDelivered, match="no answer within"):
        asyncio.run(posted_to(talk))


def test_certificates_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openssl_installed: None) -> None:
    make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()

    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    monkeypatch.setattr(endpoint_module, "_tls", lambda: trusting)
    asyncio.run(posted_to(talk, scheme="https", tls=context))
    monkeypatch.undo()
    with pytest.raises(NotDelivered, match="certificate verify failed"):
        asyncio.run(posted_to(talk, scheme="https", tls=context))


def test_a_name_that_leads_nowhere() -> None:
    for host in ("127.0.0.1:1", f"{'x' * 70}.example"):
        with pytest.raises(NotDelivered):
            asyncio.run(Endpoint(f"http://{host}/", SECRET.encode()).post(b"{}"))
    with pytest.raises(ValidationError):
        Endpoint("http://" + "x" * 3000, SECRET.encode())
    assert "secret" not in repr(Endpoint("http://ann:secret@host/", SECRET.encode()))
    assert json.dumps(str(Endpoint("http://ann:secret@host:80/secret", SECRET.encode()))) == '"http://host:80"'

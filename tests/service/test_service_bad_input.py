"""Whatever is wrong: a clear 4xx, nothing consumed, nothing leaked, and the next request is served."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from service_process import SECRETS, TOKENS, Api, ServeProcess, check_answer, inside

from headgate.service.app import create_app
from headgate.service.bounds import MAX_BATCH_BYTES, MAX_BODY_BYTES
from headgate.service.protocol import MAX_HEAD_BYTES

JSON = {"content-type": "application/json", "authorization": f"Bearer {TOKENS['decide']}"}


@pytest.fixture
def victim(api: Api, entity: str) -> Iterator[str]:
    """An entity of which nothing is taken by the test."""
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=100/week", "slots=5 concurrent"]})
    yield entity
    assert api.available(entity) == {"n": 100, "slots": 5}


def send(service: ServeProcess, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """As it is, with no path or header put right."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body, JSON | headers)
        answer = connection.getresponse()
        found = httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())
    finally:
        connection.close()
    check_answer(found)
    return found


PLAIN = '{"entity_id": "VICTIM", "resource": "r", "consume": {"n": 1}}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("nonsense", "not JSON"),
        (PLAIN + "x", "not JSON"),
        ("\ufeff" + PLAIN, "not JSON"),
        ("null", "got `null`"),
        ("[]", "got `array`"),
        (f"[{PLAIN}]", "got `array`"),
        ("{}", "entity_id"),
        (PLAIN.replace('"resource"', '"resources"'), "resource"),
        (PLAIN.replace("{", '{"admin": true,', 1), "admin"),
        (PLAIN.replace('"VICTIM"', "5"), "entity_id: Expected `str`, got `int` (5)"),
        (PLAIN.replace('"VICTIM"', '["VICTIM"]'), "entity_id"),
        (PLAIN.replace("1}", '"1"}'), "consume"),
        (PLAIN.replace("1}", "true}"), "consume"),
        (PLAIN.replace("1}", "NaN}"), "not JSON"),
        (PLAIN.replace("1}", "Infinity}"), "not JSON"),
        (PLAIN.replace("1}", "1e999}"), "range"),
        (PLAIN.replace("1}", "9" * 5000 + "}"), "range"),
        (PLAIN.replace("1}", "1e-9}"), "multiple of 0.001"),
        (PLAIN.replace("1}", "9" * 300 + "}"), "from 0 to 9,000,000,000,000"),
        (PLAIN.replace("1}", "-1}"), "from 0 to 9,000,000,000,000, not -1"),
        (PLAIN.replace("1}", "-0.001}"), "-0.001"),
        (PLAIN.replace('{"n": 1}', "{}"), "at least one"),
        (PLAIN.replace('"n"', '"m"'), "'m'"),
        (PLAIN.replace("1}", '1, "n": 1}'), "'n' is repeated"),
        (PLAIN.replace("}}", '}, "resource": "r2"}'), "'resource' is repeated"),
        (PLAIN.replace("}}", '}, "max_wait": 61}'), "max_wait: Expected `float` <= 60.0 (61)"),
        (PLAIN.replace("}}", '}, "max_wait": -1}'), "max_wait"),
        (PLAIN.replace("}}", '}, "on_unavailable": "pass"}'), "on_unavailable"),
        (PLAIN.replace("}}", '}, "lease": {"ttl_seconds": 0}}'), "lease.ttl_seconds"),
        (PLAIN.replace("}}", '}, "lease": true}'), "lease"),
        (PLAIN.replace("}}", '}, "limits": []}'), "limits"),
        (PLAIN.replace("}}", '}, "limits": ["n=fast"]}'), "fast"),
        (PLAIN.replace("}}", '}, "limits": ["n=1/day", "n=2/day"]}'), "twice"),
        (PLAIN.replace("}}", '}, "limits": [{"name": "n"}]}'), "capacity"),
        (PLAIN.replace("}}", '}, "limits": [{"name": "n", "slots": 1, "ttl_seconds": 9, "capacity": 5}]}'), "slots"),
        (PLAIN.replace("VICTIM", "a b"), "a b"),
        (PLAIN.replace("VICTIM", "a#b"), "a#b"),
        (PLAIN.replace("VICTIM", "x" * 257), "257 characters"),
        (PLAIN.replace("VICTIM", "\\u0000"), "not allowed"),
        (PLAIN.replace("VICTIM", "\\ud800"), "not JSON"),
        (PLAIN.replace('"VICTIM"', "[" * 20_000 + "]" * 20_000), "nested"),
        (PLAIN.replace("}}", "}, " + '"x":{' * 5000 + "}" * 5001), "x"),
    ],
)
def test_a_bad_body_is_refused_with_the_reason(service: ServeProcess, victim: str, body: str, said: str) -> None:
    answer = send(service, "POST", "/v1/acquire", body.replace("VICTIM", victim).encode())
    assert answer.status_code in (400, 422)
    assert said in answer.json()["detail"]


def test_bytes_that_are_no_text(service: ServeProcess) -> None:
    for body in (b'{"entity_id": "\xff"}', PLAIN.encode("utf-16"), b"\x00" * 100):
        assert send(service, "POST", "/v1/acquire", body).status_code == 400


def test_metadata_is_not_nested_without_end(api: Api, service: ServeProcess, entity: str) -> None:
    for depth, status in ((30, 201), (40, 422), (400, 422), (10_000, 400)):
        body = f'{{"entity_id": "{entity}-{depth}", "metadata": {{"a": {"[" * depth}{"]" * depth}}}}}'
        answer = send(service, "POST", "/v1/entities", body, authorization=f"Bearer {TOKENS['admin']}")
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "json"]
)
def test_a_body_that_is_not_json_is_a_415(service: ServeProcess, victim: str, kind: str) -> None:
    answer = send(service, "POST", "/v1/acquire", PLAIN.replace("VICTIM", victim), **{"content-type": kind})
    assert answer.status_code == 415


def test_content_type_of_json_is_accepted_in_any_spelling(service: ServeProcess, api: Api, entity: str) -> None:
    body = json.dumps({"entity_id": entity, "resource": "r", "limits": ["n=9/week"]})
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        assert send(service, "POST", "/v1/acquire", body, **{"content-type": kind}).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("path", "most"), [("/v1/acquire", MAX_BODY_BYTES), ("/v1/acquire/batch", MAX_BATCH_BYTES)])
def test_a_body_that_is_too_large_is_refused(
    service: ServeProcess, victim: str, path: str, most: int, chunked: bool
) -> None:
    start = PLAIN.replace("VICTIM", victim)[:-1].encode() + b', "x": "'
    size = most + 1000

    def parts() -> Iterator[bytes]:
        yield start
        for _ in range(size // 1000):
            yield b"x" * 1000

    body = parts() if chunked else start + b"x" * size
    with service.client(TOKENS["decide"]) as client:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        check_answer(answer)
        assert answer.status_code == 413
        assert f"{most:,}" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200


def test_a_length_that_is_a_lie(service: ServeProcess) -> None:
    for length in ("9" * 30, "-1", "1x"):
        with raw(service) as connection:
            head = f"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}"
            connection.sendall(f"{head}\r\nAuthorization: Bearer {TOKENS['decide']}\r\n\r\n{{}}".encode())
            assert connection.recv(1000).split()[1] in (b"400", b"413")


def test_endless_head_of_a_request_is_cut_off(service: ServeProcess) -> None:
    for start in (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"GET /", b"GET /healthz HTTP/1.1\r\n"):
        with raw(service) as connection:
            connection.sendall(start)
            sent = 0
            try:
                while sent < 50 * MAX_HEAD_BYTES:
                    connection.sendall(b"A: b\r\n" * 1000 if start.endswith(b"\n") else b"x" * 6000)
                    sent += 6000
                answer = connection.recv(100)
            except OSError:
                answer = b""
            assert sent < 50 * MAX_HEAD_BYTES or answer.startswith(b"HTTP/1.1 400")


def test_many_heads_on_one_connection(service: ServeProcess) -> None:
    """None is too large, and all of them together are."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    with raw(service) as connection:
        for _ in range(4):
            connection.sendall(head)
            assert read_until(connection, b"}").startswith(b"HTTP/1.1 200")


def test_a_large_batch_at_once(service: ServeProcess, entity: str) -> None:
    """Larger than a head may be, and in as few pieces as the network likes."""
    ask = {"entity_id": entity, "resource": "x" * 200, "limits": ["n=9/week"]}
    body = json.dumps({"asks": [ask] * 500}).encode()
    assert len(body) > MAX_HEAD_BYTES
    fields = JSON | {"host": "x", "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with raw(service) as connection:
        for cut in (0, 1, 1000, len(body)):
            connection.sendall(f"POST /v1/acquire/batch HTTP/1.1\r\n{head}\r\n".encode() + body[:cut])
            time.sleep(0.02)
            connection.sendall(body[cut:])
            assert read_until(connection, b"]}").startswith(b"HTTP/1.1 200")


def read_until(connection: socket.socket, end: bytes) -> bytes:
    answer = b""
    while not answer.endswith(end) and (part := connection.recv(100_000)):
        answer += part
    return answer


def raw(service: ServeProcess) -> socket.socket:
    host, _, port = service.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/acquire",
        "/v1//acquire",
        "/v1/acquire/",
        "/v1/acquire//",
        "/v1/acquire;x=1",
        "/v1;/acquire",
        "/v1/acquire%2f",
        "/v1%2facquire",
        "/v1/%61cquire",
        "/v1/acquire%00",
        "/v1/acquire%3f",
        "/v1/./acquire",
        "/v1/%2e/acquire",
        "/v1/x/../acquire",
        "/v1/x/%2e%2e/acquire",
        "/v1/leases/../acquire",
        "/V1/acquire",
        "/v1/Acquire",
        "/v1/acquire/batch/",
        "/v1",
        "/v2/acquire",
        "/v1/leases/%2e%2e/renew",
        "/v1/leases/a%2fb%2f%2e%2e/renew",
        "/v1/leases/;/renew",
    ],
)
def test_unknown_path_is_a_404(service: ServeProcess, victim: str, path: str) -> None:
    answer = send(service, "POST", path, PLAIN.replace("VICTIM", victim))
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/limits/resources/models/", 404),
        ("/v1/limits/resources//models", 404),
        ("/v1/limits/resources/models/../other", 404),
        ("/v1/limits/resources/models%2f%2e%2e%2fother", 404),
        ("/v1/limits/resources/models;x", 404),
        ("/v1/limits/resources/%ff", 404),
        ("/v1/entities/a%2fchildren", 422),
        ("/v1/entities/a%20b", 422),
        ("/v1/entities/a%00", 422),
        ("/v1/limits/system/", 404),
        ("/v1/limits/system?x=1", 400),
        ("/v1/available?entity_id=a", 400),
        ("/v1/available?entity_id=a&resource=r&resource=s", 400),
        ("/v1/available?entity_id=a&resource=r&x=1", 400),
        ("/v1/available?entity_id=%ff&resource=r", 400),
        ("/v1/limits/resources?limit=0", 400),
        ("/v1/limits/resources?limit=1.5", 400),
        ("/v1/limits/resources?limit=99999", 400),
        ("/v1/limits/resources?cursor=%21", 422),
    ],
)
def test_a_bad_path_or_query_has_its_status(service: ServeProcess, path: str, status: int) -> None:
    assert send(service, "GET", path, authorization=f"Bearer {TOKENS['admin']}").status_code == status


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_another_method_is_a_405_that_names_the_allowed_one(service: ServeProcess, method: str) -> None:
    answer = send(service, method, "/v1/acquire")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


def test_headers_cannot_be_put_into_an_answer(service: ServeProcess, api: Api) -> None:
    for evil in ("x\r\nSet-Cookie: a=b", "x\nX-Evil: 1"):
        found = api.post("/v1/check", {"method": "POST", "path": "/login", "user": evil})
        assert not any("\n" in value for pair in found["headers"].items() for value in pair)
    answer = send(
        service, "GET", "/v1/limits/entities/a%0d%0aSet-Cookie:%20a=b", authorization=f"Bearer {TOKENS['read']}"
    )
    assert answer.status_code == 422
    assert "set-cookie" not in answer.headers


def test_a_forwarded_address_is_nobodys(api: Api, entity: str) -> None:
    """Headers of the request to the service say nothing about the caller."""
    login = {"method": "POST", "path": "/login", "user": entity}
    allowed = [
        api.http.post("/v1/check", json=login, headers={"x-forwarded-for": f"10.0.0.{n}"}).json()["allowed"]
        for n in range(3)
    ]
    assert allowed == [True, True, False]


@pytest.mark.parametrize(
    ("path", "status"), [("/a/../login", 422), ("/./login", 422), ("login", 422), ("http://x/login", 422), ("", 400)]
)
def test_path_to_be_checked_has_its_status(api: Api, entity: str, path: str, status: int) -> None:
    api.post("/v1/check", {"method": "POST", "path": path, "user": entity}, status=status)


def test_keys_are_not_told(api: Api) -> None:
    detail = api.post("/v1/check", {"method": "GET", "path": "/", "api_key": 1234567}, status=400)["detail"]
    assert "1234567" not in detail
    gone = api.post("/v1/leases/somebodys-secret/renew", {}, status=422)["detail"]
    assert "somebodys-secret" not in gone


class TestBounds:
    def test_requests_over_max_requests_are_a_429(self) -> None:
        async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
            return [await client.get("/v1/limits/system") for _ in range(3)] + [await client.get("/healthz")]

        answers = inside(create_app("memory://", max_requests="2/hour"), ask)
        assert [answer.status_code for answer in answers] == [200, 200, 429, 200]
        check_answer(answers[2])
        assert int(answers[2].headers["retry-after"]) > 0
        assert answers[2].headers["ratelimit-policy"] == '"hour";q=2;w=3600'

    def test_waiters_are_bounded(self) -> None:
        app = create_app("memory://", max_waiting=1)
        wish = {"entity_id": "e", "resource": "r", "limits": ["n=1/minute"]}

        async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
            first = await client.post("/v1/acquire", json=wish)
            waits = asyncio.ensure_future(client.post("/v1/acquire", json=wish | {"max_wait": 60}))
            while not len(app.service.waiting):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            more = await client.post("/v1/acquire", json=wish | {"max_wait": 60})
            once = await client.post("/v1/acquire", json=wish)
            app.service.waiting.end()
            return [first, more, once, await waits]

        answers = inside(app, ask)
        assert [answer.status_code for answer in answers] == [200, 503, 200, 503]
        assert not answers[2].json()["allowed"]
        for answer in (answers[1], answers[3]):
            check_answer(answer)
            assert answer.headers["retry-after"] == "1"

    def test_an_unexpected_error_is_a_500_that_shows_nothing_of_it(self, caplog: pytest.LogCaptureFixture) -> None:
        app = create_app("memory://")

        async def fail(*_: Any) -> None:
            raise RuntimeError(f"inside: {SECRETS[0]}")

        app.service.room("default").limiter.available = fail  # type: ignore[method-assign, assignment]

        async def ask(client: httpx.AsyncClient) -> httpx.Response:
            return await client.get("/v1/available", params={"entity_id": "e", "resource": "r"})

        answer = inside(app, ask)
        check_answer(answer)
        assert answer.status_code == 500
        assert "a request failed" in caplog.text

    def test_about_to_end_it_is_not_ready(self) -> None:
        app = create_app("memory://")

        async def ask(client: httpx.AsyncClient) -> list[int]:
            before = await client.get("/readyz")
            app.service.stopping = True
            return [
                answer.status_code for answer in (before, await client.get("/readyz"), await client.get("/healthz"))
            ]

        assert inside(app, ask) == [200, 503, 200]

"""The process: it starts or says why not, ends in order, and several of them are one service."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service_process import TOKENS, Api, ServeProcess, tokens_file

from headgate.cli.app import run
from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from headgate.service.listen import Address
from headgate.service.tokens import SCOPES, load_tokens
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "node_client.mjs"


class Asking(threading.Thread):
    """A request that takes its time."""

    def __init__(self, process: ServeProcess, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._body = body
        self.status = 0
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        with self._process.client() as client:
            answer = client.post("/v1/acquire", json=self._body)
            self.status, self.answer = answer.status_code, answer.json()


class TestTheEnd:
    @pytest.fixture
    def process(self) -> Iterator[ServeProcess]:
        with ServeProcess("--url", "memory://", "--shutdown-timeout", "2") as process:
            yield process.start()

    def test_those_who_wait_are_answered(self, process: ServeProcess) -> None:
        with process.client() as client:
            api = Api(client)
            asking = []
            for name, limit in (("soon", "n=1/second"), ("late", "n=1/minute")):
                api("PUT", f"/v1/limits/entities/{name}", {"limits": [limit]})
                api.post("/v1/acquire", {"entity_id": name, "resource": "r"})
                asking.append(Asking(process, {"entity_id": name, "resource": "r", "max_wait": 60}))
            eventually(lambda: api.available("soon")["n"] < 0 or asking[0].status == 200, "it waits")
            eventually(lambda: api.available("late")["n"] < 0, "it waits")
            assert process.end() == 0
        for one in asking:
            one.join(20)
        assert (asking[0].status, asking[0].answer["allowed"]) == (200, True)
        assert asking[1].status == 503
        assert "shutting down" in asking[1].answer["detail"]
        assert "Traceback" not in process.log

    def test_nobody_waits_for_idle_connections(self, process: ServeProcess) -> None:
        with process.client() as client:
            client.get("/healthz")
            assert process.end() == 0


def test_stored_rules_are_those_of_the_token_s_namespace(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    limits = {"default": "1/hour", "elsewhere": "3/hour"}
    for namespace, limit in limits.items():
        (tmp_path / "limits.yaml").write_text(f"rules: [{{id: all, limits: {limit}}}]")
        command = ["apply", "-f", str(tmp_path / "limits.yaml"), "--url", url, "--namespace", namespace]
        with redirect_stdout(io.StringIO()):
            assert run(command) == 0
    with ServeProcess("--url", url, "--tokens", "tokens.yaml", "--rules", "stored") as process:
        process.write("tokens.yaml", tokens_file())
        process.start()
        for token, passing in (("admin", 1), ("other", 3)):
            with process.client(TOKENS[token]) as client:
                asked = {"method": "GET", "path": "/x", "user": "ann"}
                assert sum(Api(client).post("/v1/check", asked)["allowed"] for _ in range(5)) == passing


def test_told_twice_it_ends_at_once() -> None:
    with ServeProcess("--url", "memory://", "--shutdown-timeout", "600") as process:
        process.start()
        with process.client() as client:
            api = Api(client)
            wish = {"entity_id": "e", "resource": "r", "limits": ["n=1/minute"]}
            api.post("/v1/acquire", wish)
            asking = Asking(process, wish | {"max_wait": 60})
            eventually(lambda: api.get("/v1/usage", entity_id="e")["limits"][0]["available"] < 0, "it waits")
            child = process._process
            assert child is not None
            child.send_signal(signal.SIGINT)
            eventually(lambda: _refuses(process.url), "it listens no longer")
            assert process.end() == 0
            asking.join(20)
            assert asking.status == 503


def _refuses(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return True
    return False


def test_store_that_rejects_the_service_is_not_the_fault_of_clients(redis_server: RedisServer) -> None:
    wish = {"entity_id": "e", "resource": "r", "consume": {"n": 1}, "limits": ["n=5/hour"], "on_unavailable": "allow"}
    with ServeProcess("--url", redis_server.url.replace("/0", "/16")) as process, process.start().client() as client:
        for _ in range(3):
            answer = client.post("/v1/acquire", json=wish)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "DB index" not in answer.text
        assert process.log.count("the store rejects the service") == 1
        assert "DB index is out of range" in process.log


def test_while_the_store_is_away(own_redis_server: RedisServer) -> None:
    wish = {"entity_id": "e", "resource": "r", "limits": ["n=9/week"]}
    with ServeProcess("--url", own_redis_server.url) as process, process.start().client() as client:
        api = Api(client)
        assert api.post("/v1/acquire", wish)["allowed"]
        assert api.get("/readyz") == {"status": "ready"}
        own_redis_server.kill()
        away = client.post("/v1/acquire", json=wish)
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        assert str(own_redis_server.port) not in away.text
        eventually(lambda: client.get("/readyz").status_code == 503, "it is not ready")
        assert api.get("/healthz") == {"status": "alive"}
        api.post("/v1/acquire/batch", {"asks": [wish]}, status=503)
        api.post("/v1/leases/" + "0" * 24 + "/renew", {}, status=503)
        passed = api.post("/v1/acquire", wish | {"on_unavailable": "allow", "lease": {}})
        assert (passed["allowed"], passed["degraded"], passed["lease_id"]) == (True, True, None)
        own_redis_server.start()
        eventually(lambda: client.get("/readyz").status_code == 200, "it is ready again")
        assert api.post("/v1/acquire", wish)["allowed"]
        assert process.end() == 0
    assert "Traceback" not in process.log


def test_a_lease_goes_on_at_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with ExitStack() as opened:
        here, there = (
            Api(opened.enter_context(opened.enter_context(ServeProcess("--url", url, *more)).start().client()))
            for more in ([], ["--reconcile-every", "0.2"])
        )
        here("PUT", "/v1/limits/system", {"limits": ["n=10/week", "p=1 concurrent"]})
        wish = {"entity_id": "e", "resource": "r"}
        lease = f"/v1/leases/{here.post('/v1/acquire', wish)['lease_id']}"
        assert not there.post("/v1/acquire", wish)["allowed"]
        assert there.post(f"{lease}/renew", {}) == {"ttl_seconds": 60}
        assert there.post(f"{lease}/adjust", {"amounts": {"n": 3}}) == {"consumed": {"n": 4, "p": 1}}
        assert there.post(f"{lease}/release", {}) == {"consumed": {"n": 4, "p": 0}}
        here.post(f"{lease}/release", {}, status=410)
        assert here.available("e") == {"n": 6, "p": 1}
        dies = {"consume": {"n": 5}, "lease": {"ttl_seconds": 1, "restore_on_expiry": True}}
        assert here.post("/v1/acquire", wish | dies)["allowed"]
        assert here.available("e")["n"] == 1
        eventually(lambda: here.available("e")["n"] == 6, "what the dead has taken comes back")


def test_envoy_is_served_too() -> None:
    with ServeProcess(
        "--url", "memory://", "--rules", "rules.yaml", "--tokens", "tokens.yaml", "--grpc", "127.0.0.1:0"
    ) as process:
        rule = {"id": "edge", "domain": "edge", "match": {"address": "*"}, "limits": "1/hour"}
        process.write("rules.yaml", json.dumps({"descriptors": [rule]}))
        process.write("tokens.yaml", tokens_file())
        process.start()
        assert process.grpc is not None
        with grpc.insecure_channel(process.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
            codes = [_ask_as_envoy(channel, TOKENS["decide"]) for _ in range(2)]
            assert codes == [1, 2]
            with pytest.raises(grpc.RpcError) as caught:
                _ask_as_envoy(channel, TOKENS["read"])
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert process.end() == 0


def _ask_as_envoy(channel: grpc.Channel, token: str) -> int:
    ask = channel.unary_unary(
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        request_serializer=RateLimitRequest.SerializeToString,
        response_deserializer=RateLimitResponse.FromString,
    )
    request = RateLimitRequest(domain="edge")
    request.descriptors.add().entries.add(key="address", value=b"1.2.3.4")
    answer: RateLimitResponse = ask(request, timeout=20, metadata=[("authorization", f"Bearer {token}")])
    return int(answer.overall_code)


def test_a_program_in_another_language(service: ServeProcess, entity: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    environment = {"HEADGATE_SERVICE": service.url, "HEADGATE_TOKEN": TOKENS["decide"]}
    done = subprocess.run(
        [node, str(EXAMPLE), entity], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.sub(r"in \d+ s", "in a while", done.stdout).splitlines() == [
        "request 1: allowed",
        "request 2: allowed",
        "request 3: refused, retry in a while",
        "batch: allowed, allowed, refused",
        "tokens used: 380",
        "another job meanwhile: refused",
        "and after it: allowed",
    ]


def command(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


class TestItDoesNotStart:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--bind", "0.0.0.0:0"], "--tokens"),
            (["--bind", "[::]:0"], "--tokens"),
            (["--bind", "8080"], "127.0.0.1:8080"),
            (["--bind", "::1:0"], "[::1]:8080"),
            (["--bind", "127.0.0.1:99999"], "99999"),
            (["--bind", "no.such.host.invalid:0"], "no.such.host.invalid"),
            (["--bind", "192.0.2.1:0", "--tokens", "TOKENS"], "cannot listen on 192.0.2.1:0"),
            (["--max-requests", "fast"], "fast"),
            (["--max-requests", "5 concurrent"], "5 concurrent"),
            (["--max-requests", "1/second; 5/hour"], "one limit"),
            (["--namespace", "a b"], "a b"),
            (["--url", "nosuch://x"], "nosuch"),
            (["--grpc", "127.0.0.1:0"], "descriptors"),
            (["--rules", "DESCRIPTORS", "--grpc", "0.0.0.0:0"], "--tokens"),
            (["--rules", "nothing.yaml"], "nothing.yaml"),
            (["--rules", "BAD"], "bad.yaml:3: "),
            (["--tokens", "BAD"], "bad.yaml:1: "),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_process_with_bad_settings_does_not_start_and_says_why(
        self, tmp_path: Path, options: list[str], said: str
    ) -> None:
        files = {
            "BAD": ("bad.yaml", "rules:\n  - id: a\n    limits: fast\n"),
            "TOKENS": ("tokens.yaml", tokens_file()),
            "DESCRIPTORS": (
                "descriptors.yaml",
                json.dumps({"descriptors": [{"id": "a", "domain": "d", "match": {"k": "*"}, "limits": "1/hour"}]}),
            ),
        }
        for name, text in files.values():
            (tmp_path / name).write_text(text)
        arguments = [str(tmp_path / files[one][0]) if one in files else one for one in options]
        usual = ["--bind", "127.0.0.1:0"] if "--bind" not in options else []
        url = ["--url", "memory://"] if "--url" not in options else []
        code, out, err = command("serve", *url, *usual, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert said in err

    def test_each_mistake_of_a_file_on_a_line_of_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "rules.yaml"
        file.write_text("rules:\n  - id: a\n    path: search\n  - id: b\n    limits: fast\n")
        _, _, err = command("serve", "--url", "memory://", "--rules", str(file))
        first, second = err.removeprefix("error: ").splitlines()
        assert first.startswith(f"{file}:3: ")
        assert second.startswith(f"{file}:5: ")

    def test_on_a_port_that_is_taken(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, _, err = command("serve", "--url", "memory://", "--bind", f"127.0.0.1:{port}")
        assert code == 2
        assert f"127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:8080", ("localhost", 8080))],
)
def test_addresses_are_read_and_written_the_same(text: str, address: tuple[str, int]) -> None:
    found = Address.parse(text, "--bind")
    assert (tuple(found), str(found)) == (address, text)
    assert found.is_loopback()


class TestNewTokens:
    def test_the_entry_is_for_the_file(self, tmp_path: Path) -> None:
        code, out, _ = command("token", "ci", "--scope", "read", "--scope", "decide", "--namespace", "shop")
        token, _, entry = out.partition("\n")
        path = tmp_path / "tokens.yaml"
        path.write_text(entry)
        found = load_tokens(path).find(token)
        assert code == 0
        assert found is not None
        assert (found.name, found.scopes, found.namespace) == ("ci", {"read", "decide"}, "shop")
        assert token not in entry

    def test_new_tokens_as_json_are_random_with_their_entry(self) -> None:
        tokens = [json.loads(command("token", "ci", "--json")[1]) for _ in range(2)]
        assert tokens[0]["token"] != tokens[1]["token"]
        assert tokens[0]["entry"]["scopes"] == ["decide"]

    @pytest.mark.parametrize("arguments", [["a b"], ["ci", "--scope", "all"], ["ci", "--namespace", "a b"]])
    def test_bad_arguments_for_a_new_token_are_refused(self, arguments: list[str]) -> None:
        assert command("token", *arguments)[0] == 2
        assert set(SCOPES) == {"decide", "read", "admin", "namespaces"}

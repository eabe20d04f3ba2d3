"""Files of rules and tokens are read again while the service runs. A broken one changes nothing, and opens nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_process import TOKENS, Api, ServeProcess, tokens_file

from headgate import Limit, SyncRateLimiter
from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from headgate.service.reload import ReloadedFile, stamp_of
from headgate.service.tokens import hashed
from headgate.testing.servers.process import eventually

NEW = "the-token-of-somebody-who-is-new"
CHECK = {"method": "GET", "path": "/x", "user": "ann"}


def tokens_with(*more: tuple[str, str], without: str = "") -> str:
    entries = json.loads(tokens_file())["tokens"]
    kept = [entry for entry in entries if entry["name"] != without]
    kept += [{"name": name, "sha256": hashed(token), "scopes": ["admin"]} for name, token in more]
    return json.dumps({"tokens": kept})


def rules_with(*ids: str, limits: str = "1/hour", descriptors: str = "1/hour") -> str:
    rules = [{"id": id, "path": "/**", "limits": limits} for id in ids]
    edge = [{"id": "edge", "domain": "edge", "match": {"address": "*"}, "limits": descriptors}]
    return json.dumps({"rules": rules} | ({"descriptors": edge} if descriptors else {}))


def started(*options: str) -> ServeProcess:
    arguments = ["--url", "memory://", "--tokens", "tokens.yaml", "--rules", "rules.yaml", "--grpc", "127.0.0.1:0"]
    process = ServeProcess(*arguments, *options)
    process.write("tokens.yaml", tokens_file())
    process.write("rules.yaml", rules_with("first"))
    return process.start()


@pytest.fixture
def watching() -> Iterator[ServeProcess]:
    with started("--reload-every", "0.05") as process:
        yield process


@pytest.fixture
def told() -> Iterator[ServeProcess]:
    """It looks at nothing by itself."""
    with started("--reload-every", "0") as process:
        yield process


def replace(process: ServeProcess, name: str, text: str) -> None:
    """As an operator should: another file takes its place."""
    os.replace(process.write(f"{name}.new", text), process.folder / name)


def hang_up(process: ServeProcess) -> None:
    os.kill(process.pid, signal.SIGHUP)


def status(process: ServeProcess, token: str | None) -> int:
    with process.client(token) as client:
        return client.get("/v1/limits/system").status_code


def check(process: ServeProcess, **fields: str) -> dict[str, Any]:
    with process.client(TOKENS["admin"]) as client:
        found: dict[str, Any] = Api(client).post("/v1/check", CHECK | fields)
        return found


def reloads(process: ServeProcess) -> dict[str, float]:
    with process.client(TOKENS["admin"]) as client:
        families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    return {sample.labels["file"]: sample.value for sample in families["headgate_last_reload_successful"].samples}


def test_tokens_are_read_again_when_their_file_changes(watching: ServeProcess) -> None:
    assert (status(watching, NEW), status(watching, TOKENS["read"])) == (401, 200)
    replace(watching, "tokens.yaml", tokens_with(("new", NEW), without="read"))
    eventually(lambda: status(watching, NEW) == 200, "the new token holds")
    assert status(watching, TOKENS["read"]) == 401
    assert reloads(watching) == {"tokens": 1, "rules": 1}
    eventually(lambda: "reloaded the tokens" in watching.log, "it is in the log")


def test_a_file_that_is_written_in_place_is_read_again(watching: ServeProcess) -> None:
    watching.write("tokens.yaml", tokens_with(("new", NEW)))
    eventually(lambda: status(watching, NEW) == 200, "the new token holds")


def test_rules_are_read_again_when_their_file_changes(watching: ServeProcess) -> None:
    assert [check(watching)["allowed"] for _ in range(2)] == [True, False]
    assert [decide(watching) for _ in range(2)] == [RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT]
    replace(watching, "rules.yaml", rules_with("second", limits="2/day", descriptors="3/day"))
    eventually(lambda: '"day"' in check(watching, user="bob")["headers"]["RateLimit-Policy"], "the new rules hold")
    assert [check(watching)["allowed"] for _ in range(3)] == [True, True, False]
    assert RateLimitResponse.OK in [decide(watching) for _ in range(3)]


def decide(process: ServeProcess) -> int:
    assert process.grpc is not None
    with grpc.insecure_channel(process.grpc) as channel:
        ask = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        request = RateLimitRequest(domain="edge")
        request.descriptors.add().entries.add(key="address", value=b"1.2.3.4")
        token = ("authorization", f"Bearer {TOKENS['decide']}")
        answer: RateLimitResponse = ask(request, timeout=20, metadata=[token])
        return int(answer.overall_code)


def test_a_hangup_reads_the_files_again_and_ends_nothing(told: ServeProcess) -> None:
    replace(told, "tokens.yaml", tokens_with(("new", NEW)))
    replace(told, "rules.yaml", rules_with("second", limits="2/day"))
    time.sleep(0.2)
    assert status(told, NEW) == 401  # nobody has told it
    hang_up(told)
    eventually(lambda: status(told, NEW) == 200, "the new token holds")
    eventually(lambda: '"day"' in check(told)["headers"]["RateLimit-Policy"], "the new rules hold")
    for _ in range(20):
        hang_up(told)
    assert status(told, NEW) == 200
    assert told.running
    assert told.end() == 0


def test_a_hangup_reads_stored_rules_and_limits_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    wish = {"entity_id": "e", "resource": "r"}
    with ServeProcess("--url", url) as process, process.start().client() as client, SyncRateLimiter(url) as other:
        api = Api(client)
        api("PUT", "/v1/limits/system", {"limits": ["n=1/week"]})
        assert [api.post("/v1/acquire", wish)["allowed"] for _ in range(2)] == [True, False]
        other.set_system_defaults([Limit.custom("n", 9, 9, 7 * 86_400)])
        assert not api.post("/v1/acquire", wish)["allowed"]  # it believes what it has read
        hang_up(process)
        eventually(lambda: api.post("/v1/acquire", wish)["allowed"], "the new limits hold")


BROKEN = [
    ("tokens.yaml", "tokens: ["),
    ("tokens.yaml", ""),
    ("tokens.yaml", "tokens: []"),
    ("tokens.yaml", '{"tokens": [{"name": "x", "scopes": ["admin"]}]}'),
    ("tokens.yaml", "\x00"),
    ("rules.yaml", "rules: ["),
    ("rules.yaml", ""),
    ("rules.yaml", "rules: [{id: a, limits: fast}]"),
    ("rules.yaml", "rules: []"),
    ("rules.yaml", rules_with("first", limits="5/hour", descriptors="")),  # and Envoy is still asking
]


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_a_broken_file_leaves_what_was_read_before(watching: ServeProcess, name: str, text: str) -> None:
    what = name.partition(".")[0]
    replace(watching, name, text)
    eventually(lambda: f"the {what} could not be reloaded" in watching.log, "it is in the log")
    assert reloads(watching) == {"tokens": 1, "rules": 1} | {what: 0}
    assert (status(watching, TOKENS["read"]), status(watching, NEW), status(watching, None)) == (200, 401, 401)
    assert [check(watching)["allowed"] for _ in range(2)] == [True, False]
    assert [decide(watching) for _ in range(2)] == [RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT]
    assert "Traceback" not in watching.log
    replace(watching, name, tokens_with(("new", NEW)) if what == "tokens" else rules_with("first"))
    eventually(lambda: reloads(watching) == {"tokens": 1, "rules": 1}, "it was mended, and read")


@pytest.mark.parametrize("name", ["tokens.yaml", "rules.yaml"])
def test_a_file_that_is_gone_leaves_what_was_read_before(watching: ServeProcess, name: str) -> None:
    (watching.folder / name).unlink()
    eventually(lambda: "could not be reloaded" in watching.log, "it is in the log")
    assert (status(watching, TOKENS["read"]), status(watching, NEW)) == (200, 401)
    assert [check(watching)["allowed"] for _ in range(2)] == [True, False]


def test_nothing_passes_while_files_are_read_again(watching: ServeProcess) -> None:
    """Written anew again and again, also in place and in pieces, while others ask all the time."""
    over = threading.Event()
    statuses: set[int] = set()
    allowed: list[bool] = []

    def ask() -> None:
        with watching.client() as stranger, watching.client(TOKENS["decide"]) as client:
            while not over.is_set():
                statuses.add(stranger.get("/v1/limits/system").status_code)
                allowed.append(Api(client).post("/v1/check", CHECK)["allowed"])

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for one in asking:
        one.start()
    for turn in range(12):
        for name, text in (("rules.yaml", rules_with("first")), ("tokens.yaml", tokens_with())):
            if turn % 2:
                replace(watching, name, text)
            else:
                with open(watching.folder / name, "w") as file:
                    for start in range(0, len(text), 40):
                        file.write(text[start : start + 40])
                        file.flush()
                        time.sleep(0.002)
        hang_up(watching)
    over.set()
    for one in asking:
        one.join(20)
    assert statuses == {401}
    assert sum(allowed) == 1
    assert len(allowed) > 20


def test_a_file_is_read_when_it_has_come_to_rest(tmp_path: Path) -> None:
    """Half of a file can be a good file of half the rules."""
    path = tmp_path / "rules.yaml"
    path.write_text("a")
    file = ReloadedFile("rules", path, Path.read_text, print, {}, stamp_of(path))  # type: ignore[arg-type]
    looks = [file.has_changed()]
    for text in ("ab", "abc"):
        path.write_text(text)
        looks.append(file.has_changed())
    looks += [file.has_changed(), file.has_changed()]
    asyncio.run(file.reload())
    looks.append(file.has_changed())
    assert looks == [False, False, False, True, True, False]


def test_what_is_broken_is_said_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.yaml"
    file = ReloadedFile("rules", path, Path.read_text, print, {}, None)  # type: ignore[arg-type]
    asyncio.run(file.reload())
    file.tell_again()
    assert len(caplog.records) == 1
    file._tell_again = 0.0  # a minute later
    file.tell_again()
    file.tell_again()
    assert [str(path) in record.getMessage() for record in caplog.records] == [True, True]


def test_sessions_end_with_a_token_that_is_taken_out(watching: ServeProcess) -> None:
    with watching.client() as browser:
        origin = {"origin": watching.url}
        browser.post("/ui/login", data={"token": TOKENS["read"]}, headers=origin)
        assert browser.get("/ui").status_code == 200
        replace(watching, "tokens.yaml", tokens_with(without="read"))
        eventually(lambda: browser.get("/ui").status_code == 303, "the session is over")

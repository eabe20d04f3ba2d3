"""Several workers on one port: real processes, which are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_process import Api, ServeProcess, workers_of

from headgate.service.envoy.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from headgate.service.shared import Family, LimiterState, Sample, SharedFolder, WorkerCounts, bury, exposition
from headgate.testing.servers.process import eventually

RULES = "descriptors: [{id: d, domain: d, match: {key: '*'}, limits: 1000/hour}]"
WISH = {"entity_id": "e", "resource": "r", "limits": ["n=100000/hour"]}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServeProcess]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    flags = ["--url", url, "--workers", "2", "--rules", str(rules), "--grpc", "127.0.0.1:0"]
    with ServeProcess(*flags) as process:
        yield process.start()


def allowed(process: ServeProcess) -> float:
    with process.client() as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
        samples = next(family.samples for family in families if family.name == "headgate_decisions")
        return sum(one.value for one in samples if one.name.endswith("_total") and one.labels["outcome"] == "allowed")


def post_many(process: ServeProcess, count: int) -> None:
    for _ in range(count):  # a connection each, so that any worker may take it
        with process.client() as client:
            assert Api(client).post("/v1/acquire", WISH)["allowed"]


def ask_envoy(process: ServeProcess) -> int:
    entry = RateLimitDescriptor.Entry(key="key", value=b"1")
    question = RateLimitRequest(domain="d", descriptors=[RateLimitDescriptor(entries=[entry])])
    with grpc.insecure_channel(process.grpc or "", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        return int(ask(question, timeout=20, wait_for_ready=True).overall_code)


def test_killed_worker_is_replaced_and_metrics_are_of_all(process: ServeProcess) -> None:
    before = workers_of(process)
    assert len(before) == 2
    post_many(process, 20)
    assert ask_envoy(process) == RateLimitResponse.OK
    eventually(lambda: allowed(process) == 21, "any worker answers for all")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    assert allowed(process) == 21  # what was shown once stays
    eventually(lambda: len(workers_of(process)) == 2 and killed not in workers_of(process), "it is replaced")
    assert allowed(process) == 21
    post_many(process, 5)
    assert ask_envoy(process) == RateLimitResponse.OK
    eventually(lambda: allowed(process) == 27, "any worker answers for all")
    assert f"worker {killed} died" in process.log


def test_all_requests_in_flight_are_answered_at_the_end(process: ServeProcess) -> None:
    statuses: list[int] = []
    with process.client() as client:
        api = Api(client)
        api("PUT", "/v1/limits/entities/soon", {"limits": ["n=1/4s"]})
        api.post("/v1/acquire", {"entity_id": "soon", "resource": "r"})

        def ask() -> None:
            body = {"entity_id": "soon", "resource": "r", "max_wait": 30}
            statuses.append(httpx.post(f"{process.url}/v1/acquire", json=body, timeout=30).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: api.available("soon")["n"] <= -2, "they wait")
    pids = workers_of(process)
    assert process.end() == 0
    for thread in threads:
        thread.join(30)
    assert statuses == [200] * 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_the_supervisor_is_killed(process: ServeProcess) -> None:
    pids = workers_of(process)
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in pids), "they have ended")


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """As soon as here, with shorter looks."""
    code = "import headgate.service.workers as w; w._LOOK_SECONDS = 0.7; from headgate.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--workers", "2", "--bind", "127.0.0.1:0", "--url"]
    with ServeProcess() as process:
        process._launch([*command, f"sqlite:///{tmp_path / 'limits.db'}"], {})
        eventually(lambda: "listening" in process.log, "it listens")
        stopped = min(workers_of(process))
        os.kill(stopped, signal.SIGSTOP)
        eventually(lambda: f"worker {stopped} hangs" in process.log, "it is noticed")
        eventually(lambda: len(workers_of(process) - {stopped}) == 2, "it is replaced")
        assert process.end() == 0


def test_both_ports_may_be_any_and_of_ipv6(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    where = ["--bind", "[::1]:0", "--grpc", "[::1]:0", "--rules", str(rules)]
    with ServeProcess("--url", f"sqlite:///{tmp_path / 'limits.db'}", "--workers", "3", *where) as process:
        process.start()
        assert process.url.startswith("http://[::1]:")
        assert ask_envoy(process) == RateLimitResponse.OK
        with process.client() as client:
            assert client.get("/healthz").status_code == 200


def test_a_port_in_use_is_an_error(process: ServeProcess, tmp_path: Path) -> None:
    """Though several sockets of one user could share it."""
    address = process.url.removeprefix("http://")
    with ServeProcess("--url", f"sqlite:///{tmp_path / 'x.db'}", "--workers", "2", "--bind", address) as other:
        with pytest.raises(AssertionError):
            other.start()
        assert f"cannot listen on {address}" in other.log


@pytest.mark.parametrize("count", ["0", "-1", "65", "two", "1.5"])
def test_a_number_of_workers_that_cannot_be(count: str) -> None:
    with ServeProcess("--workers", count) as process:
        with pytest.raises(AssertionError):
            process.start()
        assert "--workers" in process.log
        assert "Traceback" not in process.log


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "memory://"], "memory:// is another one in each process"),
        (["--url", "nothing://x"], "nothing"),
    ],
)
def test_what_workers_cannot_do_is_an_error(options: list[str], said: str) -> None:
    with ServeProcess("--workers", "2", *options) as process:
        with pytest.raises(AssertionError):
            process.start()
        assert said in process.log
        assert "Traceback" not in process.log


def counts(counter: float, gauge: float, reloaded: bool = True, created: float = 1.0) -> WorkerCounts:
    families = [
        Family("a", "x", "counter", [Sample("a_total", (), counter), Sample("a_created", (), created)]),
        Family("g", "x", "gauge", [Sample("g", (), gauge)]),
        Family(
            "headgate_last_reload_successful",
            "x",
            "gauge",
            [Sample("headgate_last_reload_successful", (), float(reloaded))],
        ),
    ]
    return WorkerCounts(families, None, LimiterState("closed", 0, 0))


def page(found: Sequence[WorkerCounts]) -> set[str]:
    return set(exposition(one.families for one in found).decode().splitlines())


def test_counts_of_the_dead_stay_and_their_gauges_do_not(tmp_path: Path) -> None:
    one, other = (SharedFolder(str(tmp_path), number) for number in (0, 1))
    one.write("n", counts(2, 3))
    one.write("another", counts(100, 100))
    found = page(other.of_all("n", counts(5, 7, reloaded=False, created=0.5)))
    assert {"a_total 7.0", "g 10.0", "a_created 0.5", "headgate_last_reload_successful 0.0"} <= found
    bury(str(tmp_path), 1)
    assert {"a_total 7.0", "g 3.0", "headgate_last_reload_successful 1.0"} <= page(one.of_all("n", counts(2, 3)))
    successor = SharedFolder(str(tmp_path), 1)
    assert {"a_total 8.0", "g 4.0"} <= page(successor.of_all("n", counts(1, 1)))


def test_what_was_shown_once_never_falls(tmp_path: Path) -> None:
    """A worker dies between the moment it answers a scrape and its next regular write."""
    one, other = (SharedFolder(str(tmp_path), number) for number in (0, 1))
    other.write("n", counts(10, 0))
    one.write("n", counts(5, 0))
    assert "a_total 16.0" in page(one.of_all("n", counts(6, 0)))
    assert "a_total 16.0" in page(other.of_all("n", counts(10, 0)))
    bury(str(tmp_path), 0)
    assert "a_total 16.0" in page(other.of_all("n", counts(10, 0)))


def test_a_crash_loop_leaves_no_more_files_behind(tmp_path: Path) -> None:
    for _ in range(20):
        SharedFolder(str(tmp_path), 0).write("n", counts(1, 1))
        bury(str(tmp_path), 0)
    assert len(list(tmp_path.iterdir())) == 1
    assert "a_total 21.0" in page(SharedFolder(str(tmp_path), 0).of_all("n", counts(1, 1)))

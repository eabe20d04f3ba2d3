"""Several workers on one port: real processes, which are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_process import Api, ServeProcess

from headgate.service.envoy.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from headgate.service.shared_metrics import SharedMetrics, mark_dead
from headgate.testing.servers.process import eventually

RULES = "descriptors: [{id: d, domain: d, match: {key: '*'}, limits: 1000/hour}]"
WISH = {"entity_id": "e", "resource": "r", "limits": ["n=100000/hour"]}


def workers(process: ServeProcess) -> set[int]:
    child = process._process
    assert child is not None
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == child.pid and b"spawn_main" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServeProcess]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    flags = ["--url", url, "--workers", "2", "--no-dashboard", "--rules", str(rules), "--grpc", "127.0.0.1:0"]
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
    before = workers(process)
    assert len(before) == 2
    post_many(process, 20)
    assert ask_envoy(process) == RateLimitResponse.OK
    eventually(lambda: allowed(process) == 21, "any worker answers for all")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: len(workers(process)) == 2 and killed not in workers(process), "it is replaced")
    assert allowed(process) == 21  # what the dead one counted stays
    post_many(process, 5)
    assert ask_envoy(process) == RateLimitResponse.OK
    eventually(lambda: allowed(process) == 27, "any worker answers for all")
    assert f"worker {killed} died" in process.log


def test_all_requests_in_flight_are_answered_at_the_end(process: ServeProcess) -> None:
    statuses: list[int] = []
    with process.client() as client:
        api = Api(client)
        api("PUT", "/v1/limits/entities/soon", {"limits": ["n=1/second"]})
        api.post("/v1/acquire", {"entity_id": "soon", "resource": "r"})

        def ask() -> None:
            body = {"entity_id": "soon", "resource": "r", "max_wait": 30}
            statuses.append(httpx.post(f"{process.url}/v1/acquire", json=body, timeout=30).status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: api.available("soon")["n"] <= -2, "they wait")
    pids = workers(process)
    assert process.end() == 0
    for thread in threads:
        thread.join(30)
    assert statuses == [200] * 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_the_supervisor_is_killed(process: ServeProcess) -> None:
    pids = workers(process)
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in pids), "they have ended")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "memory://", "--no-dashboard"], "memory:// is another one in each process"),
        (["--url", "sqlite:///x.db"], "pass --no-dashboard"),
        (["--url", "nothing://x", "--no-dashboard"], "nothing"),
    ],
)
def test_what_workers_cannot_do_is_an_error(options: list[str], said: str) -> None:
    with ServeProcess("--workers", "2", *options) as process:
        with pytest.raises(AssertionError):
            process.start()
        assert said in process.log
        assert "Traceback" not in process.log


def test_counts_of_the_dead_stay_and_their_gauges_do_not(tmp_path: Path) -> None:
    page = (
        "# HELP a_total x\n# TYPE a_total counter\na_total 2.0\n# HELP g x\n# TYPE g gauge\ng 3.0\n"
        "# HELP headgate_last_reload_successful x\n# TYPE headgate_last_reload_successful gauge\n"
        'headgate_last_reload_successful{file="rules"} %d.0\n'
    )
    shared = SharedMetrics(str(tmp_path))
    shared.write("n", (page % 1).encode())
    (own,) = tmp_path.glob("*.prom")
    other, dead = (own.with_name(own.name.replace(str(os.getpid()), pid)) for pid in ("999999", "888888"))
    other.write_text(page % 0)
    dead.write_text(page % 1)
    mark_dead(str(tmp_path), 888888)
    shared.write("another", (page % 1).encode())
    found = shared.merged("n", (page % 1).encode()).decode()
    assert "\na_total 6.0\n" in found
    assert "\ng 6.0\n" in found
    assert '{file="rules"} 0.0' in found

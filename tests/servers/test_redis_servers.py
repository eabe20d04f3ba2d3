"""The servers that other tests rely on."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError, TimeoutError

from headgate.testing.servers.process import eventually, free_port
from headgate.testing.servers.redis import (
    NotInstalledError,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    ServerFailedError,
    redis_server_binary,
)

INSTALL = Path(__file__).with_name("install.sh")
FOO, BAR = "{slot}foo", "{slot}bar"

pytestmark = pytest.mark.usefixtures("redis_installed")


def lives(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() != "" and not state.startswith("Z")


def answers(server: RedisServer) -> bool:
    try:
        server.command("PING")
    except RedisConnectionError:
        return False
    return True


def kept_value(server: RedisServer) -> str | None:
    eventually(lambda: not server.info("persistence")["loading"], "the data is loaded")
    value: str | None = server.command("GET", "key")
    return value


def seconds_ahead(server: RedisServer) -> float:
    seconds, microseconds = server.command("TIME")
    return float(int(seconds) + int(microseconds) / 1e6 - time.time())


class TestServer:
    def test_it_answers_on_its_port_and_on_its_socket(self, redis_server: RedisServer) -> None:
        for url in (redis_server.url, redis_server.unix_url.replace("redis+unix", "unix")):
            with Redis.from_url(url) as client:
                assert client.info("server")["process_id"] == redis_server.pid

    def test_redis_server_answers_over_tls(self, tls_redis_server: RedisServer) -> None:
        for url in (tls_redis_server.tls_url, tls_redis_server.tls_url.replace("localhost", "127.0.0.1")):
            with Redis.from_url(url) as client:
                assert client.info("server")["process_id"] == tls_redis_server.pid

    def test_options_are_lines_of_its_configuration(self) -> None:
        with RedisServer(options={"requirepass": "secret", "maxmemory": "3mb"}) as server:
            with Redis.from_url(server.url) as client:
                assert client.config_get("maxmemory") == {"maxmemory": str(3 * 1024 * 1024)}
            assert server.command("PING")

    def test_a_wrong_option_is_shown(self) -> None:
        with pytest.raises(ServerFailedError, match="Bad directive"):
            RedisServer(options={"no-such-option": "1"})

    def test_it_starts_again_on_the_same_port_and_empty(self, own_redis_server: RedisServer) -> None:
        port, pid = own_redis_server.port, own_redis_server.pid
        own_redis_server.command("SET", "key", "value")
        own_redis_server.stop()
        assert not own_redis_server.running
        assert not answers(own_redis_server)
        own_redis_server.start()
        assert own_redis_server.port == port
        assert own_redis_server.pid != pid
        assert own_redis_server.command("GET", "key") is None

    def test_a_persistent_one_keeps_its_data_when_killed(self) -> None:
        with RedisServer(persistent=True) as server:
            server.command("SET", "key", "value")
            server.kill()
            server.start()
            assert kept_value(server) == "value"

    def test_a_paused_one_answers_when_resumed(self, own_redis_server: RedisServer) -> None:
        own_redis_server.pause()
        with own_redis_server.client(socket_timeout=0.2) as client, pytest.raises(TimeoutError):
            client.ping()
        own_redis_server.resume()
        assert own_redis_server.command("PING")

    def test_a_paused_one_can_be_stopped(self, own_redis_server: RedisServer) -> None:
        own_redis_server.pause()
        own_redis_server.stop()
        assert "User requested shutdown" in own_redis_server.log

    def test_a_port_that_is_taken_meanwhile_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", free_port())) as other:
            ports = iter([other.getsockname()[1], free_port(), free_port(), free_port()])
            monkeypatch.setattr("headgate.testing.servers.redis.server.free_port", lambda: next(ports))
            with RedisServer() as server:
                assert server.port != other.getsockname()[1]

    def test_a_folder_that_is_named_is_kept(self, tmp_path: Path) -> None:
        with RedisServer(persistent=True, folder=tmp_path) as server:
            server.command("SET", "key", "value")
        with RedisServer(persistent=True, folder=tmp_path) as server:
            assert kept_value(server) == "value"

    def test_a_temporary_folder_is_removed(self) -> None:
        with RedisServer() as server:
            pid = server.pid
        assert not lives(pid)
        assert not server.folder.exists()


class TestClock:
    def test_clock_of_a_redis_server_can_be_stepped(self, stepped_redis_server: RedisServer) -> None:
        assert abs(seconds_ahead(stepped_redis_server)) < 10
        stepped_redis_server.step_clock(-30)
        assert abs(seconds_ahead(stepped_redis_server) + 30) < 10
        stepped_redis_server.step_clock(90.5)
        assert abs(seconds_ahead(stepped_redis_server) - 60.5) < 10

    def test_it_stays_stepped_when_the_server_restarts(self, stepped_redis_server: RedisServer) -> None:
        stepped_redis_server.step_clock(3600)
        stepped_redis_server.kill()
        stepped_redis_server.start()
        assert abs(seconds_ahead(stepped_redis_server) - 3600) < 10

    def test_what_should_expire_does(self, stepped_redis_server: RedisServer) -> None:
        stepped_redis_server.command("SET", "key", "value", "EX", 60)
        stepped_redis_server.step_clock(61)
        assert stepped_redis_server.command("GET", "key") is None

    def test_timers_go_on_after_a_step_back(self, stepped_redis_server: RedisServer) -> None:
        stepped_redis_server.step_clock(-3600)
        stepped_redis_server.command("SET", "key", "value", "PX", 100)
        eventually(lambda: stepped_redis_server.command("DBSIZE") == 0, "a key that nobody reads expires")
        started = time.monotonic()
        stepped_redis_server.command("CLIENT", "PAUSE", 300)
        stepped_redis_server.command("PING")
        assert 0.25 < time.monotonic() - started < 60

    def test_a_real_one_cannot_be_stepped(self, redis_server: RedisServer) -> None:
        with pytest.raises(ValueError, match="faketime=True"):
            redis_server.step_clock(1)


class TestCluster:
    @pytest.fixture
    def slot(self, redis_cluster: RedisCluster) -> int:
        return int(redis_cluster.servers[0].command("CLUSTER", "KEYSLOT", FOO))

    @pytest.fixture
    def target(self, redis_cluster: RedisCluster, slot: int) -> RedisServer:
        return next(server for server in redis_cluster.servers if server is not redis_cluster.owner(slot))

    def test_every_node_knows_every_slot(self, redis_cluster: RedisCluster) -> None:
        port = int(redis_cluster.url.removeprefix("redis+cluster://127.0.0.1:"))
        assert port in [server.port for server in redis_cluster.servers]
        for server in redis_cluster.servers:
            assert "cluster_slots_ok:16384" in server.command("CLUSTER", "INFO")

    def test_a_slot_moves_with_its_keys(self, redis_cluster: RedisCluster, slot: int, target: RedisServer) -> None:
        source = redis_cluster.owner(slot)
        source.command("SET", FOO, "value")
        redis_cluster.move_slot(slot, target)
        assert redis_cluster.owner(slot) is target
        assert target.command("GET", FOO) == "value"
        with pytest.raises(ResponseError, match=f"{slot} 127.0.0.1:{target.port}"):
            source.command("GET", FOO)

    def test_in_the_middle_of_a_move(self, redis_cluster: RedisCluster, slot: int, target: RedisServer) -> None:
        source = redis_cluster.owner(slot)
        source.command("MSET", FOO, "1", BAR, "2")
        redis_cluster.begin_move_slot(slot, target)
        redis_cluster.move_keys(slot, [FOO])
        assert source.command("GET", BAR) == "2"
        with pytest.raises(ResponseError, match=f"{slot} 127.0.0.1:{target.port}"):
            source.command("GET", FOO)
        with pytest.raises(ResponseError, match="Multiple keys request during rehashing"):
            source.command("MGET", FOO, BAR)
        redis_cluster.end_move_slot(slot)
        assert target.command("MGET", FOO, BAR) == ["1", "2"]

    def test_replicas_of_a_cluster_take_over(self) -> None:
        with RedisCluster(replicas=1) as cluster:
            first, (replica,) = cluster.servers[0], cluster.replicas_of(cluster.servers[0])
            assert cluster.failover(first) is replica
            assert cluster.owner(0) is replica
            replica.kill()
            assert cluster.failover(replica) is first
            replica.start()
            cluster.wait_until_ok()
            assert cluster.owner(0) is first


class TestSentinel:
    def primary(self, sentinel: RedisSentinel) -> int:
        """The primary's port, as a client finds it."""
        places = sentinel.url.removeprefix("redis+sentinel://").removesuffix("/headgate/0").split(",")
        assert [int(place.removeprefix("127.0.0.1:")) for place in places] == [one.port for one in sentinel.sentinels]
        (found,) = {one.primary_port() for one in sentinel.sentinels}
        return found

    def test_a_failover_and_one_back(self, redis_sentinel: RedisSentinel) -> None:
        old, new = redis_sentinel.primary, redis_sentinel.replica
        assert self.primary(redis_sentinel) == old.port
        assert redis_sentinel.failover() is redis_sentinel.primary is new
        assert self.primary(redis_sentinel) == new.port
        assert new.command("SET", "key", "value")
        assert redis_sentinel.failover() is old
        assert old.command("GET", "key") == "value"

    def test_a_dead_primary_is_replaced(self, redis_sentinel: RedisSentinel) -> None:
        new = redis_sentinel.replica
        redis_sentinel.kill_primary()
        assert redis_sentinel.wait_for_failover() is new
        assert self.primary(redis_sentinel) == new.port
        redis_sentinel.replica.start()
        redis_sentinel.wait_until_ok()
        assert redis_sentinel.replica.command("ROLE")[0] == "slave"


class TestNothingIsLeft:
    """Whatever becomes of the process that started a server."""

    BEGINNING = """
import os, signal, sys, time
from headgate.testing.servers.redis import RedisServer

def report():
    print(server.pid, server._watcher.pid, server.folder, flush=True)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

server = RedisServer()
"""

    def check(self, ending: str, code: int = -signal.SIGKILL) -> None:
        command = [sys.executable, "-W", "error", "-c", self.BEGINNING + ending]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (code, "")
        server, watcher, folder, *children = ended.stdout.split()
        try:
            eventually(lambda: not lives(int(server)), "the server has ended")
            eventually(lambda: not lives(int(watcher)), "what watched it has ended")
            assert not Path(folder).exists()
        finally:
            for pid in map(int, [server, *children]):
                if lives(pid):
                    os.kill(pid, signal.SIGKILL)

    def test_redis_server_ends_with_its_process(self) -> None:
        self.check("report()", 0)

    def test_redis_server_ends_with_a_failed_process(self) -> None:
        self.check("report(); sys.exit(3)", 3)

    def test_it_ends_after_the_watcher(self) -> None:
        self.check("report(); os.kill(server._watcher.pid, signal.SIGKILL)", 0)

    def test_redis_server_ends_with_a_killed_process(self) -> None:
        self.check("report(); die()")

    def test_it_is_killed_while_the_server_is_paused(self) -> None:
        self.check("server.pause(); report(); die()")

    def test_it_is_killed_after_a_restart(self) -> None:
        self.check("server.kill(); server.start(); report(); die()")

    def test_it_is_killed_and_a_child_lives_on(self) -> None:
        ending = """
report()
ready, tell = os.pipe()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.write(tell, b"!")
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)
die()
"""
        self.check(ending)

    def test_a_child_ends_and_the_server_goes_on(self) -> None:
        ending = """
if os.fork() == 0:
    sys.exit()
os.wait()
assert server.command("PING")
report()
"""
        self.check(ending, 0)


class TestInstall:
    """`install.sh` on a machine where there is nothing but the programs in a folder."""

    @pytest.fixture
    def programs(self, tmp_path: Path) -> Path:
        for name in ("uname", "tr"):
            (tmp_path / name).symlink_to(str(shutil.which(name)))
        self.program(tmp_path, "id", "echo 1000")
        return tmp_path

    def program(self, folder: Path, name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    def install(self, folder: Path, **environment: str) -> str:
        command = ["/bin/sh", str(INSTALL)]
        environment = {"PATH": str(folder), **environment}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout + ended.stderr

    def test_without_rights_it_says_how(self, programs: Path) -> None:
        said = self.install(programs)
        assert said.count("\n") == 1
        assert said.startswith("not installed: redis-server openssl")
        assert "apt-get install redis-server openssl" in said

    def test_as_root_it_installs_what_is_missing(self, programs: Path) -> None:
        did = programs / "did"
        self.program(programs, "sudo", f"printf '%s\\n' \"$*\" >>{did}")
        self.program(programs, "apt-get", "")
        self.program(programs, "openssl", "")
        self.install(programs)
        installed = [line.split()[-1] for line in did.read_text().splitlines() if " install " in line]
        assert installed == ["redis-server", *(["faketime"] if sys.platform == "linux" else []), "chromium"]

    def test_it_does_nothing_where_all_is_there(self, programs: Path) -> None:
        for name in ("redis-server", "openssl", "faketime", "chromium"):
            self.program(programs, name, "")
        self.program(programs, "sudo", "echo it was called >&2")
        assert self.install(programs) == ""

    def test_it_does_nothing_when_told_to_do_without(self, programs: Path) -> None:
        assert self.install(programs, HEADGATE_SKIP_REDIS="1") == ""


class TestNotInstalled:
    def test_missing_redis_server_is_named_with_its_package(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("HEADGATE_REDIS_SERVER", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        message = "^redis-server is not installed: apt-get install redis-server, or brew install redis$"
        with pytest.raises(NotInstalledError, match=message):
            RedisServer()

    def test_environment_names_another_redis_server(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        mine = tmp_path / "my-redis-server"
        mine.symlink_to(redis_server_binary())
        monkeypatch.setenv("HEADGATE_REDIS_SERVER", str(mine))
        with RedisServer() as server:
            assert server.info("server")["executable"] == str(mine)

    def test_what_is_named_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADGATE_REDIS_SERVER", "/no/such/server")
        with pytest.raises(NotInstalledError, match="HEADGATE_REDIS_SERVER names '/no/such/server'"):
            redis_server_binary()

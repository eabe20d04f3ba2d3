"""Servers for the tests, started when the first test asks for one; under xdist each worker has its own."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate import SyncRateLimiter
from headgate.testing.conformance import changing_limits, history
from headgate.testing.servers.redis import (
    NotInstalledError,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    redis_server_binary,
)
from local_servers.dynamodb import DynamoDBLocal, Dynoxide, Engine, Ministack, aws_environment
from local_servers.postgres import PgBouncer, PostgresServer, postgres_folder

DYNAMODB_ENGINES: dict[str, type[Engine]] = {
    "ministack": Ministack,
    "dynamodb_local": DynamoDBLocal,
    "dynoxide": Dynoxide,
}

# A busy machine is no failure: timings decide no test.
settings.register_profile(
    "headgate", settings(), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headgate")

# A property that fails is shrunk for up to five minutes. A timeout amid that would hide the example.
SHRINKING_SECONDS = 600
PROPERTIES_OF_STORES = {changing_limits.__name__, history.__name__}

# Under `nohup make test &` SIGINT is ignored, and each process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests stay until the end: nobody has to look at them each time garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def redis_installed() -> None:
    if os.environ.get("HEADGATE_SKIP_REDIS") == "1":
        pytest.skip("HEADGATE_SKIP_REDIS=1")
    missing = None
    try:
        redis_server_binary()
    except NotInstalledError as error:
        missing = error
    if missing:
        pytest.fail(f"{missing}; or set HEADGATE_SKIP_REDIS=1 to do without these tests", pytrace=False)


@pytest.fixture(scope="session")
def faketime_installed() -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")


@pytest.fixture(scope="session")
def openssl_installed() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")


@pytest.fixture(scope="session")
def redis_server(redis_installed: None) -> Iterator[RedisServer]:
    """One for all tests: use keys of your own, and leave it running."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(redis_installed: None) -> Iterator[RedisCluster]:
    """One for all tests: three masters, no replicas. Leave every node running."""
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tls_redis_server(redis_installed: None, openssl_installed: None) -> Iterator[RedisServer]:
    """One for all tests that talk to it encrypted."""
    with RedisServer(tls=True) as server:
        yield server


@pytest.fixture(scope="module")
def redis_sentinel(redis_installed: None) -> Iterator[RedisSentinel]:
    """One for the tests of a file, which may fail over as they like."""
    with RedisSentinel() as sentinel:
        yield sentinel


@pytest.fixture
def own_redis_server(redis_installed: None) -> Iterator[RedisServer]:
    """One for a test alone, to be killed, paused and filled up."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def stepped_redis_server(redis_installed: None, faketime_installed: None) -> Iterator[RedisServer]:
    """One for a test alone, with a clock that can be stepped."""
    with RedisServer(faketime=True) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_installed() -> None:
    if os.environ.get("HEADGATE_SKIP_POSTGRES") == "1":
        pytest.skip("HEADGATE_SKIP_POSTGRES=1")
    missing = None
    try:
        postgres_folder()
    except NotInstalledError as error:
        missing = error
    if missing:
        pytest.fail(f"{missing}; or set HEADGATE_SKIP_POSTGRES=1 to do without these tests", pytrace=False)


@pytest.fixture(scope="session")
def postgres_server(postgres_installed: None) -> Iterator[PostgresServer]:
    """One for all tests, set up: leave it running."""
    with PostgresServer() as server:
        with SyncRateLimiter(server.url, store_timeout=10.0) as limiter:
            limiter.setup()
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Before the server of all tests."""
    with PgBouncer(postgres_server) as bouncer:
        yield bouncer


@pytest.fixture(scope="session")
def dynamodb_wanted() -> None:
    if os.environ.get("HEADGATE_SKIP_DYNAMODB") == "1":
        pytest.skip("HEADGATE_SKIP_DYNAMODB=1")


@pytest.fixture(scope="session")
def ministack(dynamodb_wanted: None) -> Iterator[Engine]:
    """One for all tests: use tables of your own, and leave it running."""
    missing = why_not("ministack")
    if missing:
        pytest.fail(f"{missing}; or set HEADGATE_SKIP_DYNAMODB=1 to do without these tests", pytrace=False)
    with Ministack() as engine:
        yield engine


@pytest.fixture(scope="session")
def dynamodb_local(dynamodb_wanted: None) -> Iterator[Engine]:
    """One for all tests: use tables of your own, and leave it running."""
    missing = why_not("dynamodb_local")
    if missing:
        pytest.skip(missing)
    with DynamoDBLocal() as engine:
        yield engine


@pytest.fixture(scope="session")
def dynoxide(dynamodb_wanted: None) -> Iterator[Engine]:
    """One for all tests: use tables of your own, and leave it running."""
    missing = why_not("dynoxide")
    if missing:
        pytest.skip(missing)
    with Dynoxide() as engine:
        yield engine


@pytest.fixture(scope="session", params=DYNAMODB_ENGINES)
def dynamodb_engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn, for what must hold on all of them."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def own_ministack(dynamodb_wanted: None) -> Iterator[Ministack]:
    """One for a test alone, to be killed and paused."""
    with Ministack() as engine:
        yield engine


@pytest.fixture(scope="module")
def aws_credentials(request: pytest.FixtureRequest) -> Iterator[str]:
    """In the environment, and for the tests of a file: an account of its own. The access key."""
    digest = hashlib.sha256(request.node.nodeid.encode()).digest()
    access_key = f"{int.from_bytes(digest[:5], 'big') % 10**12:012}"
    with aws_environment(access_key):
        yield access_key


def why_not(name: str) -> str | None:
    """Why an engine cannot run here."""
    if name == "dynamodb_local" and os.environ.get("HEADGATE_SKIP_DYNAMODB_LOCAL") == "1":
        return "HEADGATE_SKIP_DYNAMODB_LOCAL=1"
    try:
        DYNAMODB_ENGINES[name].find()
    except NotInstalledError as error:
        return str(error)
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give properties their time, and note on which engines a test runs, for the summary."""
    function = getattr(item, "function", None)
    if getattr(function, "is_hypothesis_test", False) or getattr(function, "__module__", "") in PROPERTIES_OF_STORES:
        item.add_marker(pytest.mark.timeout(SHRINKING_SECONDS))
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {value for value in parameters if isinstance(value, str)} | set(getattr(item, "fixturenames", ()))
    item.user_properties += [("dynamodb_engine", name) for name in DYNAMODB_ENGINES if name in named]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on which DynamoDB engines the tests ran, and why not on the others."""
    ran: Counter[str] = Counter()
    for report in [one for status in ("passed", "failed", "skipped") for one in terminalreporter.getreports(status)]:
        did = int(report.when == "call" and not report.skipped)
        ran.update({name: did for key, name in report.user_properties if key == "dynamodb_engine"})
    if not ran:
        return
    if os.environ.get("HEADGATE_SKIP_DYNAMODB") == "1":
        terminalreporter.write_line("DynamoDB engines: none, HEADGATE_SKIP_DYNAMODB=1")
        return
    parts = []
    for name, kind in DYNAMODB_ENGINES.items():
        if name in ran:
            count = f"{ran[name] or 'no'} test{'s' if ran[name] > 1 else ''}"
            parts.append(f"{kind.name}: {count}" + ("" if ran[name] else f", {why_not(name) or 'all skipped'}"))
    terminalreporter.write_line(f"DynamoDB engines: {'; '.join(parts)}")

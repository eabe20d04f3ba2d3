"""The file of the SQLite store, and what can happen to it: strangers, damage, locks, forks, full disks, kill -9."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_helpers import LIMIT, PATIENCE_SECONDS, another, query, several, take, taken, taken_from, url_of

from headgate import (
    HeadgateError,
    Limit,
    LimiterClosed,
    RateLimiter,
    RateLimiterUnavailable,
    SyncRateLimiter,
    ValidationError,
)
from headgate.testing import ManualClock

OURS = int.from_bytes(b"HGat", "big")
PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def use(path: Path) -> None:
    with SyncRateLimiter(url_of(path)) as limiter:
        take(limiter)


# A new file


def test_a_new_file_is_marked_as_ours(path: Path) -> None:
    use(path)
    assert query(path, "PRAGMA application_id") == OURS
    assert query(path, "PRAGMA user_version") == 4
    assert query(path, "PRAGMA journal_mode") == "wal"


OLDER_BUCKETS = """
    CREATE TABLE buckets (
        key TEXT NOT NULL, limit_name TEXT NOT NULL, capacity_milli INTEGER NOT NULL, refill_milli INTEGER NOT NULL,
        period_ms INTEGER NOT NULL, tokens_milli INTEGER NOT NULL, settled_at_ms INTEGER NOT NULL,
        remainder INTEGER NOT NULL, blocked_until_ms INTEGER NOT NULL, revision INTEGER NOT NULL,
        PRIMARY KEY (key, limit_name)
    ) WITHOUT ROWID;
    INSERT INTO buckets VALUES ('default/ada#api', 'tokens', 1000000000, 1, 31622400000, 999997000, 0, 0, 0, 0);
    CREATE TABLE records (
        key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL, expires_at_ms INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX records_expiring ON records (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
"""
OLDER_SLOTS = """
    CREATE TABLE slots (
        key TEXT NOT NULL, limit_name TEXT NOT NULL, lease_id TEXT NOT NULL, held_milli INTEGER NOT NULL,
        expires_at_ms INTEGER NOT NULL, PRIMARY KEY (key, limit_name, lease_id)
    ) WITHOUT ROWID;
    CREATE INDEX slots_expiring ON slots (expires_at_ms);
"""
OLDER_USAGE = """
    ALTER TABLE buckets ADD COLUMN used_milli INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE usage (
        key TEXT NOT NULL, limit_name TEXT NOT NULL, hour INTEGER NOT NULL, used_milli INTEGER NOT NULL,
        PRIMARY KEY (key, limit_name, hour)
    ) WITHOUT ROWID;
"""
IN_OLDER_FORMATS = {1: OLDER_BUCKETS, 2: OLDER_BUCKETS + OLDER_SLOTS, 3: OLDER_BUCKETS + OLDER_SLOTS + OLDER_USAGE}


@pytest.mark.parametrize("older", IN_OLDER_FORMATS)
def test_a_file_in_an_older_format_is_brought_up_to_date(older: int, path: Path, tmp_path: Path) -> None:
    """And is then no different from a new one."""
    use(tmp_path / "new.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(IN_OLDER_FORMATS[older])
        connection.execute("UPDATE buckets SET settled_at_ms = ?", (int(time.time() * 1000),))
        connection.execute(f"PRAGMA application_id = {OURS}")
        connection.execute(f"PRAGMA user_version = {older}")
        connection.commit()
    assert taken_from(path) == 3
    use(path)
    assert taken_from(path) == 4
    assert query(path, "PRAGMA user_version") == 4
    assert everything_in(path) == everything_in(tmp_path / "new.db")


def everything_in(path: Path) -> list[tuple[str, ...]]:
    """Tables, columns and indices."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_master ORDER BY name").fetchall()
        return names + [
            (name, *column) for _, name in names for column in connection.execute(f"PRAGMA table_info({name})")
        ]


def test_an_empty_file_is_adopted(path: Path) -> None:
    path.touch()
    use(path)
    assert query(path, "PRAGMA application_id") == OURS


def test_a_path_may_have_spaces_and_escapes(tmp_path: Path) -> None:
    use(tmp_path / "my%20limits%23.db")
    assert [file.name for file in tmp_path.iterdir()] == ["my limits#.db"]


def test_processes_that_open_a_missing_file_at_once_share_it(tmp_path: Path) -> None:
    with several(8, "opener") as others:
        assert [other.hear() for other in others] == ["ready"] * 8
        for number in range(30):
            path = tmp_path / f"{number}.db"
            for other in others:
                other.say(str(path))
            assert [other.hear() for other in others] == ["ok"] * 8
            assert taken_from(path) == 8


# A file that is not ours


def foreign_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
        connection.execute("INSERT INTO customers VALUES ('Ada')")
        connection.commit()


def foreign_mark(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 252006674")


def newer_format(path: Path) -> None:
    use(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 5")


def plain_text(path: Path) -> None:
    path.write_text("Dear diary,\n" * 100)


def noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (foreign_tables, "database of another program: choose a file of its own"),
        (foreign_mark, "database of another program: choose a file of its own"),
        (newer_format, "format 5 and this headgate reads format 4: upgrade headgate"),
        (plain_text, "not an SQLite database: choose another file, or move this one away"),
        (noise, "not an SQLite database: choose another file, or move this one away"),
    ],
)
def test_a_file_that_is_not_ours_is_left_alone(make: Callable[[Path], None], advice: str, path: Path) -> None:
    make(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(ValidationError) as refused:
        use(path)
    assert repr(str(path)) in str(refused.value)
    assert advice in str(refused.value)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


# SQLite itself takes a file of one byte for an empty one.
@given(st.binary(min_size=2, max_size=3000) | st.binary(max_size=3000).map(lambda rest: b"SQLite format 3\0" + rest))
def test_any_bytes_are_refused_and_left_alone(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "limits.db")
        path.write_bytes(content)
        with pytest.raises(HeadgateError):
            use(path)
        assert path.read_bytes() == content


# A place where no file can be


def a_missing_folder(path: Path) -> Path:
    return path / "limits.db"


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def below_a_file(path: Path) -> Path:
    path.write_text("a file")
    return path / "limits.db"


@pytest.mark.parametrize(
    ("place", "why"),
    [(a_missing_folder, "there, and writable?"), (a_folder, "it is a directory"), (below_a_file, "and writable?")],
)
def test_a_path_that_cannot_be_opened(place: Callable[[Path], Path], why: str, path: Path) -> None:
    unusable = place(path)
    with pytest.raises(ValidationError) as refused:
        use(unusable)
    assert f"{str(unusable)!r} cannot be opened" in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "error"),
    [
        (0o444, 0o777, "cannot be written: check the permissions of the file and of its folder"),
        (0o444, 0o555, "cannot be written: check the permissions of the file and of its folder"),
        (0o666, 0o555, "cannot be written: check the permissions of the file and of its folder"),
        (0o000, 0o777, "cannot be opened"),
        (None, 0o555, "and writable?"),
    ],
)
def test_without_the_right_to_write(file_mode: int | None, folder_mode: int, error: str) -> None:
    with open_to_strangers() as folder, another("stranger") as stranger:
        path = folder / "limits.db"
        if file_mode is not None:
            use(path)
            path.chmod(file_mode)
        folder.chmod(folder_mode)
        assert stranger.hear() == "ready"
        heard = stranger.ask(str(path))
        assert heard.startswith(f"ValidationError: {str(path)!r} ")
        assert error in heard
        if file_mode is not None:
            assert taken_from(path) == 1


@contextmanager
def open_to_strangers() -> Iterator[Path]:
    """A folder that, unlike tmp_path, everyone may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            folder.chmod(0o755)


# Damage

ENTITIES = [f"entity-{number}" for number in range(300)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file in which each entity has taken its own number of tokens."""
    path = tmp_path_factory.mktemp("healthy") / "limits.db"
    with SyncRateLimiter(url_of(path)) as limiter:
        limiter.set_resource_defaults("api", [LIMIT])
        for amount, entity in enumerate(ENTITIES, 1):
            assert limiter.try_acquire(entity, "api", {"tokens": amount})
    content = path.read_bytes()
    assert len(content) >= 6 * PAGE_BYTES
    return content


def answers_of(path: Path) -> dict[str, int | str]:
    """What each entity has taken, or the error that comes instead. Anything but our errors gets through."""
    answers: dict[str, int | str] = {}
    with SyncRateLimiter(url_of(path), config_cache_ttl=0) as limiter:
        for entity in ENTITIES:
            try:
                answers[entity] = int(LIMIT.capacity) - limiter.available(entity, "api")["tokens"]
                limiter.try_acquire(entity, "api", {"tokens": 1})
            except HeadgateError as error:
                answers[entity] = str(error)
        try:
            limiter.set_limits("someone", [LIMIT])
            limiter.try_acquire("someone", "api", {"slots": 1}, [Limit.concurrent("slots", 1)])
            limiter.try_acquire("someone", "api", {"tokens": 1})
            limiter.reset("someone", "api")
        except HeadgateError as error:
            answers["someone"] = str(error)
    return answers


RIGHT = {entity: amount for amount, entity in enumerate(ENTITIES, 1)}


def test_a_truncated_file_is_refused(path: Path, healthy: bytes) -> None:
    for size in [50, 100, 2000, *range(PAGE_BYTES, len(healthy), PAGE_BYTES)]:
        path.write_bytes(healthy[:size])
        with pytest.raises(HeadgateError, match="is damaged"):
            use(path)
        assert path.read_bytes() == healthy[:size]


@pytest.mark.parametrize("seed", range(3))
def test_noise_over_a_page_gives_no_wrong_answer(seed: int, path: Path, healthy: bytes) -> None:
    chance = random.Random(seed)
    for start in range(0, len(healthy), PAGE_BYTES):
        path.write_bytes(healthy[:start] + chance.randbytes(PAGE_BYTES) + healthy[start + PAGE_BYTES :])
        answers = answers_of(path)
        numbers = {entity: answer for entity, answer in answers.items() if isinstance(answer, int)}
        errors = [answer for answer in answers.values() if isinstance(answer, str)]
        assert numbers.items() <= RIGHT.items()
        assert errors
        assert all("is damaged" in error or "is not an SQLite database" in error for error in errors)


@pytest.mark.parametrize("seed", range(10))
def test_a_few_wrong_bytes_raise_nothing_but_our_errors(seed: int, path: Path, healthy: bytes) -> None:
    chance = random.Random(seed)
    damaged = bytearray(healthy)
    for _ in range(5):
        start = chance.randrange(len(damaged) - 16)
        damaged[start : start + 16] = chance.randbytes(16)
    path.write_bytes(damaged)
    answers_of(path)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"INTEGER NOT NULL", b"INTEGER NOT N\xffLL"),
        (b"settled_at_ms", b"settled_at_mz"),
        (b'{"limits": [', b'{"limits\xff: ['),
        (b'{"limits": [', b'["limits": ['),
        (b'"capacity": ', b'"capacitz": '),
        (b'"capacity": ', b'"capacity":-'),
    ],
)
def test_a_wrong_byte_in_schema_or_settings(was: bytes, becomes: bytes, path: Path, healthy: bytes) -> None:
    assert len(was) == len(becomes)
    assert was in healthy
    path.write_bytes(healthy.replace(was, becomes))
    errors = answers_of(path).values()
    assert all(isinstance(error, str) and error for error in errors)


# Locks

TIMEOUT_SECONDS = 0.3


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_locked_file_blocks_for_the_timeout_and_works_again(opened_before: bool, path: Path) -> None:
    use(path)
    with another("locker", path) as locker, SyncRateLimiter(url_of(path), store_timeout=TIMEOUT_SECONDS) as limiter:
        if opened_before:
            take(limiter)
        assert locker.ask() == "held"
        began = time.monotonic()
        with pytest.raises(RateLimiterUnavailable, match="locked by another process for longer than store_timeout"):
            take(limiter)
        assert TIMEOUT_SECONDS * 0.9 <= time.monotonic() - began < PATIENCE_SECONDS
        assert locker.ask() == "free"
        until_it_works(limiter)
    assert taken_from(path) == 2 + opened_before


def until_it_works(limiter: SyncRateLimiter) -> None:
    """Take one token as soon as the store takes part again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            decision = limiter.try_acquire("ada", "api", {"tokens": 1}, limits=[LIMIT])
        except RateLimiterUnavailable:
            decision = None
        if decision is not None and not decision.degraded:
            assert decision
            return
        assert time.monotonic() < deadline, "the store never came back"
        time.sleep(0.01)


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_locked_file_lets_pass_if_so_told(opened_before: bool, path: Path) -> None:
    use(path)
    with (
        another("locker", path) as locker,
        SyncRateLimiter(url_of(path), store_timeout=TIMEOUT_SECONDS, on_unavailable="allow") as limiter,
    ):
        if opened_before:
            take(limiter)
        assert locker.ask() == "held"
        decision = limiter.try_acquire("ada", "api", {"tokens": 1}, limits=[LIMIT])
        assert decision
        assert decision.degraded
        with limiter.acquire("ada", "api", {"tokens": 1}, limits=[LIMIT]) as lease:
            assert lease.degraded
            lease.adjust(tokens=5)
        assert locker.ask() == "free"
        until_it_works(limiter)
    assert taken_from(path) == 2 + opened_before, "what passed without the store was not counted"


# Forks


def test_both_sides_of_a_fork_use_one_limiter(path: Path) -> None:
    with another("fork_both_use", path) as forked:
        assert forked.hear() == 1 + 4 * 100
    assert taken_from(path) == 1 + 4 * 100


def test_a_child_loses_nothing_when_its_parent_closes(path: Path) -> None:
    with another("fork_parent_closes", path) as forked:
        assert forked.hear() == "done"
    assert taken_from(path) == 2 + 100


def test_a_child_forked_amid_threads_does_not_hang(path: Path) -> None:
    with another("fork_amid_threads", path) as forked:
        counted = forked.hear()
    assert counted["taken"] == counted["expected"]


# A full disk


def test_a_file_that_may_not_grow(path: Path) -> None:
    with another("file_size_limited", path) as limited:
        found = limited.hear()
    assert found["passed"] > 0
    assert found["error"].startswith(f"RateLimiterUnavailable: {str(path)!r} failed: ")
    assert found["again"].startswith("RateLimiterUnavailable: ")
    assert found["counted"] == found["passed"], "what was refused by the disk left no trace"
    assert taken_from(path) == 1 + 5


def in_a_small_disk(folder: Path) -> tuple[str, ...]:
    """A wrapper that sees a disk of 400 KB at `folder`, and is the only one that does."""
    return ("unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=400k none '{folder}' && exec \"$@\"", "sh")


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*in_a_small_disk(folder), "true"], capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_unavailable_and_loses_nothing(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount")
    with another("disk_full", tmp_path, wrapper=in_a_small_disk(tmp_path)) as limited:
        found = limited.hear()
    full = f"RateLimiterUnavailable: {str(tmp_path / 'limits.db')!r} failed: database or disk is full"
    assert found["creating"] == full
    assert found["error"] == full
    assert found["counted"] == found["passed"], "what was refused by the disk left no trace"


# Housekeeping


def test_full_buckets_are_forgotten(path: Path) -> None:
    clock = ManualClock()
    second, ever = Limit.per_second("calls", 10), Limit.custom("calls", 10, 0.001, 366 * 86_400)
    with SyncRateLimiter(url_of(path), clock=clock) as limiter:
        limiter.try_acquire("slow", "api", {"calls": 4}, limits=[ever])
        for day in range(4):
            for number in range(5000):
                assert limiter.try_acquire(f"day-{day}-{number}", "api", {"calls": 1}, limits=[second])
            assert query(path, "SELECT count(*) FROM buckets") <= 2 * 5000
            clock.advance(86_400)
        assert limiter.available("slow", "api", limits=[ever]) == {"calls": 6}


# From one run to the next


def test_tokens_taken_are_still_taken_after_closing(path: Path) -> None:
    for run in range(1, 4):
        use(path)
        assert taken_from(path) == run


def test_tokens_survive_kill_9(path: Path) -> None:
    for run in range(1, 4):
        with another("taker", path) as taker:
            assert taker.ask("10") == "taken"
            taker.process.kill()
            taker.process.wait()
        assert taken_from(path) == 10 * run


def test_stored_limits_survive_kill_9_of_others(path: Path) -> None:
    with SyncRateLimiter(url_of(path)) as limiter, another("taker", path) as taker:
        limiter.set_limits("ada", [LIMIT])
        assert taker.ask("10") == "taken"
        taker.process.kill()
        taker.process.wait()
        assert limiter.get_limits("ada") == [LIMIT]
        assert taken(limiter) == 10


# Closing amid tasks


def test_closed_while_others_queue_up(path: Path) -> None:
    """They are told, and the file is not opened again for them."""

    async def scenario() -> None:
        limiter = RateLimiter(url_of(path))
        await limiter.try_acquire("ada", "api", {"tokens": 1}, [LIMIT])
        tasks = [asyncio.create_task(limiter.try_acquire("ada", "api", {"tokens": 1}, [LIMIT])) for _ in range(1500)]
        for _ in range(3):
            await asyncio.sleep(0)
        await limiter.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(why) for why in answers if isinstance(why, BaseException)} == {LimiterClosed}
        assert not isinstance(answers[0], BaseException)

    asyncio.run(scenario())


def test_a_close_that_is_cancelled_closes(path: Path) -> None:
    async def scenario() -> None:
        for steps in range(1, 5):
            limiter = RateLimiter(url_of(path))
            lease = (await limiter.try_acquire("ada", "api", {"slots": 1}, [Limit.concurrent("slots", 9)])).lease
            assert lease is not None, "there is something to renew"
            closing = asyncio.create_task(limiter.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            until = time.monotonic() + PATIENCE_SECONDS
            while any(thread.name.startswith("headgate-store") for thread in threading.enumerate()):
                assert time.monotonic() < until, steps
                await asyncio.sleep(0.001)

    asyncio.run(scenario())


# Interrupts


class Interrupted(sqlite3.Connection):
    """Ctrl-C comes while it begins a transaction: Python raises it when that is done."""

    armed: ClassVar[list[str]] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        done = super().execute(sql, *parameters)
        if sql in self.armed:
            self.armed.remove(sql)
            raise KeyboardInterrupt
        return done


def test_interrupted_while_a_transaction_begins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not stay open: nobody else could write."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
    with SyncRateLimiter(url_of(path)) as limiter, SyncRateLimiter(url_of(path)) as other:
        take(limiter)
        take(other)
        for begin in ("BEGIN IMMEDIATE", "BEGIN"):
            Interrupted.armed.append(begin)
            with pytest.raises(KeyboardInterrupt):
                take(limiter) if begin == "BEGIN IMMEDIATE" else limiter.get_buckets("ada")
            take(other)
            take(limiter)
        assert taken(limiter) == 6


@pytest.mark.parametrize("replaced", [False, True])
def test_file_deleted_while_open_is_noticed_and_all_processes_share_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    monkeypatch.setattr("headgate.stores.sqlite.store.LOOK_SECONDS", 0.0)
    limits = [Limit.per_day("x", 10)]
    file, url = tmp_path / "limits.db", f"sqlite:///{tmp_path}/limits.db"
    with SyncRateLimiter(url) as old:
        assert old.try_acquire("e", "r", {"x": 10}, limits)
        for name in ("limits.db", "limits.db-wal", "limits.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        if replaced:
            with SyncRateLimiter(url) as other:
                other.try_acquire("e", "r", {"x": 4}, limits)
        assert old.available("e", "r", limits) == {"x": 6 if replaced else 10}
        assert file.exists()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "was deleted or replaced while it was open" in caplog.text
        with SyncRateLimiter(url) as new:
            assert new.try_acquire("e", "r", {"x": 6}, limits)
        assert old.available("e", "r", limits)["x"] in (0, 4)
        assert len(caplog.records) == 1

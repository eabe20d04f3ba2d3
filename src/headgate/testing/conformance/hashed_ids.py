"""`hash_entity_ids`: an id that is a secret is not in the store, in no answer and no log."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import pytest

from ...core.errors import HeadgateError, RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ...core.records import BucketRow, Page, Record
from ...limiter import Ask, Event, SyncRateLimiter
from ...stores import open_store
from .fixtures import RPM, START_MS, Conformance

SECRET = "hunter2"
USER, TEAM, NOBODY = f"{SECRET}-user", f"{SECRET}-team", f"{SECRET}-nobody"
BOTH = [RPM, Limit.concurrent("parallel", 1)]
SETTINGS = [True, f"{SECRET} is the key".encode()]

T = TypeVar("T")
Stored: TypeAlias = "tuple[list[Record], list[BucketRow]]"


def hashed(entity_id: str, setting: Any) -> str:
    key = setting if isinstance(setting, bytes) else b""
    return hashlib.blake2b(entity_id.encode("utf-8", "surrogatepass"), digest_size=20, key=key).hexdigest()


def steady(text: str) -> str:
    """Without what is another each time: the ids of leases, events and namespaces, and how long a wait was."""
    text = re.sub(r"\b[0-9a-f]{24}\b", "lease", re.sub(r"\b\d{24}[0-9a-f]{8}\b", "event", text))
    return re.sub(r"(?<=waited_seconds=)[\d.]+", "0", re.sub(r"\bid='[\w-]{11}'", "id='namespace'", text))


class Tour:
    """Through every method of a limiter. Notes what was called, what came of it, and, after one of `every` calls, what
    the store held then."""

    def __init__(
        self,
        open_limiter: Callable[..., Any],
        stored: Callable[[str], Stored],
        namespace: str,
        every: int,
        **settings: Any,
    ) -> None:
        self.every = every
        self.calls = 0
        self.events: list[Event] = []
        self.limiter = open_limiter(namespace=namespace, on_event=self.events.append, **settings)
        self.stored = stored
        self.called: set[str] = set()
        self.shown: list[str] = []
        self.lists: list[str] = []  # in the order of ids, which hashes do not have
        self.records: list[set[str]] = []
        self.buckets: list[set[str]] = []

    def go(self) -> None:
        self.call("watch", self)
        self._tokens()
        self._entities()
        self._limits()
        self._leases()
        self._slots()
        self._vendors()
        self._operating()
        self._delete()
        self.call("unwatch", self)
        self._end()

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        self.shown.append(f"{entity_id} {resource} {outcome}")

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        """No id is in it."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.called.add(method)
        return self._note(lambda: getattr(self.limiter, method)(*args, **kwargs))

    def _note(self, call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except HeadgateError as error:
            self.shown += _shown_error(error)
            result = error
        else:
            statuses = getattr(result, "statuses", [])
            self.shown += [repr(result), str(result), repr(statuses), repr(getattr(result, "cursor", None))]
            self.shown += [str(status.as_dict()) + status.explain() for status in statuses]
        self.calls += 1
        if self.calls % self.every:
            return result
        records, buckets = self.stored(self.limiter.namespace)
        self.records.append({steady(repr(record)) for record in records})
        self.buckets.append({row.entity_id for row in buckets})
        return result

    def _tokens(self) -> None:
        self.call("setup")
        self.call("ping")
        self.call("reconcile")
        self.call("find_corrupt")
        self.call("repair", [])
        self.call("try_acquire", USER, "r", {"rpm": 1})
        self.call("set_system_defaults", [RPM])
        for _ in range(2):  # from the records, from the cache
            self.call("try_acquire", USER, "r", {"rpm": 1})
        self.call("try_acquire", USER, "r", {"rpm": 59}, max_wait=0.001)
        self.call("try_acquire", USER, "r", {"rps": 1})
        self.call("available", USER, "r")
        self.call("time_until_available", USER, "r", {"rpm": 60})
        self.call("adjust", USER, "r", {"rpm": 1})
        self.call("penalize", USER, "r", seconds=1)
        self.call("get_buckets", USER)
        self.call("get_resource_capacity", "r", "rpm")
        self.call("reset", USER, "r")
        self.called.add("limit")
        self._note(_decorated(self.limiter))

    def _entities(self) -> None:
        self.call("create_entity", TEAM, name="the team")
        self.call("create_entity", USER, parent_id=NOBODY)
        made = self.call("create_entity", USER, parent_id=TEAM, cascade=True)
        self.call("create_entity", USER)
        self.call("update_entity", USER, parent_id=USER)
        self.call("update_entity", TEAM, parent_id=USER)
        self.call("update_entity", USER, name="a user", expected_version=made.version)
        self.call("update_entity", USER, name="a user", expected_version=made.version)
        self.call("update_entity", USER, parent_id=None)
        self.call("update_entity", USER, parent_id=TEAM)
        self.call("get_entity", USER)
        self.call("get_entity", NOBODY)
        self.call("get_children", TEAM)
        self.call("get_children", NOBODY)

    def _limits(self) -> None:
        self.call("set_limits", USER, [RPM])
        for resource in ("r", "idle"):
            self.call("set_limits", USER, [RPM], resource)
        self.call("get_limits", USER, "r")
        self.call("list_entities_with_custom_limits", "r", limit=1)
        self.call("resolve_limits", USER, "r")
        self.call("preview_limits", USER, "r", [RPM], inherit=False)
        self.call("get_resource_capacity", "idle", "rpm")
        self.call("set_resource_defaults", "r", [RPM])
        for method in ("get_resource_defaults", "delete_resource_defaults"):
            self.call(method, "r")
        for method in ("list_resources_with_defaults", "get_system_defaults", "get_system_on_unavailable"):
            self.call(method)
        self.call("get_cache_stats")
        self.call("invalidate_config_cache")

    def _leases(self) -> None:
        for _ in range(2):  # the chain from the records, from the cache
            self.call("try_acquire", USER, "r", {"rpm": 10})
        self.call("try_acquire", USER, "r", {"rpm": 60})
        self.called.add("acquire")
        self._note(lambda: self.limiter.acquire(USER, "r", {"rpm": 61}).__enter__())
        with self.limiter.acquire(USER, "r", {"rpm": 1}) as lease:
            assert SECRET not in repr(lease)
            self._note(lambda: lease.consume(rpm=60))
            self._note(lambda: lease.consume(rps=1))
            self._note(lambda: lease.adjust(rpm=5))
            self._note(lambda: lease.release(rpm=9))
        self._note(lambda: lease.consume(rpm=1))
        self.call("get_buckets", USER, "r")
        self.call("available", TEAM, "r")
        for ask in (Ask(USER, "r"), Ask(USER, "r", {"rps": 1}), Ask(USER, "r", {"rpm": 61})):
            for asks in ([ask], [[ask, Ask(TEAM, "r")]], [(USER, "r")]):
                found = self.call("try_acquire_each", asks)
                self.shown += [repr(each.statuses) for each in found] if isinstance(found, list) else []
        self._from_afar()

    def _from_afar(self) -> None:
        lease = self.limiter.try_acquire(USER, "r", {"rpm": 1}, record_lease=True).lease
        lease_id = lease.detach()
        for wrong in (USER, lease_id):
            self.call("renew_lease", wrong)
            self.call("adjust_lease", wrong, {"rpm": 1})
            self.call("adjust_lease", wrong, {"rps": 1})
            self.call("release_lease", wrong, {"rpm": 9})
            self.call("release_lease", wrong, rollback=True)
        self.call("renew_lease", lease_id)

    def _slots(self) -> None:
        with self.limiter.acquire(USER, "r", {"parallel": 1}, BOTH) as lease:
            assert SECRET not in repr(lease)
            self._note(lambda: lease.consume(parallel=1))
            self._note(lambda: lease.adjust(parallel=1))
            self._note(lambda: self.limiter.acquire(USER, "r", {"parallel": 1}, BOTH).__enter__())
            self.call("reset", USER, "r")
            self._note(lambda: lease.renew())
            assert SECRET not in repr(lease)
        how: dict[str, Any] = {"max_wait": 1, "record_lease": True, "restore_on_expiry": True}
        with self.limiter.acquire(USER, "r", {"rpm": 1, "parallel": 1}, BOTH, **how):
            self.call("reconcile")
            self.call("get_buckets", USER, "r")

    def _vendors(self) -> None:
        user, team = f"{USER}#r", f"{TEAM}#r"
        self.called |= {"slot", "acquire_many"}
        with self.limiter.slot(user, limits=BOTH):
            self._note(lambda: self.limiter.slot(user, timeout=0, limits=BOTH).__enter__())
        wish = {user: {"rpm": 1}, team: None}
        with self.limiter.acquire_many(wish, limits=dict.fromkeys(wish, BOTH)):
            self._note(lambda: self.limiter.acquire_many(wish, limits=dict.fromkeys(wish, BOTH)).__enter__())
        self._note(lambda: self.limiter.acquire_many({user: {"rps": 1}}).__enter__())
        self.call("sync_from_headers", user, {"x-ratelimit-remaining-requests": "5"})

    def _operating(self) -> None:
        for method in ("get_usage", "get_usage_summary", "get_audit_events", "get_limits_version", "get_own_limits"):
            self.call(method, USER)
        for method in ("get_usage_summary", "get_audit_events"):
            self.call(method)
        self.call("try_acquire", USER, "alerts", {"x": 1}, [Limit.quota("x", 1, "day", alert_at=[1])])
        self.call("ping")  # tasks write alerts beside their calls
        for method in ("get_usage", "list_entities", "list_buckets", "list_alerts"):
            self.called.add(method)
            self.lists.append(repr(getattr(self.limiter, method)()))
        for method in ("register", "get", "count", "delete", "recover"):
            self.call(f"{method}_namespace", "scratch")
        for _ in range(2):
            self.call("purge_namespace", "scratch", confirm="scratch")
            self.call("delete_namespace", "scratch")
        self.called |= {"list_namespaces", "get_namespace_events"}  # which are those of others too
        self.call("purge_orphan", "scratch", confirm="scratch")
        self.call("list_orphans")

    def _delete(self) -> None:
        self.call("delete_entity", NOBODY)
        self.call("delete_entity", TEAM)
        self.call("delete_limits", USER)
        self.call("delete_system_defaults")
        self.call("invalidate_config_cache")
        self.call("try_acquire", USER, "r", {"rpm": 1})
        self.call("try_acquire", TEAM, "r", {"rpm": 1})
        self.call("delete_entity", USER)
        self.call("get_buckets", USER)

    def _end(self) -> None:
        try:
            with self.limiter.acquire(USER, "r", {"rpm": 1}, [RPM]):
                self.call("close")
                raise KeyError  # what was taken cannot be given back now, which is logged
        except KeyError:
            pass
        self.call("get_entity", USER)


def _shown_error(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (repr(error), str(error))
        if isinstance(error, RateLimitExceeded):
            yield str(error.as_dict())
        error = error.__context__


def _decorated(limiter: Any) -> Callable[[], Any]:
    decorate = limiter.limit("1/minute", key=lambda: USER, cost=2, resource="f")
    if limiter.kind == "sync":
        return decorate(lambda: None)  # type: ignore[no-any-return]

    async def nothing() -> None: ...

    limited = decorate(nothing)
    return lambda: limiter.run(lambda _: limited())


def _all_pages(read: Callable[[str | None], Page[T]]) -> list[T]:
    page = read(None)
    found = list(page)
    while page.cursor is not None:
        page = read(page.cursor)
        found += page
    return found


def _check_secret_is_in_none(texts: Iterable[str]) -> None:
    for text in texts:
        assert SECRET not in text


def _methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(SyncRateLimiter, callable) if not name.startswith("_")}


def _revealed(text: str, setting: Any) -> str:
    """With the ids that were hashed, as the namespace without hashing would show it."""
    for entity_id in (USER, TEAM, NOBODY):
        text = text.replace(hashed(entity_id, setting), entity_id)
    text = text.replace("'namespace': 'secret'", "'namespace': 'clear'")
    return text.replace("'secret/", "'clear/").replace("namespace='secret'", "namespace='clear'")


class HashedIdConformance(Conformance):
    @pytest.fixture
    def stored(self, url: str) -> Iterator[Callable[[str], Stored]]:
        """Everything the store has in a namespace."""
        store = open_store(url, 5.0)

        def read(namespace: str) -> Stored:
            return (
                _all_pages(lambda cursor: store.list_records(f"{namespace}/", cursor, 100, START_MS)),
                _all_pages(lambda cursor: store.list_buckets(namespace, None, None, cursor, START_MS)),
            )

        yield read
        store.close()

    @pytest.mark.parametrize("setting", SETTINGS, ids=["hash", "keyed"])
    def test_answers_records_and_events_are_the_same_without_the_secret(
        self,
        open_limiter: Callable[..., Any],
        stored: Callable[[str], Stored],
        caplog: pytest.LogCaptureFixture,
        setting: Any,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        clear = Tour(open_limiter, stored, "clear", self.looks_every)
        secret = Tour(open_limiter, stored, "secret", self.looks_every, hash_entity_ids=setting)
        secret.go()
        assert "could not be rolled back" in caplog.text
        assert SECRET not in caplog.text
        _check_secret_is_in_none(
            chain(secret.shown, secret.lists, *secret.records, *secret.buckets, map(str, secret.events))
        )
        assert _methods() - secret.called == set(), "the tour leaves these out"

        clear.go()
        revealed = partial(_revealed, setting=setting)
        assert [revealed(steady(text)) for text in secret.shown] == [steady(text) for text in clear.shown]
        assert [revealed(steady(str(event))) for event in secret.events] == [steady(str(each)) for each in clear.events]
        assert {"acquire.refused", "lease.lost", "penalized"} <= {event.name for event in secret.events}
        assert [set(map(revealed, records)) for records in secret.records] == clear.records
        assert set().union(*secret.buckets) == {hashed(entity_id, setting) for entity_id in (USER, TEAM)}

    def test_each_setting_has_buckets_of_its_own(self, open_limiter: Callable[..., Any]) -> None:
        settings = [False, True, b"a", b"b", b"a\x00"]
        limiters = [open_limiter(hash_entity_ids=setting) for setting in settings]
        for amount, limiter in enumerate(limiters, 1):
            limiter.adjust(USER, "r", {"rpm": amount}, [RPM])
        assert [limiter.available(USER, "r", [RPM])["rpm"] for limiter in limiters] == [59, 58, 57, 56, 55]
        again = open_limiter(hash_entity_ids=b"a")
        assert again.available(USER, "r", [RPM]) == {"rpm": 57}

    def test_a_hash_is_an_id_where_nothing_is_hashed(self, open_limiter: Callable[..., Any]) -> None:
        hashing, plain = open_limiter(hash_entity_ids=b"key"), open_limiter()
        (status,) = hashing.try_acquire(USER, "r", {"rpm": 1}, [RPM]).statuses
        assert status.entity_id == hashed(USER, b"key")
        assert plain.available(status.entity_id, "r", [RPM]) == {"rpm": 59}
        plain.set_limits(status.entity_id, [RPM])
        hashing.invalidate_config_cache()
        assert hashing.resolve_limits(USER, "r") == ([RPM], "entity_default")

    @pytest.mark.parametrize("entity_id", ["sk/a+b==", "a#b", " ", "ä" * 256, "\ud800", "\x00"], ids=ascii)
    def test_a_secret_is_of_any_characters(self, open_limiter: Callable[..., Any], entity_id: str) -> None:
        limiter = open_limiter(hash_entity_ids=True)
        assert limiter.create_entity(entity_id).entity_id == hashed(entity_id, True)
        limiter.set_limits(entity_id, [RPM])
        assert limiter.try_acquire(entity_id, "r", {"rpm": 1})
        assert limiter.available(entity_id, "r") == {"rpm": 59}
        assert limiter.available(f"{entity_id[1:]}.", "r", [RPM]) == {"rpm": 60}

    @pytest.mark.parametrize(
        "secret", ["", SECRET * 40, SECRET.encode(), [SECRET], None], ids=lambda bad: repr(bad)[:9]
    )
    def test_an_id_that_is_none_is_not_shown(self, open_limiter: Callable[..., Any], secret: Any) -> None:
        limiter = open_limiter(hash_entity_ids=True)
        limiter.create_entity("e")
        calls: list[Callable[[], Any]] = [
            lambda: limiter.try_acquire(secret, "r", {"rpm": 1}, [RPM]),
            lambda: limiter.available(secret, "r", [RPM]),
            lambda: limiter.reset(secret, "r"),
            lambda: limiter.create_entity(secret),
            lambda: limiter.update_entity(secret, name="x"),
            lambda: limiter.get_children(secret),
            lambda: limiter.delete_entity(secret),
            lambda: limiter.set_limits(secret, [RPM]),
            lambda: limiter.get_buckets(secret),
        ]
        if secret is not None:
            calls.append(lambda: limiter.create_entity("f", parent_id=secret))
            calls.append(lambda: limiter.update_entity("e", parent_id=secret))
        for call in calls:
            with pytest.raises(
                ValidationError, match=r"(entity_id|parent_id) .*(1 to 256 characters|string)"
            ) as caught:
                call()
            assert not any(SECRET in text for text in _shown_error(caught.value))

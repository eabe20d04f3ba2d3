"""Records in DynamoDB, on every engine: what the conformance suite cannot see."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dynamodb_tables import NOW, Driven, a_table

from headgate import Limit, RateLimiterUnavailable, ValidationError, VersionConflict
from headgate.core.records import ABSENT, Change, Check, Delete, Put, Record
from headgate.stores.contract import MAX_CHANGES
from headgate.stores.dynamodb.exchange import Failed, Lost, Reply, Send
from headgate.stores.dynamodb.namespaces import Namespaces
from headgate.stores.dynamodb.records import Records
from headgate.testing.conformance.records import RecordConformance
from local_servers.dynamodb import Engine

NOBODY = {"name": None, "parent_id": None, "cascade": False, "metadata": {}}


class TestConformance(RecordConformance):
    @pytest.fixture
    def url(self, dynamodb_engine: Engine, aws_credentials: str) -> str:
        return dynamodb_engine.url(f"t{uuid.uuid4().hex}")


@pytest.fixture
def driven(dynamodb_engine: Engine, aws_credentials: str) -> Iterator[Driven]:
    with a_table(dynamodb_engine) as driven:
        yield driven


class Store:
    """The records of a table, as the calls of a store."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.namespaces = Namespaces(driven.deliver)
        self.records = Records(driven.deliver, self.namespaces)

    def get(self, *keys: str, now_ms: int = NOW) -> list[Record | None]:
        return self.driven.run(self.records.get_records_plan(keys, now_ms))

    def value(self, key: str, now_ms: int = NOW) -> Any:
        (record,) = self.get(key, now_ms=now_ms)
        return record and (record.value, record.version)

    def write(self, *changes: Change, now_ms: int = NOW) -> None:
        self.driven.run(self.records.write_records_plan(changes, now_ms))

    def list(self, prefix: str, cursor: str | None = None, limit: int = 10, now_ms: int = NOW) -> Any:
        return self.driven.run(self.records.list_records_plan(prefix, cursor, limit, now_ms))

    def listed(self, prefix: str) -> list[str]:
        return sorted(record.key for record in self.list(prefix))


@pytest.fixture
def store(driven: Driven) -> Store:
    store = Store(driven)
    store.write(Put("n/first", {}))
    driven.operations()
    return store


def limits(*amounts: float, **more: str) -> dict[str, Any]:
    return {"limits": [Limit.per_minute(f"l{n}", amount).as_dict() for n, amount in enumerate(amounts)], **more}


def entity(parent_id: str | None = None, **fields: Any) -> dict[str, Any]:
    return NOBODY | {"parent_id": parent_id} | fields


# The shape of the table


def test_an_entity_is_flat(store: Store) -> None:
    store.write(
        Put("n/entity#ann", entity("team", name="Ann", cascade=True, metadata={"a": [1, None]})),
        Put("n/child#team#ann", {}),
    )
    ns = store.namespaces.known("n")
    assert store.driven.items()[f"{ns}/ENTITY#ann", "#META"] == {
        "PK": {"S": f"{ns}/ENTITY#ann"},
        "SK": {"S": "#META"},
        "GSI1PK": {"S": f"{ns}/PARENT#team"},
        "GSI1SK": {"S": "CHILD#ann"},
        "GSI2PK": {"S": f"{ns}/ENTITIES#"},
        "GSI2SK": {"S": "ann"},
        "GSI4PK": {"S": ns},
        "GSI4SK": {"S": f"{ns}/ENTITY#ann"},
        "entity_id": {"S": "ann"},
        "name": {"S": "Ann"},
        "parent_id": {"S": "team"},
        "cascade": {"BOOL": True},
        "metadata": {"S": '{"a": [1, null]}'},
        "version": {"N": "1"},
    }


def test_limits_that_are_taken_away_leave_nothing_behind(store: Store) -> None:
    store.write(Put("n/limits#system", limits(1, 0.5, 3, on_unavailable="allow")))
    store.write(Put("n/limits#system", limits(7)))
    assert store.value("n/limits#system") == (limits(7), 2)
    item = store.driven.items()[f"{store.namespaces.known('n')}/SYSTEM#", "#CONFIG"]
    assert sorted(name for name in item if name.startswith(("l_", "on_"))) == ["l_l0_cp", "l_l0_ra", "l_l0_rp"]


def test_children_are_listed_by_the_parent_of_their_entity(store: Store) -> None:
    store.write(Put("n/entity#ann", entity("team")), Put("n/child#team#ann", {}))
    assert store.value("n/child#team#ann") == ({}, 1)
    assert store.value("n/child#other#ann") is None
    assert store.listed("n/child#team#") == ["n/child#team#ann"]
    store.write(Put("n/entity#ann", entity("other")), Delete("n/child#team#ann"), Put("n/child#other#ann", {}))
    assert store.listed("n/child#team#") == []
    assert store.listed("n/child#other#") == ["n/child#other#ann"]
    store.write(Delete("n/entity#ann"), Delete("n/child#other#ann"))
    assert store.listed("n/child#other#") == []
    assert store.value("n/child#other#ann") is None


def test_entities_with_custom_limits_are_listed_by_resource(store: Store) -> None:
    for resource in ("", "a/b"):
        store.write(Put(f"n/limits#entity#ann#{resource}", limits(1)), Put(f"n/custom#{resource}#ann", {}))
    assert store.listed("n/custom##") == ["n/custom##ann"]
    assert store.listed("n/custom#a/b#") == ["n/custom#a/b#ann"]
    assert store.listed("n/custom#a#") == []
    assert [record and record.key for record in store.get("n/custom##ann", "n/custom#a/b#bob")] == [
        "n/custom##ann",
        None,
    ]
    assert store.listed("n/limits#entity#ann#") == ["n/limits#entity#ann#", "n/limits#entity#ann#a/b"]
    assert store.listed("n/limits#entity#") == ["n/limits#entity#ann#", "n/limits#entity#ann#a/b"]
    store.write(Delete("n/limits#entity#ann#"), Delete("n/custom##ann"))
    assert store.listed("n/custom##") == []


def test_what_only_follows_has_no_version_of_its_own(store: Store) -> None:
    store.driven.operations()
    store.write(Put("n/child#team#ann", {}), Delete("n/custom##ann"))
    assert store.driven.operations() == [], "there is nothing to write"
    for change in (Put("n/child#team#ann", {}, ABSENT), Check("n/custom##ann", 1), Delete("n/custom##ann", 1)):
        with pytest.raises(ValidationError, match="no version: it follows from"):
            store.write(change)


# Lists


FAMILIES = {
    "n/entity#": ("n/entity#{}", entity()),
    "n/child#p#": ("n/entity#{}", entity("p")),
    "n/limits#resource#": ("n/limits#resource#r/{}", limits(1)),
    "n/limits#entity#": ("n/limits#entity#{}#r", limits(1)),
    "n/limits#entity#e#": ("n/limits#entity#e#r/{}", limits(1)),
    "n/custom#r#": ("n/limits#entity#{}#r", limits(1)),
    "n/x#": ("n/x#{}", {}),
}


@pytest.mark.parametrize("prefix", FAMILIES)
def test_a_list_is_complete_while_it_is_being_deleted(store: Store, prefix: str) -> None:
    key, value = FAMILIES[prefix]
    names = [f"e{n}" for n in range(7)]
    store.write(
        *(Put(key.format(name), value) for name in names),
        Put("n/entity#z", entity("q")),
        Put("n/limits#entity#z#z", limits(1)),
        Put("n/x", {}),
    )
    others = {"n/entity#": {"n/entity#z"}, "n/limits#entity#": {"n/limits#entity#z#z"}}.get(prefix, set())
    expected = {f"{prefix}{name}": key.format(name) for name in names}
    expected = {
        "n/limits#entity#": {f"n/limits#entity#{name}#r": key.format(name) for name in names},
        "n/limits#resource#": {f"n/limits#resource#r/{name}": key.format(name) for name in names},
        "n/limits#entity#e#": {f"n/limits#entity#e#r/{name}": key.format(name) for name in names},
    }.get(prefix, expected)
    seen: list[str] = []
    cursor = None
    while True:
        page = store.list(prefix, cursor, 2)
        seen += [record.key for record in page]
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page) == 2
        store.write(*(Delete(expected[record.key]) for record in page if record.key in expected))
    assert sorted(seen) == sorted({*expected, *others})


def test_a_list_that_ends_with_its_page_says_so(store: Store) -> None:
    store.write(*(Put(f"n/entity#{n}", entity()) for n in range(4)))
    page = store.list("n/entity#", None, 2)
    assert page.cursor is not None
    assert store.list("n/entity#", page.cursor, 2).cursor is None


def test_a_list_asks_the_table_for_what_an_index_names(store: Store) -> None:
    """Indexes lag behind: a row may be gone, or an entity may have moved to another parent."""
    store.write(*(Put(f"n/entity#{name}", entity("team")) for name in ("ann", "bob", "cyd")))

    def lag(send: Send) -> Reply:
        reply = store.driven.reply(send)
        store.write(Delete("n/entity#ann"), Put("n/entity#bob", entity("other")))
        return reply

    store.driven.meddle_once("Query", lag)
    assert store.listed("n/child#team#") == ["n/child#team#cyd"]


def test_an_entity_among_much_usage_is_found_at_once(store: Store) -> None:
    ns = store.namespaces.known("n")
    for n in range(30):
        pk = f"{ns}/ENTITY#a{n:02}"
        store.driven.put(PK={"S": pk}, SK={"S": "#USAGE#r#hour#x"}, GSI4PK={"S": ns}, GSI4SK={"S": pk})
    assert store.list("n/entity#", None, 1) == []
    store.driven.operations()
    store.write(Put("n/entity#zoe", entity()))
    store.driven.operations()
    assert len(store.list("n/entity#", None, 1)) == 1
    assert store.driven.operations() == ["Query", "BatchGetItem"]


@pytest.mark.parametrize("cursor", ["n/child#team#ann", "n/entity#a#b", "m/entity#ann", "", "x"])
def test_a_cursor_of_another_list_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ValidationError, match="is not of this list: pass the cursor"):
        store.list("n/entity#", cursor)


def test_a_list_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(ValidationError, match="above zero, not 0"):
        store.list("n/entity#", None, 0)


def test_whoever_reads_registers_no_namespace(driven: Driven) -> None:
    store = Store(driven)
    assert store.get("other/a", "other/entity#e") == [None, None]
    assert store.list("other/entity#") == []
    assert [sk for _, sk in driven.items()] == ["#VERSION"]


# Reading


def test_many_in_any_order_and_twice(store: Store) -> None:
    for start in range(0, 250, 50):
        store.write(*(Put(f"n/{n}", {"n": n}) for n in range(start, start + 50)))
    store.driven.operations()
    wanted = [f"n/{n}" for n in (*range(249, -1, -1), 7, 1000)]
    assert [record and record.value["n"] for record in store.get(*wanted)] == [*range(249, -1, -1), 7, None]
    assert store.driven.operations() == ["BatchGetItem"] * 3


def test_keys_that_dynamodb_leaves_out_are_asked_for_again(store: Store) -> None:
    store.write(*(Put(f"n/{n}", {"n": n}) for n in range(10)))

    def half(send: Send) -> Reply | None:
        (table, request), *_ = send.parameters["RequestItems"].items()
        keys = request["Keys"]
        if len(keys) < 2:
            return None
        kept = {**request, "Keys": keys[: len(keys) // 2]}
        reply = store.driven.reply(send._replace(parameters={"RequestItems": {table: kept}}))
        assert isinstance(reply, dict)
        left = {table: {"Keys": keys[len(keys) // 2 :], "ConsistentRead": True}}
        return {"Responses": reply["Responses"], "UnprocessedKeys": left}

    store.driven.operations()
    store.driven.meddle = half
    assert [record and record.value["n"] for record in store.get(*(f"n/{n}" for n in range(10)))] == list(range(10))
    assert store.driven.slept
    assert {str(send.parameters).count("'ConsistentRead': True") for send in store.driven.sent} == {1}


def test_limits_are_never_older_than_their_revision(store: Store) -> None:
    """DynamoDB may read the revision last."""
    wanted = ("n/revision", "n/limits#system")
    store.write(Put("n/revision", {"revision": 1}), Put("n/limits#system", limits(1)))
    other = Store(store.driven)

    def overtaken(send: Send) -> Reply:
        before = store.driven.reply(send)
        other.write(Put("n/revision", {"revision": 2}), Put("n/limits#system", limits(2)))
        after = store.driven.reply(send)
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        items = {(item["PK"]["S"], item["SK"]["S"]): item for item in before["Responses"][store.driven.table]}
        for item in after["Responses"][store.driven.table]:
            if item["SK"]["S"] == "#REVISION":
                items[item["PK"]["S"], item["SK"]["S"]] = item
        return {"Responses": {store.driven.table: list(items.values())}}

    store.get(*wanted)
    store.driven.meddle_once("BatchGetItem", overtaken)
    assert [record and record.value for record in store.get(*wanted)] == [{"revision": 2}, limits(2)]
    store.driven.operations()
    assert [record and record.value for record in store.get(*wanted)] == [{"revision": 2}, limits(2)]
    assert store.driven.operations() == ["BatchGetItem"], "a revision that is known costs nothing"


# Writing


def test_each_write_of_records_sends_as_few_operations_as_possible(store: Store) -> None:
    store.write(Put("n/a", {}, ABSENT))
    assert store.driven.operations() == ["PutItem"]
    store.write(Put("n/a", {}))
    assert store.driven.operations() == ["BatchGetItem", "PutItem"]
    store.write(Delete("n/a", 2))
    assert store.driven.operations() == ["DeleteItem"]
    store.write(Check("n/a", ABSENT))
    assert store.driven.operations() == ["TransactWriteItems"]
    store.write(Put("n/a", {}, ABSENT), Delete("n/b"), Check("n/c", ABSENT))
    assert store.driven.operations() == ["TransactWriteItems"]


def test_blind_writers_do_not_lose_each_other(driven: Driven) -> None:
    workers, each = 4, 5

    def work(worker: int) -> None:
        mine = Store(driven)
        for n in range(each):
            mine.write(Put("n/a", {"by": worker}))
            mine.write(Put("n/b", {}), Put(f"n/{worker}-{n}", {}))

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    store = Store(driven)
    assert [store.value(key)[1] for key in ("n/a", "n/b")] == [workers * each, workers * each]


def test_one_of_the_writers_of_the_same_version_gets_through(driven: Driven) -> None:
    """Of those who have read the same version one gets through."""
    Store(driven).write(Put("n/a", {}))
    stores = [Store(driven) for _ in range(4)]

    def in_the_way(store: Store) -> str:
        try:
            store.write(Put("n/a", {}, 1), Put("n/b", {}))
        except VersionConflict as conflict:
            return conflict.key
        return ""

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(in_the_way, stores)) == ["", "n/a", "n/a", "n/a"]
    assert stores[0].value("n/b") == ({}, 1)


def test_the_first_conflict_is_named(store: Store) -> None:
    store.write(Put("n/a", {}), Put("n/b", {}))
    with pytest.raises(VersionConflict, match="n/b"):
        store.write(Put("n/a", {}), Put("n/b", {}, ABSENT), Check("n/c", 3), Delete("n/d"))
    for alone in (Put("n/b", {}, ABSENT), Put("n/b", {}, 2), Delete("n/b", 2), Check("n/b", 2)):
        with pytest.raises(VersionConflict, match="n/b"):
            store.write(alone)
    assert store.value("n/b") == ({}, 1)


@pytest.mark.parametrize("alone", [True, False])
def test_a_transaction_of_others_in_the_way_is_waited_for(store: Store, alone: bool) -> None:
    reasons = [Failed("None", ""), Failed("TransactionConflict", "")]
    failure = Failed("TransactionConflict", "") if alone else Failed("TransactionCanceled", "", reasons=reasons)
    changes = [Put("n/a", {"x": 1}, ABSENT)] if alone else [Put("n/a", {"x": 1}, ABSENT), Put("n/b", {})]
    store.driven.meddle_once("PutItem" if alone else "TransactWriteItems", lambda send: failure)
    store.write(*changes)
    assert store.value("n/a") == ({"x": 1}, 1)


def test_a_blind_write_that_is_overtaken_reads_again(store: Store) -> None:
    other = Store(store.driven)

    def overtaken(send: Send) -> Reply:
        other.write(Put("n/a", {"by": "other"}))
        return store.driven.reply(send)

    store.driven.meddle_once("PutItem", overtaken)
    store.write(Put("n/a", {"by": "me"}))
    assert store.value("n/a") == ({"by": "me"}, 2)
    store.driven.meddle_once("TransactWriteItems", overtaken)
    store.write(Put("n/a", {"by": "me"}), Put("n/b", {}))
    assert store.value("n/a") == ({"by": "me"}, 4)


def test_a_transaction_whose_reply_was_lost_is_not_done_twice(store: Store) -> None:
    def lose(send: Send) -> Reply:
        assert isinstance(store.driven.reply(send), dict)
        return Lost("closed the connection", sent=True)

    store.driven.meddle_once("TransactWriteItems", lose)
    store.write(Put("n/a", {}, ABSENT), Put("n/b", {}))
    assert (store.value("n/a"), store.value("n/b")) == (({}, 1), ({}, 1))


def test_a_single_write_whose_reply_was_lost_is_not_repeated(store: Store) -> None:
    def lose(send: Send) -> Reply:
        assert isinstance(store.driven.reply(send), dict)
        return Lost("closed the connection", sent=True)

    for change in (Put("n/a", {}, ABSENT), Put("n/a", {}), Delete("n/a", 2)):
        operation = "PutItem" if isinstance(change, Put) else "DeleteItem"
        store.driven.meddle_once(operation, lose)
        store.driven.operations()
        with pytest.raises(RateLimiterUnavailable, match="closed the connection"):
            store.write(change)
        assert store.driven.operations().count(operation) == 1
    store.driven.meddle_once("DeleteItem", lose)
    store.write(Delete("n/a"))  # gone is gone


def test_a_write_that_did_not_leave_is_sent_again(store: Store) -> None:
    store.driven.meddle_once("PutItem", lambda send: Lost("cannot be reached", sent=False))
    store.write(Put("n/a", {}, ABSENT))
    assert store.value("n/a") == ({}, 1)


def test_the_expired_does_not_exist(store: Store) -> None:
    soon = NOW + 1000

    def again() -> None:
        store.write(Put("n/a", {"old": True}), Put("n/a2", {}))
        store.write(Put("n/a", {"old": True}, expires_at_ms=soon))

    again()
    for conflict in (Put("n/a", {}, 2), Delete("n/a", 2), Check("n/a", 2)):
        store.write(Check("n/a", 2), now_ms=soon - 1)
        with pytest.raises(VersionConflict):
            store.write(conflict, now_ms=soon)
    store.write(Check("n/a", ABSENT), now_ms=soon)
    with pytest.raises(VersionConflict):
        store.write(Check("n/a", ABSENT), now_ms=soon - 1)
    store.write(Put("n/a", {"new": True}), now_ms=soon)
    assert store.value("n/a", soon) == ({"new": True}, 1)
    item = store.driven.items()[f"{store.namespaces.known('n')}/RECORD#", "#RECORD#a"]
    assert not {"ttl", "expires_at_ms"} & set(item)


def test_entities_may_expire_too(store: Store) -> None:
    store.write(Put("n/entity#guest", entity("team"), expires_at_ms=NOW + 1))
    assert store.listed("n/child#team#") == ["n/child#team#guest"]
    assert store.list("n/child#team#", now_ms=NOW + 1) == []
    assert store.list("n/entity#", now_ms=NOW + 1) == []
    assert store.get("n/entity#guest", "n/child#team#guest", now_ms=NOW + 1) == [None, None]


def test_how_many_changes_fit(store: Store) -> None:
    store.write(*(Put(f"n/{n}", {}) for n in range(MAX_CHANGES)))
    store.driven.operations()
    with pytest.raises(ValidationError, match=f"{MAX_CHANGES + 1} changes.*at most {MAX_CHANGES}"):
        store.write(*(Put(f"n/{n}", {}) for n in range(MAX_CHANGES + 1)))
    with pytest.raises(ValidationError, match=r"'n/a' is changed twice"):
        store.write(Put("n/a", {}), Delete("n/a"))
    assert store.driven.operations() == []


def test_a_value_that_is_too_large_is_refused(store: Store) -> None:
    for more in ([], [Put("n/b", {})]):
        with pytest.raises(ValidationError, match=r"(?i)size"):
            store.write(Put("n/a", {"x": "y" * 500_000}), *more)

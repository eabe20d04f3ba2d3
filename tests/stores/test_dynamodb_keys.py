"""Where records are kept in the table, and how they are spelled there."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settle_histories import CALENDARS

from headgate import Limit, ValidationError
from headgate.core.calendar import Calendar
from headgate.core.limit import AT_ONCE
from headgate.core.names import ID_CHARACTERS, StoredId
from headgate.limiter import keys as record_keys
from headgate.stores.dynamodb import keys
from headgate.stores.dynamodb.items import attribute, values_of
from headgate.stores.dynamodb.record_items import EXPIRES, namespace_of, record_item, record_list
from headgate.stores.dynamodb.record_kinds import KINDS, TABLE, RecordKind

NOW = 1_700_000_000_000
NS = "abcdefghijk"
IDS = st.from_regex(rf"[A-Za-z0-9][{ID_CHARACTERS}]{{0,10}}", fullmatch=True).map(StoredId)
RESOURCES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,10}", fullmatch=True)
LIMIT_NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,10}", fullmatch=True)
MILLI = st.integers(1, 10**15)
PERIODS_MS = st.integers(1, 366 * 86_400_000)
ALERTS = st.sets(st.integers(1, 1000), max_size=3).map(lambda found: tuple(sorted(found)))
# All that there can be.
LIMITS = st.one_of(
    st.builds(Limit.from_stored, LIMIT_NAMES, MILLI, MILLI, PERIODS_MS, st.none(), ALERTS),
    st.builds(Limit.from_stored, LIMIT_NAMES, st.just(2000), st.just(0), PERIODS_MS, st.none(), ALERTS),
    st.builds(Limit.from_stored, LIMIT_NAMES, MILLI, st.just(AT_ONCE), PERIODS_MS, st.none(), ALERTS),
    st.builds(
        Limit.from_stored, LIMIT_NAMES, MILLI, st.just(AT_ONCE), st.just(0),
        st.sampled_from([*CALENDARS, Calendar.matching("*/5 6 * * 1-5", tz="Europe/Berlin")]), ALERTS,
    ),
)  # fmt: skip
EVERY_KEY = st.one_of(
    st.just(record_keys.revision_key("n")),
    st.just(record_keys.system_limits_key("n")),
    st.builds(record_keys.entity_key, st.just("n"), IDS),
    st.builds(record_keys.child_key, st.just("n"), IDS, IDS),
    st.builds(record_keys.resource_limits_key, st.just("n"), RESOURCES),
    st.builds(record_keys.entity_limits_key, st.just("n"), IDS, st.none() | RESOURCES),
    st.builds(record_keys.custom_key, st.just("n"), st.none() | RESOURCES, IDS),
    st.builds(record_keys.audit_key, st.just("n"), IDS),
    st.builds(record_keys.audited_key, st.just("n"), IDS, IDS),
    st.builds("n/other#{}".format, st.text(max_size=5)),
)


def test_the_keys_of_the_layout() -> None:
    assert keys.pk_bucket(NS, "acme", "gpt-4", 3) == f"{NS}/BUCKET#acme#gpt-4#3"
    assert keys.parse_bucket_pk(f"{NS}/BUCKET#acme#a/b#3") == (NS, "acme", "a/b", 3)
    assert keys.parse_pk(f"{NS}/ENTITY#acme") == (NS, "ENTITY", "acme")
    assert keys.sk_usage("api", "hour", "2024-01-01T14:00:00Z") == "#USAGE#api#hour#2024-01-01T14:00:00Z"
    with pytest.raises(ValueError, match="not the key of a bucket"):
        keys.parse_bucket_pk(f"{NS}/ENTITY#acme")


@pytest.mark.parametrize(
    ("key", "pk", "sk"),
    [
        ("n/revision", "SYSTEM#", "#REVISION"),
        ("n/entity#acme", "ENTITY#acme", "#META"),
        ("n/child#acme#ann", "ENTITY#ann", "#META"),
        ("n/limits#system", "SYSTEM#", "#CONFIG"),
        ("n/limits#resource#a/b", "RESOURCE#a/b", "#CONFIG"),
        ("n/limits#entity#acme#a/b", "ENTITY#acme", "#CONFIG#a/b"),
        ("n/limits#entity#acme#", "ENTITY#acme", "#CONFIG#_default_"),
        ("n/custom#a/b#acme", "ENTITY#acme", "#CONFIG#a/b"),
        ("n/custom##acme", "ENTITY#acme", "#CONFIG#_default_"),
        ("n/audit#1", "AUDIT#", "#AUDIT#1"),
        ("n/audited#acme#1", "AUDIT#acme", "#AUDITED#1"),
        ("n/namespace#acme", "RECORD#", "#RECORD#namespace#acme"),
        ("n/slots#x/y", "RECORD#", "#RECORD#slots#x/y"),
        ("n/entity", "RECORD#", "#RECORD#entity"),
    ],
)
def test_the_item_of_a_record(key: str, pk: str, sk: str) -> None:
    assert record_item(key, NS).item_key == (f"{NS}/{pk}", sk)


def test_namespaces_are_records_of_the_registry() -> None:
    assert record_item("_/namespace#acme", "_").item_key == ("_/SYSTEM#", "#NAMESPACE#acme")
    assert record_item("_/audit#1", "_").item_key == ("_/AUDIT#", "#AUDIT#1")


@pytest.mark.parametrize(
    "key", ["n/entity#", "n/entity#a#b", "n/child#a", "n/limits#", "n/limits#system#x", "n/custom#r", "n/audited#a"]
)
def test_unknown_keys_of_records_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        record_item(key, NS)


@settings(max_examples=40)
@given(st.lists(EVERY_KEY, unique=True))
def test_no_two_records_share_an_item(record_keys: list[str]) -> None:
    items = [item for key in record_keys if not (item := record_item(key, NS)).kind.derived]
    assert len({item.item_key for item in items}) == len(items)


@given(EVERY_KEY)
def test_a_list_finds_the_key_again(key: str) -> None:
    if key in ("n/revision", "n/limits#system"):
        return  # never listed
    item, listed = record_item(key, NS), record_list(key, NS)
    position = listed.position(item)
    assert listed.item_of(position, "n") == item
    pk, sk = listed.keys
    assert position[f"{listed.gsi}PK"]["S"] == pk
    assert position[f"{listed.gsi}SK"]["S"].startswith(sk)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_lists_by_its_own_indexes_and_repeats_its_own_fields(kind: RecordKind) -> None:
    fields = re.findall(r"{(\w+)}", kind.name)
    assert {*kind.repeats, *kind.listed, *kind.empty} <= {*fields}
    assert {*kind.listed.values()} <= {TABLE, keys.GSI4, *kind.indexes}
    assert {*re.findall(r"{(\w+)}", kind.pk + kind.sk)} <= {"ns", *fields}


@pytest.mark.parametrize("prefix", ["n/child#", "n/limits#", "n/limits#sys", "n/custom#r", "n/audited#"])
def test_prefixes_that_cannot_be_listed(prefix: str) -> None:
    with pytest.raises(ValidationError, match=prefix):
        record_list(prefix, NS)


@given(
    st.lists(LIMITS, min_size=1, max_size=4, unique_by=lambda limit: limit.name),
    st.sampled_from([{}, {"on_unavailable": "allow"}, {"schedule": {"tz": "UTC", "hours": [["sat,sun", 0.5]]}}]),
)
def test_limits_come_back_exactly_and_in_order(limits: list[Limit], more: dict[str, Any]) -> None:
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in limits], **more}
    stored = record_item("n/limits#system", NS)
    record = stored.record(stored.item(value, 7, None), NOW)
    assert record is not None
    assert (record.value, record.version) == (value, 7)
    assert [Limit.from_dict(limit) for limit in record.value["limits"]] == limits


def test_limits_are_flat_numbers_in_tokens_and_seconds() -> None:
    stored = record_item("n/limits#entity#acme#gpt-4", NS)
    limits = [Limit("tpm.x-1_y", 0.001, 1.5, 60), Limit("day", 10**12, 2, 86_400)]
    item = stored.item({"limits": [limit.as_dict() for limit in limits]}, 3, None)
    assert values_of(item) == {
        "PK": f"{NS}/ENTITY#acme",
        "SK": "#CONFIG#gpt-4",
        "GSI2PK": f"{NS}/ENTITY_CONFIGS#",
        "GSI2SK": "acme#gpt-4",
        "GSI3PK": f"{NS}/ENTITY_CONFIG#gpt-4",
        "GSI3SK": "acme",
        "GSI4PK": NS,
        "GSI4SK": f"{NS}/ENTITY#acme",
        "entity_id": "acme",
        "resource": "gpt-4",
        "limit_names": "tpm.x-1_y,day",
        "l_tpm.x-1_y_cp": values_of({"": {"N": "0.001"}})[""],
        "l_tpm.x-1_y_ra": values_of({"": {"N": "1.5"}})[""],
        "l_tpm.x-1_y_rp": 60,
        "l_day_cp": 10**12,
        "l_day_ra": 2,
        "l_day_rp": 86_400,
        "config_version": 3,
    }


@given(
    st.none() | st.text(max_size=5),
    st.none() | IDS,
    st.booleans(),
    st.dictionaries(st.text(max_size=3), st.none() | st.floats(allow_nan=False) | st.lists(st.integers()), max_size=3),
)
def test_entity_items_are_read_back_as_written(
    name: str | None, parent_id: str | None, cascade: bool, metadata: dict[str, Any]
) -> None:
    value = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": metadata}
    stored = record_item("n/entity#ann", NS)
    item = stored.item(value, 1, None)
    record = stored.record(item, NOW)
    assert record is not None
    assert record.value == value
    assert ("GSI1PK" in item) == (parent_id is not None)


def test_a_value_with_more_than_the_item_can_hold_is_refused() -> None:
    limit = Limit.per_minute("rpm", 1).as_dict()
    for key, value in [
        ("n/entity#ann", {"name": None, "colour": "red"}),
        ("n/limits#system", {"limits": [], "colour": "red"}),
        ("n/limits#system", {"limits": [limit | {"colour": "red"}]}),
        ("n/revision", {"revision": 1, "colour": "red"}),
    ]:
        with pytest.raises(ValidationError, match=rf"{key}.*'colour'"):
            record_item(key, NS).item(value, 1, None)


def test_when_a_record_expires() -> None:
    stored = record_item("n/x", NS)
    before = time.time()
    item = stored.item({}, 1, NOW + 1, NOW)
    assert item[EXPIRES] == attribute(NOW + 1)
    assert before + 0.001 <= int(item["ttl"]["N"]) <= time.time() + 3, "not before, by the machine's clock"
    assert stored.record(item, NOW) is not None
    assert stored.record(item, NOW + 1) is None


def test_an_item_that_was_changed_by_hand_is_named() -> None:
    stored = record_item("n/entity#ann", NS)
    item = {**stored.item({}, 1, None), "metadata": {"S": "{"}}
    record = stored.record(item, NOW)
    assert record is not None
    assert record.key == "n/entity#ann"
    assert re.search("ENTITY#ann.*#META.*cannot be read", record.flaw or "")


def test_keys_of_several_namespaces_are_refused() -> None:
    assert namespace_of(["n/a", "n/b/c"]) == "n"
    for wrong in (["n/a", "m/a"], ["a"], ["/a"]):
        with pytest.raises(ValidationError, match="one namespace"):
            namespace_of(wrong)

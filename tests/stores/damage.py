"""Stored data, damaged by hand: each store's rows and records, reached past headgate with the store's own client."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headgate.testing.servers.redis import RedisServer
from local_servers.postgres import PostgresServer

_SQLITE_COLUMNS = ("capacity_milli", "refill_milli", "period_ms", "tokens_milli", "settled_at_ms", "remainder",
    "blocked_until_ms", "revision", "used_milli")  # fmt: skip
_POSTGRES_VALUES = {
    "capacity_milli": (0, -1, 2**62), "refill_milli": (-2, 2**62), "period_ms": (0, -60_000, 2**62),
    "tokens_milli": (2**62, 10**16, -(2**63)), "settled_at_ms": (-1, 2**62), "remainder": (-1, 60_000, 2**62),
    "blocked_until_ms": (-1, 2**62), "revision": (-1, 2**62), "used_milli": (2**63 - 1,),
}  # fmt: skip


@dataclass
class Bench:
    """A store and ways to damage it. A damage takes `namespace`, `entity#resource`; one of records its name."""

    url: str
    damages: dict[str, Callable[[str, str], None]]
    damage_record: Callable[[str, str, Any], None]
    record_damages: dict[str, Any] = field(default_factory=dict)
    slot_damages: dict[str, Callable[[str, str], None]] = field(default_factory=dict)  # of the limit `parallel`


def sqlite_bench(path: str) -> Bench:
    def run(statement: str, *values: Any) -> None:
        connection = sqlite3.connect(path)
        with connection:
            assert connection.execute(statement, values).rowcount
        connection.close()

    def update(column: str, expression: str) -> Callable[[str, str], None]:
        return lambda ns, place: run(f"UPDATE buckets SET {column} = {expression} WHERE key = ?", f"{ns}/{place}")

    broken = {"text": "'NaN'", "empty text": "''", "not UTF-8": "CAST(x'ff00fe' AS TEXT)", "a blob": "x'00'",
        "a fraction": "0.5", "a huge number": "9223372036854775807", "infinite": "9e999"}  # fmt: skip
    damages = {
        f"{column} is {what}": update(column, expression)
        for column in _SQLITE_COLUMNS
        for what, expression in broken.items()
        if (column, what) not in {("used_milli", "a blob")}
    }
    damages |= {"the period is 0": update("period_ms", "0"), "the period is negative": update("period_ms", "-1")}
    records = {"no JSON": "{", "empty": "", "a list": "[]", "a number": "17", "not UTF-8": b"\xff\xfe", "null": "null"}

    def damage_record(ns: str, name: str, value: Any) -> None:
        expression = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        run(f"UPDATE records SET value = {expression} WHERE key = ?", value, f"{ns}/{name}")

    def slot(column: str, expression: str) -> Callable[[str, str], None]:
        return lambda ns, place: run(f"UPDATE slots SET {column} = {expression} WHERE key = ?", f"{ns}/{place}")

    slots = {
        f"{column} is {what}": slot(column, expression)
        for column in ("held_milli", "expires_at_ms")
        for what, expression in broken.items()
    } | {"slots are negative": slot("held_milli", "-1000")}
    return Bench(f"sqlite:///{path}", damages, damage_record, records, slots)


def redis_bench(server: RedisServer) -> Bench:
    def key(ns: str, place: str) -> str:
        return f"headgate:{{{ns}}}:{place}"

    def raw(value: bytes) -> Callable[[str, str], None]:
        def damage(ns: str, place: str) -> None:
            with server.client() as client:
                client.set(key(ns, place), value)

        return damage

    def changed(change: str) -> Callable[[str, str], None]:
        """In Lua: `v` has the `n` values of the row."""
        script = f"""local v, n = {{ cmsgpack.unpack(redis.call('GET', KEYS[1])) }}, 12
            {change}
            redis.call('SET', KEYS[1], cmsgpack.pack(unpack(v, 1, n)))"""

        def damage(ns: str, place: str) -> None:
            with server.client() as client:
                client.eval(script, 1, key(ns, place))

        return damage

    def other_type(ns: str, place: str) -> None:
        with server.client() as client:
            client.delete(key(ns, place))
            client.rpush(key(ns, place), "x")

    names = ("format", "name", "capacity", "refill", "period", "tokens", "settled_at", "remainder", "revision",
        "blocked_until", "owed", "used")  # fmt: skip
    broken = {"text": "'NaN'", "nil": "nil", "a list": "{ 1 }", "true": "true", "a fraction": "0.5", "NaN": "0 / 0",
        "infinite": "1 / 0", "a huge number": "2 ^ 62", "negative": "-(2 ^ 60)"}  # fmt: skip
    damages = {
        f"{name} is {what}": changed(f"v[{at}] = {value}")
        for at, name in enumerate(names, 1)
        for what, value in broken.items()
        if (name, what) != ("name", "text")
    }
    damages |= {
        "garbage": raw(b"\xc1garbage"), "empty": raw(b""), "JSON": raw(b'{"a": 1}'), "not UTF-8": raw(b"\xff\xfe\xfd"),
        "another type": other_type, "the period is 0": changed("v[5] = 0"), "the format is 99": changed("v[1] = 99"),
        "truncated": changed("n = 9"), "one number more": changed("n = 13; v[13] = 7"),
    }  # fmt: skip
    records = {"no version": b"{}", "empty": b"", "no JSON": b"1 0 {", "a list": b"1 0 []", "not UTF-8": b"1 0 \xff",
        "a version that is text": b"x 0 {}"}  # fmt: skip

    def damage_record(ns: str, name: str, value: Any) -> None:
        with server.client() as client:
            assert client.hexists(f"headgate:{{{ns}}}:records", f"{ns}/{name}")
            client.hset(f"headgate:{{{ns}}}:records", f"{ns}/{name}", value)

    def slot(command: str, *arguments: Any, suffix: str = "") -> Callable[[str, str], None]:
        def damage(ns: str, place: str) -> None:
            with server.client() as client:
                beside = f"{key(ns, place)}#parallel{suffix}"
                client.delete(beside)
                client.execute_command(command, beside, *arguments)

        return damage

    slots = {
        "holders are text": slot("SET", "x"), "holders are a hash": slot("HSET", "a", "b"),
        "amounts are text": slot("SET", "x", suffix="#amounts"),
        "amounts do not add up": slot("HSET", "\0", "many", suffix="#amounts"),
    }  # fmt: skip
    return Bench(server.url, damages, damage_record, records, slots)


def postgres_bench(server: PostgresServer) -> Bench:
    def run(statement: str, *values: Any) -> None:
        with server.connect() as connection:
            assert connection.execute(statement, values).rowcount

    def update(column: str, value: int) -> Callable[[str, str], None]:
        return lambda ns, place: run(
            f"UPDATE headgate.buckets SET {column} = %s WHERE key = %s", value, f"{ns}/{place}"
        )

    damages = {
        f"{column} is {value}": update(column, value) for column, all_of in _POSTGRES_VALUES.items() for value in all_of
    }
    records = {"no JSON": "{", "empty": "", "a list": "[]", "a number": "17", "null": "null"}

    def damage_record(ns: str, name: str, value: Any) -> None:
        run("UPDATE headgate.records SET value = %s WHERE key = %s", value, f"{ns}/{name}")

    def slot(column: str, value: int) -> Callable[[str, str], None]:
        def damage(ns: str, place: str) -> None:
            run(f"UPDATE headgate.slots SET {column} = %s WHERE key = %s", value, f"{ns}/{place}")
            run("UPDATE headgate.buckets SET remainder = 1 WHERE key = %s", f"{ns}/{place}")  # they are counted anew

        return damage

    values = {"held_milli": (0, -1000, 2**63 - 1), "expires_at_ms": (-1, 2**62)}
    slots = {f"{column} is {value}": slot(column, value) for column, all_of in values.items() for value in all_of}
    return Bench(server.url, damages, damage_record, records, slots)


def dynamodb_bench(url: str, client: Any, table: str) -> Bench:
    def items(wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        return [item for item in client.scan(TableName=table, ConsistentRead=True)["Items"] if wanted(item)]

    def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[str, str], None]:
        def damage(ns: str, place: str) -> None:
            (item,) = items(lambda item: f"BUCKET#{place}#0" in item["PK"]["S"] and _ns_of(ns) in item["PK"]["S"])
            change(item)
            client.put_item(TableName=table, Item=item)

        return damage

    def _ns_of(ns: str) -> str:
        (item,) = items(lambda item: item.get("namespace") == {"S": ns})
        return str(item["namespace_id"]["S"])

    def put(attribute: str, value: Any) -> Callable[[str, str], None]:
        return changed(lambda item: item.__setitem__(attribute, value))

    broken: dict[str, Any] = {"text": {"S": "NaN"}, "a list": {"L": []}, "true": {"BOOL": True}, "null": {"NULL": True},
        "a map": {"M": {}}}  # fmt: skip
    damages = {
        f"{attribute} is {what}": put(attribute, value)
        for attribute in ("b_rpm_lm", "b_rpm_vt", "b_rpm_at", "b_rpm_tc", "shard_count", "wcu", "ttl")
        for what, value in broken.items()
    }
    damages |= {
        "the limit is empty": put("b_rpm_lm", {"S": ""}), "the period is 0": put("b_rpm_lm", {"S": "10000/10000/0"}),
        "the period is negative": put("b_rpm_lm", {"S": "10000/10000/-1"}),
        "the limit is short": put("b_rpm_lm", {"S": "1/2"}),
        "tokens are a huge number": put("b_rpm_vt", {"N": "9E+60"}),
        "tokens are missing": changed(lambda item: item.pop("b_rpm_vt")),
        "the limit is missing": changed(lambda item: item.pop("b_rpm_lm")),
        "settled_at is a huge number": put("b_rpm_at", {"N": "9E+30"}),
    }  # fmt: skip
    records = {"text": {"S": "{"}, "a list": {"L": []}, "true": {"BOOL": True}, "missing": None}

    def damage_record(ns: str, name: str, value: Any) -> None:
        kind, _, rest = name.partition("#")
        ns_id = _ns_of(ns)
        attribute = {"entity": "metadata", "limits": "limit_names", "lease": "value"}[kind]
        wanted = rest.rpartition("#")[2] if kind == "lease" else rest.split("#")[1] if kind == "limits" else rest
        (item,) = items(lambda item: ns_id in item["PK"]["S"] and attribute in item and (
            wanted in item["PK"]["S"] or wanted in item["SK"]["S"]))  # fmt: skip
        if value is None:
            del item[attribute]
        else:
            item[attribute] = value
        client.put_item(TableName=table, Item=item)

    def slot(attribute: str, value: Any) -> Callable[[str, str], None]:
        def damage(ns: str, place: str) -> None:
            ns_id = _ns_of(ns)
            (item,) = items(
                lambda item: (
                    f"BUCKET#{place}#0" in item["PK"]["S"] and ns_id in item["PK"]["S"] and "s_parallel_h" in item
                )
            )
            client.put_item(TableName=table, Item={**item, attribute: value})

        return damage

    slots = {
        f"{attribute} is {what}": slot(attribute, value)
        for attribute in ("s_parallel_lm", "s_parallel_h", "s_parallel_n", "ver")
        for what, value in broken.items()
        if (attribute, what) != ("s_parallel_h", "a map")
    } | {"a holder is text": slot("s_parallel_h", {"M": {"lease": {"S": "soon"}}})}
    return Bench(url, damages, damage_record, records, slots)


def new_name() -> str:
    return f"n{uuid.uuid4().hex[:12]}"

"""Who calls. The order, what can be replaced, and what gets into the store."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

import pytest
from http_helpers import call, gate
from hypothesis import given
from hypothesis import strategies as st

from headgate import ValidationError
from headgate.core.names import check_entity_id
from headgate.http.call import BadPath, clean
from headgate.http.identity import Identity, bearer, header
from headgate.http.rules import Rule

KEY = "sk-live-hunter2"
WHOLE = {
    "user": lambda call: call.header("x-user"),
    "organisation": lambda call: call.header("x-org"),
    "api_key": header("X-API-Key"),
    "address": lambda call: call.header("x-address"),
}


def hashed(value: str, secret: bytes = b"") -> str:
    return blake2b(value.encode(), digest_size=16, key=secret).hexdigest()


def test_the_first_that_is_known() -> None:
    identity = Identity(**WHOLE)
    sent = {"x_user": "ann", "x_org": "acme", "x_api_key": KEY, "x_address": "there"}
    expected = ["user:ann", "organisation:acme", f"api_key:hash:{hashed(KEY)}", "address:there", "anonymous"]
    for name, caller in zip([*sent, None], expected):
        assert identity.caller(call(**sent)) == caller
        sent.pop(name or "", None)


def test_default_identity_trusts_nothing_a_caller_can_make_up() -> None:
    identity = Identity()
    sent = {"x_api_key": KEY, "authorization": f"Bearer {KEY}", "x_user": "ann", "x_forwarded_for": "203.0.113.7"}
    assert identity.caller(call(user="ann", **sent)) == "user:ann"
    assert identity.caller(call(**sent)) == "address:192.0.2.1", "nothing that anybody can make up"
    assert identity.caller(call(peer="", **sent)) == "anonymous"


@pytest.mark.parametrize(
    ("per", "expected"),
    [
        ("caller", "user:ann"),
        ("organisation", "organisation:acme"),
        ("address", "user:ann"),
        ("everyone", "everyone"),
    ],
)
def test_per_decides_whose_bucket_is_charged(per: Any, expected: str) -> None:
    identity = Identity(**(WHOLE | {"address": lambda _: None}))
    assert identity.of(per, call(x_user="ann", x_org="acme")) == expected


@given(st.text(min_size=1, max_size=300))
def test_any_name_can_be_an_entity(name: str) -> None:
    found = Identity(user=lambda _: name).caller(call())
    assert check_entity_id(found) == found


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_are_two_entities(one: str, other: str) -> None:
    first, second = (Identity(user=lambda _, name=name: name).caller(call()) for name in (one, other))
    assert (first == second) == (one == other)


def test_nobody_takes_the_place_of_a_hash() -> None:
    odd = Identity(user=lambda _: "a b").caller(call())
    assert Identity(user=lambda _: odd.removeprefix("user:")).caller(call()) != odd


@given(st.text(min_size=1).filter(lambda key: len(key) > 3), st.binary(max_size=64))
def test_a_key_is_never_there_in_clear(key: str, secret: bytes) -> None:
    found = Identity(api_key=lambda _: key, secret=secret).caller(call())
    assert re.fullmatch(r"api_key:hash:[0-9a-f]{32}", found)


def test_a_key_is_not_in_the_store_and_not_in_an_answer() -> None:
    with gate(Rule("all", limits="1/minute"), identity=Identity(api_key=header("x-api-key"))) as opened:
        answers = [opened.check(x_api_key=KEY) for _ in range(2)]
        rows = opened.limiter.get_resource_capacity("all", "minute").entities
        assert [row.entity_id for row in rows] == [f"api_key:hash:{hashed(KEY)}"]
        assert KEY not in repr(answers) + repr(rows) + repr(opened.events)
        assert "hash:" not in str(answers[1].body), "nor who it is"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        (None, None),
    ],
)
def test_bearer_is_read_from_a_well_formed_header_only(sent: str | None, expected: str | None) -> None:
    assert bearer(call(**({} if sent is None else {"authorization": sent}))) == expected


def test_bad_settings_of_identity_are_refused_without_showing_secrets() -> None:
    with pytest.raises(ValidationError, match="user must be a function"):
        Identity(user="x-user")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="64 bytes") as error:
        Identity(secret=b"hunter2" * 10)
    assert "hunter2" not in str(error.value)

    async def ask() -> str:
        return "ann"

    with pytest.raises(ValidationError, match="coroutine"):
        Identity(user=lambda _: ask()).caller(call())


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        ("/a", "/a"),
        ("/a/", "/a"),
        ("//a", "/a"),
        ("/a//b///", "/a/b"),
        ("/a;x=1/b;y", "/a/b"),
        ("/;x", "/"),
        ("", "/"),
        ("*", "/*"),
        ("/a.b/...", "/a.b/..."),
        ("/A", "/A"),
    ],
)
def test_paths_are_cleaned_as_servers_read_them(sent: str, path: str) -> None:
    assert clean(sent) == path


@pytest.mark.parametrize("sent", ["/a/../b", "/./a", "/..", "/..;/a", "/a/.;x/b", "/a/.."])
def test_what_servers_read_in_different_ways(sent: str) -> None:
    with pytest.raises(BadPath):
        clean(sent)


@given(st.lists(st.sampled_from(["a", "b", "", ".", "..", ";x", "a;y", "..;"]), max_size=6).map("/".join))
def test_a_clean_path_stays_clean(path: str) -> None:
    try:
        cleaned = clean(path)
    except BadPath:
        assert {".", ".."} & {segment.partition(";")[0] for segment in path.split("/")}
    else:
        assert clean(cleaned) == cleaned
        assert cleaned.startswith("/")
        assert "//" not in cleaned

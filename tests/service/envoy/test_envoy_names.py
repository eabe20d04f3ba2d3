"""The buckets of two descriptors are the same exactly if the descriptors are."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.names import check_entity_id, check_resource
from headgate.service.envoy.names import entity_of, resource_of

ODD = st.text("@:.-_ab1/ ", max_size=6).map(str.encode)
VALUES = st.one_of(
    ODD, st.binary(max_size=300), st.sampled_from([b"10.0.0.1", b"bob@example.com", b"2001:db8::1", b""])
)
KEYS = st.sampled_from(["a", "remote_address", "x/y", "a@@b", ":path"])


@st.composite
def two_lists(draw: st.DrawFn) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """Entries with the same keys. The values of the second may be made from the names of the first."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=3))
    first = [(key, draw(VALUES)) for key in keys]
    names = entity_of(first).encode()
    parts = [names, *names.split(b"@@"), *(part.partition(b":")[2] for part in names.split(b"@@"))]
    second = [(key, draw(st.one_of(VALUES, st.sampled_from([*parts, *(value for _, value in first)])))) for key in keys]
    return first, second


ODD_ONE = [("a", b"an odd value")]
AS_ITS_NAME = [("a", entity_of(ODD_ONE).partition(":")[2].encode())]


@given(two_lists(), st.sets(KEYS))
@example((ODD_ONE, AS_ITS_NAME), set())
@example(([("a", b"1"), ("b", b"2@@b:3")], [("a", b"1@@b:2"), ("b", b"3")]), set())
@example(([("a", b"1@"), ("b", b"2")], [("a", b"1"), ("b", b"@2")]), set())
def test_no_two_lists_of_values_share_a_bucket(
    lists: tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]], secret: set[str]
) -> None:
    first, second = lists
    assert (entity_of(first, secret) == entity_of(second, secret)) == (first == second)
    assert check_entity_id(entity_of(first, secret))


@given(st.lists(st.tuples(KEYS, VALUES), max_size=3), st.lists(st.tuples(KEYS, VALUES), max_size=3))
def test_what_is_fixed_is_shared_with_nobody(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> None:
    assert (entity_of(one) == "everyone") == (not one)
    assert entity_of(one) != entity_of(other) or [value for _, value in one] == [value for _, value in other]


NAMES = st.text(min_size=1, max_size=300)


@given(st.lists(NAMES, min_size=2, max_size=4), st.lists(NAMES, min_size=2, max_size=4))
def test_no_two_domains_or_lists_of_keys_share_a_resource(one: list[str], other: list[str]) -> None:
    resource = resource_of(one[0], one[1:])
    assert (resource == resource_of(other[0], other[1:])) == (one == other)
    assert check_resource(resource)
    assert "/" in resource  # which no id of a rule has


def test_they_are_readable_where_they_can_be() -> None:
    assert entity_of([("remote_address", b"10.0.0.1")]) == "remote_address:10.0.0.1"
    assert entity_of([("remote_address", b"2001:db8::1")]) == "remote_address:2001:db8::1"
    assert entity_of([("user", b"bob@example.com"), ("plan", b"free")]) == "user:bob@example.com@@plan:free"
    assert entity_of([]) == "everyone"
    assert resource_of("edge", ["path", "remote_address"]) == "edge/path/remote_address"


@given(st.text(min_size=4).map(str.encode))
def test_a_secret_is_not_in_it(value: bytes) -> None:
    named = entity_of([("api_key", value), ("plan", b"free")], {"api_key"})
    assert named.startswith("api_key:blake2b-")
    assert named.endswith("@@plan:free")
    assert len(named) == len("api_key:blake2b-@@plan:free") + 40

"""Whose address it is: nobody can say so for themselves."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address

import pytest
from http_helpers import call
from hypothesis import given
from hypothesis import strategies as st

from headgate import ValidationError
from headgate.http.addresses import Addresses, parse

PROXIES = ["10.0.0.0/8", "fd00::/8"]
addresses = st.ip_addresses().map(str)


@given(peer=addresses, claimed=st.lists(addresses | st.text("0123456789abcdef.:, ", max_size=30), max_size=4))
def test_nobody_is_believed_without_proxies(peer: str, claimed: list[str]) -> None:
    spoofed = ", ".join(claimed)
    honest, liar = call(peer=peer), call(peer=peer, x_forwarded_for=spoofed, forwarded=f"for={spoofed}")
    assert Addresses().of(honest) == Addresses().of(liar) is not None


@given(client=addresses, claimed=st.lists(addresses | st.text("0123456789abcdef.:, ", max_size=30), max_size=4))
def test_whatever_a_client_claims_its_proxy_knows_better(client: str, claimed: list[str]) -> None:
    """The proxy adds whom it sees. What the client itself sent stands before that, and means nothing."""
    told = Addresses(PROXIES)
    sent = ", ".join([*claimed, client, "10.1.1.1"])
    if ip_address(client) in IPv6Network("fd00::/8") or client.startswith("10."):
        return
    assert told.of(call(peer="10.2.2.2", x_forwarded_for=sent)) == Addresses().of(call(peer=client))


@pytest.mark.parametrize(
    ("peer", "header", "expected"),
    [
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "203.0.113.7, 10.0.0.2, 10.0.0.3", "203.0.113.7"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "garbage", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7, garbage, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::"),
        ("::ffff:10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("203.0.113.9", "203.0.113.7", "203.0.113.9"),
        ("fd00::1", "2001:db8:1:2:3::4", "2001:db8:1:2::"),
        ("fe80::1%eth0", "203.0.113.7", "fe80::"),
        ("not an address", "203.0.113.7", None),
        ("", "203.0.113.7", None),
    ],
)
def test_x_forwarded_for_counts_only_through_trusted_proxies(peer: str, header: str, expected: str | None) -> None:
    assert Addresses(PROXIES).of(call(peer=peer, x_forwarded_for=header)) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("for=203.0.113.7", "203.0.113.7"),
        ('for="[2001:db8:cafe::17]:4711";proto=https', "2001:db8:cafe::"),
        ("for=198.51.100.17, For=203.0.113.7;by=10.0.0.9", "203.0.113.7"),
        ("proto=https", "10.0.0.1"),
        ("for=_hidden", "10.0.0.1"),
    ],
)
def test_forwarded_header_counts_only_through_trusted_proxies(header: str, expected: str) -> None:
    assert Addresses(PROXIES, forwarded="Forwarded").of(call(peer="10.0.0.1", forwarded=header)) == expected


def test_a_proxy_on_a_socket_file() -> None:
    assert Addresses(["unix"]).of(call(peer="", x_forwarded_for="203.0.113.7")) == "203.0.113.7"
    assert Addresses(["unix"]).of(call(peer="203.0.113.9", x_forwarded_for="203.0.113.7")) == "203.0.113.9"


@given(st.ip_addresses(v=6), st.integers(1, 128))
def test_ipv6_is_one_client_by_its_first_bits(address: IPv6Address, prefix: int) -> None:
    shown = Addresses(ipv6_prefix=prefix).of(call(peer=str(address)))
    mapped = address.ipv4_mapped
    network = IPv6Network((address, prefix), strict=False)
    assert shown == (str(mapped) if mapped else str(network.network_address))


@given(st.ip_addresses())
def test_an_address_is_read_as_it_is_written(address: object) -> None:
    expected = getattr(address, "ipv4_mapped", None) or address
    assert parse(str(address)) == expected
    with_port = f"[{address}]:80" if isinstance(address, IPv6Address) else f"{address}:80"
    assert parse(with_port) == expected


@pytest.mark.parametrize("settings", [{"proxies": ["10.0.0.0/33"]}, {"proxies": "10.0.0.1"}, {"ipv6_prefix": 0}])
def test_bad_settings_of_addresses_are_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"proxies|ipv6_prefix"):
        Addresses(**settings)  # type: ignore[arg-type]

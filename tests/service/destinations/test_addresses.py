"""Which addresses may be called."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values.addresses import allowed, forbidden, needs_address, odd_spelling

PUBLIC = ["8.8.8.8", "1.1.1.1", "52.94.0.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "192.0.1.1"]
PUBLIC_6 = ["2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2400::1"]

FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "0.0.0.0": "unspecified",
    "0.1.2.3": "network",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "100.64.0.1": "CGNAT",
    "100.127.255.255": "CGNAT",
    "169.254.1.1": "link-local",
    "169.254.169.254": "metadata",
    "169.254.170.2": "credentials",
    "100.100.100.200": "metadata",
    "192.0.0.192": "metadata",
    "168.63.129.16": "platform",
    "192.0.0.8": "protocols",
    "192.0.2.1": "documentation",
    "198.51.100.1": "documentation",
    "203.0.113.1": "documentation",
    "192.88.99.1": "reserved",
    "198.18.0.1": "benchmarks",
    "198.19.255.255": "benchmarks",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "broadcast",
    "::": "unspecified",
    "::1": "loopback",
    "::1%lo": "loopback",
    "0:0:0:0:0:0:0:1": "loopback",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "fec0::1": "site-local",
    "fc00::1": "private",
    "fd12:3456::1": "private",
    "fd00:ec2::254": "metadata",
    "fd20:ce::254": "metadata",
    "ff02::1": "multicast",
    "100::1": "discarded",
    "2001:db8::1": "documentation",
    "3fff::1": "documentation",
    "2001:2::1": "benchmarks",
    "2001:10::1": "protocols",
    "64:ff9b:1::8.8.8.8": "NAT64 local",
    "5f00::1": "routed",
    "4000::1": "routed",
    # IPv4 inside
    "::ffff:127.0.0.1": "loopback 127.0.0.1 IPv4-mapped",
    "::ffff:7f00:1": "loopback",
    "::ffff:10.0.0.1%eth0": "private",
    "::ffff:169.254.169.254": "metadata",
    "::127.0.0.1": "IPv4-compatible",
    "::8.8.8.8": "IPv4-compatible",
    "::ffff:0:127.0.0.1": "loopback 127.0.0.1 IPv4-translated",
    "64:ff9b::127.0.0.1": "loopback 127.0.0.1 NAT64",
    "64:ff9b::a9fe:a9fe": "metadata",
    "2002:7f00:1::": "loopback 127.0.0.1 6to4",
    "2002:a00:1::1": "private 10.0.0.1 6to4",
    "2001:0:7f00:1::": "loopback 127.0.0.1 Teredo server",
    "2001:0:808:808:0:0:80ff:fffe": "loopback 127.0.0.1 Teredo client",
    "2001:0:808:808::f7f7:f7f7": "Teredo",  # both ends are public, and still nobody's API is behind it
    "2606:4700::5efe:10.0.0.1": "private 10.0.0.1 ISATAP",
    "2606:4700::200:5efe:127.0.0.1": "loopback 127.0.0.1 ISATAP",
    # no addresses
    "": "IP",
    "localhost": "IP",
    "2130706433": "IP",
    "0177.0.0.1": "IP",
    "127.1": "IP",
    "127.0.0.1.": "IP",
    "１２７.0.0.1": "IP",
    "8.8.8.8\0": "IP",
    " 8.8.8.8": "IP",
    "[::1]": "IP",
}


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_that_is_not_public_is_named(address: str) -> None:
    reason = forbidden(address) or ""
    assert all(word in reason for word in FORBIDDEN[address].split()), reason


@pytest.mark.parametrize("address", [*PUBLIC, *PUBLIC_6])
def test_a_public_address_may_be_called(address: str) -> None:
    assert forbidden(address) is None


@pytest.mark.parametrize("address", ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2606::5efe:8.8.8.8"])
def test_a_public_address_inside_another_may_be_called(address: str) -> None:
    assert forbidden(address) is None


@given(st.ip_addresses(v=4))
def test_every_ipv4_address_is_judged_alike_inside_ipv6(address: IPv4Address) -> None:
    inner = forbidden(str(address))
    carriers = [0xFFFF << 32, 0x64FF9B << 96, 0x2606_4700 << 96 | 0x5EFE << 32]
    for carrier in (IPv6Address(prefix | int(address)) for prefix in carriers):
        assert (forbidden(str(carrier)) is None) == (inner is None)
    assert (forbidden(str(IPv6Address(0x2002 << 112 | int(address) << 80))) is None) == (inner is None)


@given(st.ip_addresses(v=6))
def test_nothing_outside_of_global_unicast_may_be_called_but_what_leads_to_public_ipv4(address: IPv6Address) -> None:
    if forbidden(str(address)) is None:
        roads = ["2000::/3", "::ffff:0:0/96", "64:ff9b::/96"]
        assert any(address in IPv6Network(road) for road in roads)


@given(st.ip_addresses())
def test_the_standard_library_finds_nothing_private_that_we_let_through(address: IPv4Address | IPv6Address) -> None:
    roads = ("64:ff9b::/96", "2002::/16")  # to IPv4, which is judged inside them; Python 3.13 calls the second private
    if forbidden(str(address)) is None and not any(address in IPv6Network(road) for road in roads):
        assert not address.is_private or getattr(address, "ipv4_mapped", None)
        kinds = [address.is_loopback, address.is_link_local, address.is_multicast, address.is_unspecified]
        assert not any(kinds)


@pytest.mark.parametrize(
    ("host", "address", "allow"),
    [
        ("crm.internal", "10.0.0.1", ["crm.internal"]),
        ("CRM.internal", "10.0.0.1", ["other", "crm.INTERNAL."]),
        ("crm.internal.", "10.0.0.1", ["crm.internal"]),
        ("crm", "10.0.0.1", ["10.0.0.1"]),
        ("crm", "10.0.0.1", ["10.0.0.0/8"]),
        ("crm", "10.0.0.1", ["10.0.0.7/8"]),
        ("crm", "::ffff:10.0.0.1", ["10.0.0.0/8"]),
        ("crm", "fd00::1", ["fd00::/8"]),
        ("crm", "fe80::1%eth0", ["fe80::/10"]),
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
    ],
)
def test_addresses_are_allowed_by_name_address_or_range(host: str, address: str, allow: list[str]) -> None:
    assert allowed(host, address, allow)


@pytest.mark.parametrize(
    ("host", "address", "allow"),
    [
        ("crm.internal", "10.0.0.1", []),
        ("crm.internal", "10.0.0.1", ["internal", "*.internal", "xcrm.internal", "crm.internal.evil"]),
        ("crm", "10.0.0.1", ["10.0.0.2", "11.0.0.0/8", "::/0", "10.0.0.0/33", "nonsense/8", ""]),
        ("crm", "fd00::1", ["0.0.0.0/0"]),
        ("crm", "no address", ["0.0.0.0/0", "::/0"]),
    ],
)
def test_other_addresses_are_not_allowed(host: str, address: str, allow: list[str]) -> None:
    assert not allowed(host, address, allow)


@pytest.mark.parametrize(
    "host", ["2130706433", "0177.0.0.1", "0x7f.1", "0x7f000001", "127.1", "127.0.1", "017700000001", "127.0.0.1."]
)
def test_an_address_in_disguise_is_recognised(host: str) -> None:
    assert odd_spelling(host) == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "8.8.8.8", "example.com", "::1", "", "127.0.0.1.example.com", "a\0b"])
def test_usual_spellings_and_names_are_no_disguise(host: str) -> None:
    assert odd_spelling(host) is None


CLOUD = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.1.1",
    "100.100.100.200",
    "168.63.129.16",
    "fe80::1",
    "fd00:ec2::254",
]


@pytest.mark.parametrize("address", [*CLOUD, "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fe80::1%eth0"])
def test_a_name_does_not_allow_link_local_and_metadata_addresses(address: str) -> None:
    assert not allowed("crm.internal", address, ["crm.internal"])
    assert needs_address(address)


@pytest.mark.parametrize("address", CLOUD)
def test_their_own_address_or_a_range_does(address: str) -> None:
    assert allowed("crm.internal", address, [address])
    assert allowed(address, address, [address])
    assert allowed("crm.internal", address, ["crm.internal", "::/0" if ":" in address else "0.0.0.0/0"])


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1", "192.168.1.1", "fd12::1", "::1"])
def test_a_name_allows_private_addresses(address: str) -> None:
    assert allowed("crm.internal", address, ["CRM.internal."])

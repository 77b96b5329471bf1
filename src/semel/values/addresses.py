"""Which IP addresses may be called.

A destination's name is resolved by DNS, and an answer of DNS must not lead into the machine or the network that Semel
runs in unless a person allowed it. So only what is routed in public may be called; everything else has a name here, so
that the refusal can say why. An IPv4 address inside an IPv6 one counts as itself: that is where the packets go.

The tables are written out (from IANA's registries of special-purpose addresses) because `ipaddress.is_global` has
changed its mind between patch releases of Python.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_V4 = tuple(
    (IPv4Network(network), why)
    for network, why in (  # the first that holds an address says why
        ("169.254.169.254/32", "the metadata service of a cloud"),
        ("169.254.170.2/32", "the credentials service of a cloud"),
        ("100.100.100.200/32", "the metadata service of a cloud"),
        ("168.63.129.16/32", "the platform service of a cloud"),  # Azure: a public number, reachable from inside only
        ("192.0.0.192/32", "the metadata service of a cloud"),
        ("0.0.0.0/32", "unspecified: this machine"),
        ("0.0.0.0/8", "of this network only"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private to a provider (CGNAT)"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "reserved (6to4 relays)"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_V6 = tuple(
    (IPv6Network(network), why)
    for network, why in (
        ("fd00:ec2::254/128", "the metadata service of a cloud"),
        ("fd00:ec2::23/128", "the credentials service of a cloud"),
        ("fd20:ce::254/128", "the metadata service of a cloud"),
        ("fd00:42::42/128", "the metadata service of a cloud"),
        ("::/128", "unspecified: this machine"),
        ("::1/128", "loopback"),
        ("::/96", "IPv4-compatible, which nobody routes"),
        ("64:ff9b:1::/48", "the NAT64 of a local network"),
        ("100::/64", "discarded"),
        ("2001:2::/48", "for benchmarks"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private (site-local)"),
        ("ff00::/8", "multicast"),
    )
)

_NEEDS_ADDRESS = tuple(
    ip_network(network)
    for network in (
        *("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fe80::/10"),
        *("fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128", "fd00:42::42/128"),
    )
)

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # nothing else of IPv6 is routed in public

_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_WORD = (  # prefixes that are followed by an IPv4 address
    (_MAPPED, "IPv4-mapped"),
    (_NAT64, "NAT64"),
    (IPv6Network("::ffff:0:0:0/96"), "IPv4-translated"),
)
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # the third word of the address, in any network
_WORD = 0xFFFF_FFFF


def forbidden(address: str) -> str | None:
    """Why this address may not be called; None when it may. What is no plain IP address may not."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "not an IP address"
    if isinstance(parsed, IPv4Address):
        return _listed(parsed)
    return _forbidden_6(IPv6Address(int(parsed)))  # without its zone


def allowed(host: str, address: str, allow: Sequence[str]) -> bool:
    """Whether a person allowed this address of this host, as a host name, an IP address or a CIDR range.

    A name does not allow link-local addresses and services of a cloud: whoever answers for the name could lead there,
    and these hand out credentials. They have to be named by address."""
    by_name = any(_plain(entry) == _plain(host) for entry in allow)
    return (by_name and not needs_address(address)) or any(_holds(entry, address) for entry in allow)


def needs_address(address: str) -> bool:
    """Whether only its own address, or a range, allows it: link-local, or a service of a cloud for its machines."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return True
    carried = [inner for inner, _ in _carried(parsed)] if isinstance(parsed, IPv6Address) else []
    return any(one in network for one in (parsed, *carried) for network in _NEEDS_ADDRESS)


def odd_spelling(host: str) -> str | None:
    """The IPv4 address that C libraries read from a host such as 2130706433, 0177.0.0.1, 0x7f.1 or 127.1; None for an
    address in its usual spelling, and for names."""
    try:
        read = socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):  # ValueError: it contains NUL
        return None
    return read if read != host else None


def _forbidden_6(address: IPv6Address) -> str | None:
    for inner, road in _carried(address):
        if (why := _listed(inner)) is not None:
            return f"{why} ({inner} as {road})"
    if address in _MAPPED or address in _NAT64:
        return None  # the IPv4 address is what is called
    return _listed(address) or (None if address in _GLOBAL_UNICAST else "not routed in public")


def _carried(address: IPv6Address) -> Iterator[tuple[IPv4Address, str]]:
    """The IPv4 addresses that an IPv6 address leads to."""
    number = int(address)
    yield from ((IPv4Address(number & _WORD), road) for network, road in _LOW_WORD if address in network)
    if address in _6TO4:
        yield IPv4Address(number >> 80 & _WORD), "6to4"
    if address in _TEREDO:
        yield IPv4Address(number >> 64 & _WORD), "Teredo server"
        yield IPv4Address(~number & _WORD), "Teredo client"
    if number >> 32 & _WORD in _ISATAP:
        yield IPv4Address(number & _WORD), "ISATAP"


def _listed(address: IPv4Address | IPv6Address) -> str | None:
    table = _V4 if isinstance(address, IPv4Address) else _V6
    return next((why for network, why in table if address in network), None)


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _holds(entry: str, address: str) -> bool:
    try:
        network = ip_network(entry, strict=False)
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return parsed in network or (inner is not None and inner in network)

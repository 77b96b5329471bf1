"""Validates URLs and hosts in settings, and shortens URLs for display."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from semel.values.addresses import forbidden, odd_spelling

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9._-]{1,253}")


def url_problem(url: str) -> str:
    """The reason why a URL cannot be a destination, or an empty text. It does not repeat the URL, which may contain a
    password."""
    if not url.isprintable() or " " in url or "\\" in url:
        return "a URL must not contain a space, a backslash or a control character"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "not a valid URL: check its brackets and its port"
    if parts.scheme not in ("http", "https"):
        return "expected a URL that starts with https:// or http://"
    if _HOST.fullmatch(host) is None:
        return "its host must be a name or an address: letters, digits, dots and dashes (other scripts as xn--…)"
    if (address := odd_spelling(host)) is not None:
        return f"its host {host} is another spelling of {address}: write {address}"
    if port == 0:
        return "its port must not be 0"
    if parts.username is not None or parts.password is not None:
        return 'it must not contain a password, because logs show URLs: send it in a header, "env:NAME"'
    if parts.fragment:
        return "the part after # is never sent: remove it"
    return ""


def shown(url: str) -> str:
    """Scheme and host of a URL, for display. Paths and queries may contain keys."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(not a URL)"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def internal_kind(host: str) -> str:
    """The kind of an address that needs permission, such as "private". Empty for public addresses and for names."""
    if is_loopback(host):
        return "loopback"
    try:
        ip_address(host)
    except ValueError:
        return ""
    return forbidden(host) or ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. Any name but localhost may resolve to anything."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def resolves(host: str) -> bool:
    """Whether the host is an address, or a name that has one. May query DNS."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):  # UnicodeError: a label of the name is empty or too long
        return False


def is_host_or_range(text: str) -> bool:
    """Whether the text is a host name, an address, or a range such as 10.0.0.0/8."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True

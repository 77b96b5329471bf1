"""URLs and hosts in settings: whether they can be used, and how they are shown."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from semel.values.addresses import forbidden, odd_spelling

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9._-]{1,253}")


def what_is_wrong(url: str) -> str:
    """Why this cannot be a destination; empty when it can. The URL is not repeated: it may hold a password."""
    if not url.isprintable() or " " in url or "\\" in url:
        return "a URL has no spaces, no backslashes and no control characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "this is no URL: look at its brackets and its port"
    if parts.scheme not in ("http", "https"):
        return "expected a URL that begins with https:// or http://"
    if _HOST.fullmatch(host) is None:
        return "its host is no name or address: letters, digits, dots and dashes (other scripts as xn--…)"
    if (meant := odd_spelling(host)) is not None:
        return f"its host {host} is {meant} in disguise: write that"
    if port == 0:
        return "it has the port 0"
    if parts.username is not None or parts.password is not None:
        return 'a URL is shown in logs, so it holds no password: send it as a header, "env:NAME"'
    if parts.fragment:
        return "the part after # is never sent: leave it out"
    return ""


def shown(url: str) -> str:
    """Scheme and host: enough to know which one is meant. Paths and queries may hold keys."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(no URL)"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}"


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def inside(host: str) -> str:
    """What kind of address this is, where it is one that has to be allowed; empty for public ones and for names."""
    if is_loopback(host):
        return "loopback"
    try:
        ip_address(host)
    except ValueError:
        return ""
    return forbidden(host) or ""


def is_loopback(host: str) -> bool:
    """True when only this machine can reach the host. A name other than localhost may lead anywhere."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def leads_somewhere(host: str) -> bool:
    """True when a server could listen here: an address, or a name that has one. It may have to ask DNS."""
    try:
        return bool(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):  # UnicodeError: a part of the name is empty, or too long
        return False


def is_host_or_range(text: str) -> bool:
    """A host's name, an address, or a range of addresses such as 10.0.0.0/8."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return _NAME.fullmatch(text) is not None
    return True

"""Where a URL leads, and whether it is one that can be called without surprises."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct

from semel.values.addresses import odd_spelling
from semel.values.errors import ConfigError

_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?", re.ASCII)  # a name, or what stood in brackets


class Place(Struct, frozen=True):
    """What there is to connect to."""

    host: str
    port: int
    secure: bool  # https


def place_of(name: str, url: str) -> Place:
    """The place of a destination's URL. Errors do not show the URL: it can hold a token.

    The host is narrow on purpose: what only some readers of URLs take for an address or for a name is refused."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"destination {name!r}: its url {what}")

    if not url.isprintable() or " " in url or "\\" in url:
        raise wrong("contains a space, a backslash or something that does not print")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong("cannot be read: look at its brackets and its port") from None
    if parts.scheme not in ("http", "https"):
        raise wrong("must begin with https:// (or http://)")
    if parts.username is not None or parts.password is not None:
        raise wrong("contains a user name or password: put them into its headers, as a secret")
    if _HOST.fullmatch(host) is None:
        raise wrong("has no host that can be called: letters, digits, dots and dashes (other scripts as xn--…)")
    if (read := odd_spelling(host)) is not None:
        raise wrong(f"has the host {host}, which is {read} in disguise: write that")
    if port == 0:
        raise wrong("has the port 0")
    secure = parts.scheme == "https"
    return Place(host, port or (443 if secure else 80), secure)

"""The headers of a request. Values of configured ones are secrets: nothing here shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from semel.values.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
JSON = "application/json"
_USUAL = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # nothing to unpack, so no bomb
    "User-Agent": "Semel",
}
_OURS = {"idempotency-key", "semel-attempt", "host", "content-length", "transfer-encoding", "connection", "expect"}


class Hidden(Protocol):
    """A text that does not show itself: a secret."""

    def reveal(self) -> str: ...


def checked(name: str, headers: Mapping[str, Hidden]) -> dict[str, Hidden]:
    """The headers of a destination, when all of them can be sent."""
    for header, value in headers.items():
        if _NAME.fullmatch(header) is None:
            raise ConfigError(f"destination {name!r}: {header!a} is no name of a header")
        if header.lower() in _OURS:
            raise ConfigError(f"destination {name!r}: the header {header} is set by Semel")
        if _VALUE.fullmatch(value.reveal()) is None:
            raise ConfigError(f"destination {name!r}: the value of {header} contains a line break or control character")
    return dict(headers)


def headers_for(
    key: str, attempt: int, own: Mapping[str, Hidden], trace: Mapping[str, str], content_type: str = JSON
) -> dict[str, str]:
    """Those of one request: configured ones replace the usual ones in any spelling, and nothing replaces the key."""
    revealed = {name: value.reveal() for name, value in own.items()}
    ours = {"Idempotency-Key": key, "Semel-Attempt": str(attempt)}
    layers = (trace, {"Content-Type": content_type}, _USUAL, revealed, ours)
    return dict({name.lower(): (name, value) for layer in layers for name, value in layer.items()}.values())

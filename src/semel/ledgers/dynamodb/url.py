"""What `dynamodb://table?region=eu-central-1&…` says. Credentials are never part of it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from semel.values.errors import ConfigError

MARGIN_MS = 1_000  # machines that keep time by NTP are within tens of milliseconds of each other
MARGIN_MAX_MS = 600_000
CONCURRENCY = 16  # requests at a time; 2 to 5 ms each make some thousand a second
CONCURRENCY_MAX = 256
OPTIONS = ("region", "endpoint", "concurrency", "margin_ms")

_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class Address(Struct, frozen=True):
    """Where the table is, and how it is asked."""

    table: str
    region: str | None = None  # None: by AWS_REGION or the profile
    endpoint: str | None = None  # None: the service itself
    concurrency: int = CONCURRENCY
    margin_ms: int = MARGIN_MS

    def __str__(self) -> str:
        return f"DynamoDB table {self.table} ({self.endpoint or self.region or 'region of the environment'})"


def parse(url: str) -> Address:
    parts = urlsplit(url)
    shown = url.partition("?")[0]  # whoever wrote a secret into an option must not find it in a log
    if "@" in parts.netloc:
        raise ConfigError(
            "ledger dynamodb://…: a URL with user and password is refused, they would end up in logs; credentials come "
            "by the usual AWS chain: environment, profile, or the role of the machine"
        )
    if parts.scheme != "dynamodb" or parts.path not in ("", "/") or not _TABLE.fullmatch(parts.netloc):
        raise ConfigError(
            f"ledger {shown!r}: expected dynamodb://table?region=eu-central-1, with a table name of 3 to 255 letters, "
            "digits, '_', '-' and '.'"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"ledger {shown!r}: unknown option {name!r}; known are: {', '.join(OPTIONS)}")
    return Address(
        table=parts.netloc,
        region=options.get("region") or None,
        endpoint=_endpoint(shown, options.get("endpoint")),
        concurrency=_whole(shown, options, "concurrency", CONCURRENCY, 1, CONCURRENCY_MAX),
        margin_ms=_whole(shown, options, "margin_ms", MARGIN_MS, 0, MARGIN_MAX_MS),
    )


def _endpoint(shown: str, endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"ledger {shown!r}: endpoint: expected http://host:port or https://host, without credentials")
    return endpoint


def _whole(shown: str, options: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or not text.isascii() or not least <= int(text[:20]) <= most:
        raise ConfigError(f"ledger {shown!r}: {name}={text!r}: expected a whole number from {least} to {most}")
    return int(text)

"""Parses `dynamodb://table?region=eu-central-1&…`. Credentials are never part of it."""

from __future__ import annotations

import re

from msgspec import Struct

from semel.aws import AwsUrl, parse_url
from semel.values.errors import ConfigError

MARGIN_MS = 1_000  # machines that use NTP are within tens of milliseconds of each other
MARGIN_MAX_MS = 600_000
CONCURRENCY = 16  # requests at a time; at 2 to 5 ms each that is some thousand a second
CONCURRENCY_MAX = 256
OPTIONS = ("region", "endpoint", "concurrency", "margin_ms")

_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


class DynamoAddress(Struct, frozen=True):
    """The location of the table, and the options of its client."""

    table: str
    region: str | None = None  # None: from AWS_REGION or the profile
    endpoint: str | None = None  # None: the service itself
    concurrency: int = CONCURRENCY
    margin_ms: int = MARGIN_MS

    def __str__(self) -> str:
        return f"DynamoDB table {self.table} ({self.endpoint or self.region or 'region of the environment'})"


def parse(url: str) -> DynamoAddress:
    parts = parse_url("ledger", url, OPTIONS)
    if not url.startswith("dynamodb://") or not _TABLE.fullmatch(parts.target):
        raise ConfigError(
            f"{parts.shown}: expected dynamodb://table?region=eu-central-1, with a table name of 3 to 255 letters, "
            "digits, '_', '-' and '.'"
        )
    return DynamoAddress(
        table=parts.target,
        region=parts.region,
        endpoint=parts.endpoint,
        concurrency=_integer(parts, "concurrency", CONCURRENCY, 1, CONCURRENCY_MAX),
        margin_ms=_integer(parts, "margin_ms", MARGIN_MS, 0, MARGIN_MAX_MS),
    )


def _integer(parts: AwsUrl, name: str, default: int, least: int, most: int) -> int:
    text = parts.options.get(name, str(default))
    if not text.isdecimal() or not text.isascii() or not least <= int(text[:20]) <= most:
        raise ConfigError(f"{parts.shown}: {name}={text!r}: expected a whole number from {least} to {most}")
    return int(text)

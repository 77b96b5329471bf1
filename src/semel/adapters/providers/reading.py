"""Reading status callbacks: what a stranger wrote, after it was verified."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec

from semel.values.errors import MalformedEvent
from semel.values.outbox import Witness
from semel.values.sending import Reported
from semel.values.strict_json import decode_any

TEXT_MAX = 200
FIELDS_MAX = 200
WITNESSES_MAX = 10_000  # in one callback
_OURS = re.compile(r"[0-9a-f]{32}", re.ASCII)


def parsed(body: bytes, who: str) -> Any:
    try:
        return decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedEvent(f"no status callback of {who}: it is not JSON") from None


def form(body: bytes | str, who: str) -> dict[str, str]:
    try:
        text = body if isinstance(body, str) else body.decode()
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=FIELDS_MAX).items()}
    except ValueError:
        raise MalformedEvent(f"no status callback of {who}: it is no form") from None


def ours(value: object) -> bytes | None:
    """Our id, where it came back as it went."""
    return bytes.fromhex(value) if isinstance(value, str) and _OURS.fullmatch(value) else None


def at(value: Any, *path: str) -> Any:
    """What stands at a path of names; None where nothing does. Of a list, the first."""
    for name in path:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text(value: Any, *path: str, longest: int = TEXT_MAX) -> str:
    found = at(value, *path)
    return found[:longest] if isinstance(found, str) else ""


def milliseconds(value: object) -> int:
    """Of a Unix time in seconds, or of an ISO 8601 one; 0 for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(1000 * value) if 0 < value < 2**40 else 0
    if not isinstance(value, str) or len(value) > 40:
        return 0
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return 0
    return max(0, int(1000 * (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()))


def witnesses(
    name: str, said: Mapping[str, Reported], status: str, *, id: bytes | None, reference: str, at_ms: int = 0
) -> list[Witness]:
    """One, if the status says something and it is said of somebody."""
    report = said.get(status)
    if report is None or (id is None and not reference):
        return []
    return [Witness(report, id, name, reference, at_ms, f"callback: {status}")]

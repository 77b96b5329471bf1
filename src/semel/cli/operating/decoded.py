"""What a kept event says, as far as its bytes alone tell it."""

from __future__ import annotations

from datetime import datetime

from semel.values.errors import SemelError
from semel.values.event import Event
from semel.wiring import decode

NAMES = ("type", "id", "subject", "time", "tenant", "origin", "shape")


def decoded(raw: bytes, tenant: str) -> dict[str, str] | None:
    """The event's own facts, those that it has. None: it was read with settings that are not kept beside it (an
    id_path), or by a program of its own; or it is no event at all."""
    try:
        event = decode(raw, tenant=tenant)
        return {name: value for name in NAMES if (value := _told(event, name))}
    except (SemelError, ValueError, OverflowError, OSError):  # a time may be none that a calendar has
        return None


def _told(event: Event, name: str) -> str:
    value: object = getattr(event, name)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return "" if value is None else str(value)

"""The findings of doctor: a level, the check, and what to change."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Level: TypeAlias = Literal["error", "warning", "ok"]


class Finding(Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    what: str
    change: str = ""  # what to do about it
    check: str = ""  # a short name that stays the same, for programs


class RouteFacts(Struct, frozen=True):
    """What decides about one handler: of a route in the settings, or of a Python app."""

    name: str
    effect: str
    timeout_s: float | None  # None: as long as its lease can be renewed
    lease_s: float
    retention_s: float
    window_s: float
    max_attempts: int = 8
    patterns: tuple[str, ...] = ()


def span(seconds: float) -> str:
    """A time for people: the largest unit that gives a whole number."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"

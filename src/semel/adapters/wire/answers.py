"""What is known after a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct


class Answered(Struct, frozen=True):
    """A status came back."""

    status: int
    body: bytes | None = None  # None: too large, compressed, or it broke off
    after_s: float | None = None  # Retry-After
    location: str = ""
    headers: Mapping[str, str] = {}  # asked for by names in lower case


class Unsent(Struct, frozen=True):
    """There was no connection: nothing left this machine."""

    why: str


class Unanswered(Struct, frozen=True):
    """A connection was there, and no status came back: the destination may have acted."""

    why: str


Answer: TypeAlias = Answered | Unsent | Unanswered

"""A door is a path that takes deliveries: how they are verified, read and answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from semel.ports import Publisher, Verifier
from semel.service.answers import Answer, overloaded
from semel.values.errors import ConfigError
from semel.values.reading import Reading

BODY_MAX_BYTES = 256 * 1024

Mode = Literal["inbox", "inline"]


class Door(Struct, frozen=True):
    """What a delivery meets, in this order: its limits, its verifier, its reading, its publisher or its mode."""

    path: str
    mode: Mode = "inline"
    tenant: str = ""
    reading: Reading | None = None  # None: the app's own
    verifier: Verifier | None = None
    unwrap: Callable[[bytes], bytes | None] | None = None  # the event inside a verified body; None: there is none
    busy_status: int = 503
    overload_status: int = 503
    body_max: int = BODY_MAX_BYTES
    publisher: Publisher | None = None  # it takes what this door lets in, instead of the inbox or the handlers here

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path {self.path!r}: it begins with /")
        if self.mode not in ("inbox", "inline"):
            raise ConfigError(f"mode={self.mode!r}: expected 'inbox' or 'inline'")

    @property
    def overloaded(self) -> Answer:
        return overloaded(self.overload_status)

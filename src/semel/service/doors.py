"""A door is a path that takes deliveries, or a provider's callbacks: how they are verified, read and answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from semel.ports import Provider, Publisher, Verifier
from semel.service.answers import NOT_VERIFIED, Answer, challenged, overloaded
from semel.values.errors import ConfigError
from semel.values.reading import Reading

BODY_MAX_BYTES = 256 * 1024

Mode = Literal["inbox", "inline"]


class Door(Struct, frozen=True):
    """What a delivery meets, in this order: its limits, its verifier, its reading, its publisher or its mode. A
    callback meets its provider instead."""

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
    hears: Provider | None = None  # whose callbacks come here; they are no events
    also: tuple[str, ...] = ()  # other names of the same account: their messages may be told of here too

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path {self.path!r}: it begins with /")
        if self.mode not in ("inbox", "inline"):
            raise ConfigError(f"mode={self.mode!r}: expected 'inbox' or 'inline'")
        if self.hears is not None and self.publisher is not None:
            raise ConfigError(f"path {self.path!r}: callbacks are heard here, and not handed on")

    @property
    def proves_headers(self) -> bool:
        """Whoever is let in wrote the headers too."""
        return self.verifier is None or self.verifier.covers_headers

    @property
    def proves_query(self) -> bool:
        """Whoever is let in wrote the query of the URL too."""
        return self.proves_headers or getattr(self.verifier, "covers_query", False)

    @property
    def speaks_for(self) -> tuple[str, ...]:
        """The names of the providers whose messages are told of here."""
        return () if self.hears is None else (self.hears.contract.name, *self.also)

    @property
    def not_verified(self) -> Answer:
        """401, with the challenge of the scheme if it has one."""
        challenge: bytes | None = getattr(self.verifier, "challenge", None)
        return NOT_VERIFIED if challenge is None else challenged(challenge)

    @property
    def overloaded(self) -> Answer:
        return overloaded(self.overload_status)

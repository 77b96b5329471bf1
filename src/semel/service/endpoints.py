"""A served endpoint: one HTTP path that takes deliveries or provider callbacks, with its checks and its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from semel.ports import ChallengingVerifier, Provider, Publisher, QueryVerifier, Verifier
from semel.service.responses import NOT_VERIFIED, HttpResponse, challenged
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions

BODY_MAX_BYTES = 256 * 1024

Mode = Literal["inbox", "inline"]


class ServedEndpoint(Struct, frozen=True):
    """The checks of a delivery, in order: limits, verifier, decoding, then publisher or mode. A callback goes to its
    provider instead."""

    path: str
    mode: Mode = "inline"
    tenant: str = ""
    decode_options: DecodeOptions | None = None  # None: the app's own
    verifier: Verifier | None = None
    unwrap: Callable[[bytes], bytes | None] | None = None  # the event inside a verified body; None: there is none
    busy_status: int = 503
    overload_status: int = 503
    body_max: int = BODY_MAX_BYTES
    publisher: Publisher | None = None  # takes the events of this endpoint, instead of the inbox or the handlers here
    callback_provider: Provider | None = None  # callbacks of this provider arrive here; they are not events
    aliases: tuple[str, ...] = ()  # other names of the same account: callbacks about their messages arrive here too

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path {self.path!r}: a path begins with /")
        if self.mode not in ("inbox", "inline"):
            raise ConfigError(f"mode={self.mode!r}: expected 'inbox' or 'inline'")
        if self.callback_provider is not None and self.publisher is not None:
            raise ConfigError(f"path {self.path!r}: an endpoint for callbacks cannot forward to a broker")

    @property
    def proves_headers(self) -> bool:
        """Verification covers the headers as well as the body."""
        return self.verifier is None or self.verifier.covers_headers

    @property
    def proves_query(self) -> bool:
        """Verification covers the query of the URL as well as the body."""
        verifier: object = self.verifier
        return self.proves_headers or (isinstance(verifier, QueryVerifier) and verifier.covers_query)

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The providers whose messages can be reported here."""
        return () if self.callback_provider is None else (self.callback_provider.contract.name, *self.aliases)

    @property
    def not_verified(self) -> HttpResponse:
        """401, with the challenge of the scheme if it has one."""
        verifier: object = self.verifier
        return challenged(verifier.challenge) if isinstance(verifier, ChallengingVerifier) else NOT_VERIFIED

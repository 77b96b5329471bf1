"""How each provider speaks. A dialect reads a request for a message, and words the answers."""

from __future__ import annotations

from typing import Protocol

from semel.testing.simulator.http import Request, Response
from semel.testing.simulator.state import Message, State


class Dialect(Protocol):
    name: str
    prefix: str  # of its references
    honours_keys: bool

    def other(self, request: Request, state: State) -> Response | None:
        """The answer to what is no request for a message: a token, a list; a refusal of bad credentials. None: it is
        one."""

    def read(self, request: Request) -> Message:
        """Raises ValueError for what this provider would refuse."""

    def accepted(self, message: Message, reference: str) -> Response: ...
    def refused(self, status: int, reason: str) -> Response: ...


def every_dialect() -> dict[str, Dialect]:
    """By the name that is their path."""
    from semel.testing.simulator.dialects.twilio import Twilio

    dialects: tuple[Dialect, ...] = (Twilio(),)
    return {dialect.name: dialect for dialect in dialects}

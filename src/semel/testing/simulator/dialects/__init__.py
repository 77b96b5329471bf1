"""How each provider speaks. A dialect reads a request for a message, and words the answers and the callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

Callback = tuple[str, bytes]
"""Content type and body."""


class Dialect:
    name: ClassVar[str]
    prefix: ClassVar[str] = ""  # of its references
    differs: ClassVar[int] = 422
    """The answer to a key that comes with another body."""

    def other(self, request: Request, state: State) -> Response | None:
        """The answer to what is no request for a message: a token, a list; a refusal of bad credentials. None: it is
        one."""
        raise NotImplementedError

    def read(self, request: Request) -> Message:
        """Raises ValueError for what this provider would refuse."""
        raise NotImplementedError

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(200, {"id": reference})

    def repeated(self, message: Message, reference: str, same: bool) -> Response:
        """The answer to a key that it knows, with the `same` body or another one."""
        if same:
            return self.accepted(message, reference)
        return self.refused(self.differs, "the key came with another body")

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"message": reason, "status": status})

    def about(self, state: State) -> Mapping[str, str]:
        """Headers of every answer."""
        return {}

    def wait(self, after_s: float) -> Mapping[str, str]:
        """Headers that say when a limit ends."""
        return {"Retry-After": f"{after_s:.0f}"}

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        """What it tells of a message: accepted, delivered or undelivered. None: it does not."""
        return None


def every_dialect() -> dict[str, Dialect]:
    """By the name that is their path."""
    from semel.testing.simulator.dialects.brevo import Brevo
    from semel.testing.simulator.dialects.cxone import Cxone
    from semel.testing.simulator.dialects.generic import Generic
    from semel.testing.simulator.dialects.genesys import Genesys
    from semel.testing.simulator.dialects.resend import Resend
    from semel.testing.simulator.dialects.sendgrid import SendGrid
    from semel.testing.simulator.dialects.ses import Ses
    from semel.testing.simulator.dialects.telnyx import Telnyx
    from semel.testing.simulator.dialects.twilio import Twilio
    from semel.testing.simulator.dialects.vonage import Vonage

    dialects: tuple[Dialect, ...] = (
        Brevo(),
        Cxone(),
        Generic(),
        Genesys(),
        Resend(),
        SendGrid(),
        Ses(),
        Telnyx(),
        Twilio(),
        Vonage(),
    )
    return {dialect.name: dialect for dialect in dialects}

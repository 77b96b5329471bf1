"""The base of all dialects. A dialect parses a provider's send request, and renders its answers and callbacks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

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
        """Headers with the time at which a rate limit ends."""
        return {"Retry-After": f"{after_s:.0f}"}

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        """The callback for a message that is accepted, delivered or undelivered. None: this provider has no
        callbacks."""
        return None


def every_dialect() -> dict[str, Dialect]:
    """All dialects by name. The name is the first part of the path."""
    from semel.testing.simulator.brevo import Brevo
    from semel.testing.simulator.cxone import Cxone
    from semel.testing.simulator.generic import Generic
    from semel.testing.simulator.genesys import Genesys
    from semel.testing.simulator.resend import Resend
    from semel.testing.simulator.sendgrid import SendGrid
    from semel.testing.simulator.ses import Ses
    from semel.testing.simulator.telnyx import Telnyx
    from semel.testing.simulator.twilio import Twilio
    from semel.testing.simulator.vonage import Vonage

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


def document(request: Request) -> Any:
    try:
        return request.json()
    except msgspec.DecodeError as error:
        raise ValueError(f"no JSON: {error}") from None


def mail(to: Any, subject: Any, text: Any, html: Any, *, key: str = "", ours: str = "") -> Message:
    if not isinstance(to, str) or "@" not in to:
        raise ValueError("the recipient is not valid")
    if not subject or not (text or html):
        raise ValueError("a subject and a content are required")
    return Message(to, text or "", key, ours, subject=subject, html=html or "")


# Credentials as providers check them. A refusal repeats the sent credentials, as careless providers do: code that
# stores a refusal as evidence must redact the secret.


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def given(request: Request, header: str = "authorization") -> str:
    return request.headers.get(header, "")


def careless(said: str) -> str:
    return f"these credentials are not known: {said}"

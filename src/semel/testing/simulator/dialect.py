"""The base of all dialects. A dialect parses a provider's send request, and renders its answers and callbacks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

Callback = tuple[str, bytes]
"""Content type and body."""


class Dialect:
    name: ClassVar[str]
    prefix: ClassVar[str] = ""  # of its references
    path: ClassVar[str] = ""  # of send requests
    header: ClassVar[str] = "authorization"
    credentials: ClassVar[str] = ""  # the valid value of that header
    conflict_status: ClassVar[int] = 422  # for a known key with another body

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        """The response to a request that is not a valid send request: a token, a list, a refusal of credentials. None
        for a send request."""
        if (request.method, request.path) != ("POST", self.path):
            return self.refused(404, "not found")
        sent = header_of(request, self.header)
        return None if sent == self.credentials else self.refused(401, unknown_credentials(sent))

    def parse(self, request: HttpRequest) -> SimulatedMessage:
        """The message of a send request. Raises ValueError for a request that this provider would refuse."""
        try:
            return self.read(request)
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError, StopIteration) as error:
            raise ValueError(f"bad request: {error}") from None

    def read(self, request: HttpRequest) -> SimulatedMessage:
        """Read a send request. Any error means that it is invalid."""
        raise NotImplementedError

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(200, {"id": reference})

    def repeated(self, message: SimulatedMessage, reference: str, same: bool) -> SimulatedResponse:
        """The response to a known key, with the `same` body or with another one."""
        if same:
            return self.accepted(message, reference)
        return self.refused(self.conflict_status, "the key was used with another body")

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"message": reason, "status": status})

    def common_headers(self, state: SimulatorState) -> Mapping[str, str]:
        """Headers of every response."""
        return {}

    def retry_headers(self, after_s: float) -> Mapping[str, str]:
        """Headers with the time at which a rate limit ends."""
        return {"Retry-After": f"{after_s:.0f}"}

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        """The callback for a status: accepted, delivered or undelivered. None if the provider has no callbacks."""
        return None


def every_dialect() -> dict[str, Dialect]:
    """All dialects by name. The name is the first part of the path."""
    from semel.testing.simulator.brevo import BrevoDialect
    from semel.testing.simulator.cxone import CxoneDialect
    from semel.testing.simulator.generic import GenericDialect
    from semel.testing.simulator.genesys import GenesysDialect
    from semel.testing.simulator.resend import ResendDialect
    from semel.testing.simulator.sendgrid import SendGridDialect
    from semel.testing.simulator.ses import SesDialect
    from semel.testing.simulator.telnyx import TelnyxDialect
    from semel.testing.simulator.twilio import TwilioDialect
    from semel.testing.simulator.vonage import VonageDialect

    kinds = (
        BrevoDialect,
        CxoneDialect,
        GenericDialect,
        GenesysDialect,
        ResendDialect,
        SendGridDialect,
        SesDialect,
        TelnyxDialect,
        TwilioDialect,
        VonageDialect,
    )
    return {kind.name: kind() for kind in kinds}


def mail(to: Any, subject: Any, text: Any, html: Any, *, key: str = "", ours: str = "") -> SimulatedMessage:
    if not isinstance(to, str) or "@" not in to:
        raise ValueError("the recipient is not valid")
    if not subject or not (text or html):
        raise ValueError("a subject and a content are required")
    return SimulatedMessage(to, text or "", key, ours, subject=subject, html=html or "")


# Credentials as providers check them. A refusal repeats the sent credentials, as careless providers do: code that
# stores a refusal as evidence must redact the secret.


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def header_of(request: HttpRequest, name: str = "authorization") -> str:
    return request.headers.get(name, "")


def unknown_credentials(sent: str) -> str:
    return f"these credentials are not known: {sent}"

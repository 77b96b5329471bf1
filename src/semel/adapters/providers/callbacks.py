"""How each kind of provider calls back, as facts: docs/callbacks.md says where they come from."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

BATCH_MAX_BYTES = 1024 * 1024  # of those that send many events at once


class Calls(Struct, frozen=True):
    scheme: str  # that proves where its callbacks come from
    again: int = 503  # the answer that makes it come again
    body_max: int | None = None  # what it may send at once, where that is more than one event


CALLS: Mapping[str, Calls] = {
    "twilio": Calls("twilio"),
    "sendgrid": Calls("sendgrid", body_max=BATCH_MAX_BYTES),
    "ses": Calls("sns"),
    "resend": Calls("standard-webhooks"),
    "telnyx": Calls("telnyx"),
    "brevo": Calls("header", again=429, body_max=BATCH_MAX_BYTES),
    "vonage": Calls("vonage"),
    "http": Calls("hmac-hex"),
}
"""By kind. A kind that is not here calls nobody back."""

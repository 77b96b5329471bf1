"""Callbacks as each provider signs them, and as SNS brings those of SES."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.service.verification.sns_sender import NOTIFICATION, TOPIC, posted, sign

from semel.testing.simulator.callbacks import SigningInput, signature


class Signed(NamedTuple):
    """A callback as it goes over the wire."""

    query: str
    headers: Mapping[str, str]
    body: bytes


def public_url(name: str) -> str:
    """What providers were told: a proxy stands before us, and calls us by another one."""
    return f"https://semel.example.com/callbacks/{name}"


def signed(name: str, content_type: str, body: bytes, query: str = "", ink: SigningInput | None = None) -> Signed:
    """A callback of this provider, as it sends it. Its name begins with its kind."""
    headers = {"Content-Type": content_type}
    with_what = ink or SigningInput(time.time())
    if name == "ses":  # SNS brings it, in an envelope
        message = {**NOTIFICATION, "TopicArn": TOPIC, "Message": body.decode("utf-8", "replace")}
        envelope = sign(message)
        if with_what.other:
            envelope["Signature"] = base64.b64encode(b"\0" * 256).decode()
        return Signed(query, headers, posted(envelope))
    url = f"{public_url(name)}?{query}" if query else public_url(name)
    return Signed(query, {**headers, **signature(name.partition("-")[0], url, body, with_what)}, body)

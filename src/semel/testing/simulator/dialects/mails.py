"""What the dialects of mail share: one recipient, a subject, and something to read."""

from __future__ import annotations

from typing import Any

import msgspec

from semel.testing.simulator.http import Request
from semel.testing.simulator.state import Message


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

"""Problem details (RFC 9457): what every refusal of the service says, as bytes for any way of answering."""

from __future__ import annotations

from typing import Any

import msgspec

PROBLEM_JSON = "application/problem+json"

_encode = msgspec.json.Encoder().encode


def problem(status: int, title: str, detail: str = "", **more: Any) -> bytes:
    """`title` is the same for all problems of a kind, `detail` says what is wrong with this request and what to do."""
    return _encode({"type": "about:blank", "title": title, "status": status, "detail": detail, **more})

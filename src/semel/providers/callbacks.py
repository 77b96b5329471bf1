"""Status callbacks: how each kind of provider sends them, the notification id in callback URLs, and parsing.

docs/callbacks.md names the sources of these facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from semel.values.delivery_state import Reported
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import DeliveryReport
from semel.values.strict_json import decode_any

BATCH_MAX_BYTES = 1024 * 1024  # for providers that send events in batches


class CallbackProfile(Struct, frozen=True):
    scheme: str  # of the verifier
    again: int = 503  # the status that makes the provider retry
    body_max: int | None = None  # bytes, for providers that send batches


CALLBACKS: Mapping[str, CallbackProfile] = {
    "twilio": CallbackProfile("twilio"),
    "sendgrid": CallbackProfile("sendgrid", body_max=BATCH_MAX_BYTES),
    "ses": CallbackProfile("sns"),
    "resend": CallbackProfile("standard-webhooks"),
    "telnyx": CallbackProfile("telnyx"),
    "brevo": CallbackProfile("header", again=429, body_max=BATCH_MAX_BYTES),
    "vonage": CallbackProfile("vonage"),
    "http": CallbackProfile("hmac-hex"),
}
"""By kind. A kind without an entry sends no callbacks."""

ID_PARAMETER = "id"
"""Query parameter of the callback URL. It carries the notification id for providers that return no reference."""


def check_callback_url(callback: str, provider: str) -> None:
    """Raises ConfigError for a text that is no URL, and for a URL that already has an id parameter."""
    if not callback:
        return
    try:
        parts = urlsplit(callback)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("https", "http") or not parts.hostname or " " in callback:
        raise ConfigError(f"provider {provider!r}: callback: expected a URL: https://semel.example.com/callbacks/…")
    if ID_PARAMETER in parse_qs(parts.query, keep_blank_values=True):
        raise ConfigError(
            f"provider {provider!r}: callback: Semel adds ?{ID_PARAMETER}= to the URL: rename your parameter"
        )


def add_id(callback: str, id: str) -> str:
    url, hash, fragment = callback.partition("#")  # Twilio reads its retry options from the fragment
    return f"{url}{'&' if '?' in url else '?'}{ID_PARAMETER}={id}{hash}{fragment}"


def id_from_url(url: str) -> bytes | None:
    """The notification id in a callback URL that the provider repeats in the body."""
    try:
        values = parse_qs(urlsplit(url).query, max_num_fields=100).get(ID_PARAMETER, [])
    except ValueError:
        return None
    return parse_id(values[0]) if len(values) == 1 else None


TEXT_MAX = 200
FIELDS_MAX = 200
EVENTS_MAX = 10_000  # in one callback
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def parse_json(body: bytes, provider: str) -> Any:
    try:
        return decode_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedEvent(f"not a callback of {provider}: the body is not JSON") from None


def parse_form(body: bytes | str, provider: str) -> dict[str, str]:
    try:
        text = body if isinstance(body, str) else body.decode()
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=FIELDS_MAX).items()}
    except ValueError:
        raise MalformedEvent(f"not a callback of {provider}: the body is not a form") from None


def parse_id(value: object) -> bytes | None:
    """The notification id, or None if the value is not one."""
    return bytes.fromhex(value) if isinstance(value, str) and _ID.fullmatch(value) else None


def value_at(value: Any, *path: str) -> Any:
    """The value at a path of names, or None. Takes the first item of a list."""
    for name in path:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text_at(value: Any, *path: str, longest: int = TEXT_MAX) -> str:
    found = value_at(value, *path)
    return found[:longest] if isinstance(found, str) else ""


def to_milliseconds(value: object) -> int:
    """Convert a Unix time in seconds or an ISO 8601 time. Any other value gives 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(1000 * value) if 0 < value < 2**40 else 0
    if not isinstance(value, str) or len(value) > 40:
        return 0
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return 0
    return max(0, int(1000 * (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()))


def delivery_reports(
    name: str, statuses: Mapping[str, Reported], status: str, *, id: bytes | None, reference: str, at_ms: int = 0
) -> list[DeliveryReport]:
    """One report, if `statuses` maps the status and the callback identifies a message. Otherwise none."""
    report = statuses.get(status)
    if report is None or (id is None and not reference):
        return []
    return [DeliveryReport(report, id, name, reference, at_ms, f"callback: {status}")]

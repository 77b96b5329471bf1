"""HTTP responses of the webhook endpoints: one for each outcome, and one for each refusal.

Refusals are problem details (RFC 9457). A duplicate is answered 200, because anything else makes the sender retry. Dead
and uncertain events are 200 too: the event is kept, and sending it again would change nothing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import Struct

from semel.core.routing import NO_KEY
from semel.values.forwarded import TOO_LARGE, UNFIT
from semel.values.outcome import Outcome

PROBLEM_JSON = "application/problem+json"

_encode = msgspec.json.Encoder().encode


def problem(status: int, title: str, detail: str = "", **more: Any) -> bytes:
    """The body of a refusal. `title` is the same for all problems of a kind; `detail` describes this request."""
    return _encode({"type": "about:blank", "title": title, "status": status, "detail": detail, **more})


_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", b"application/problem+json")

_STATUS_NAMES = {"done": "processed"}  # every other status keeps its name
# Reasons of these may contain an exception's text, and so customer data: `semel events show` has them.
_WITHHELD = ("duplicate", "dead", "uncertain", "retry", "busy")
_SEE_KEY = "The operator finds the reason with `semel events show` and this key"


class HttpResponse(Struct, frozen=True):
    """Status, headers and body, ready to send."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Part(Struct, omit_defaults=True):
    """The outcome of the event for one of its handlers."""

    handler: str
    status: str
    key: str
    reason: str = ""


class _Accepted(Struct, omit_defaults=True):
    """The body of a 200."""

    status: str
    id: str = ""
    key: str = ""
    reason: str = ""
    result: Any = None
    parts: tuple[_Part, ...] = ()  # where the event has several handlers


def accepted(outcome: Outcome) -> HttpResponse:
    """200: the event is recorded, and the sender need not retry."""
    status = _STATUS_NAMES.get(outcome.status, outcome.status)
    reason = _reason(outcome) if outcome.reason else ""
    parts = _parts(outcome) if outcome.parts else ()
    body = _encode(_Accepted(status, outcome.id, outcome.key, reason, outcome.result, parts))
    return HttpResponse(200, [_JSON, (b"content-length", b"%d" % len(body))], body)


def _reason(outcome: Outcome) -> str:
    """The reason without an exception's text."""
    status, reason = outcome.status, outcome.reason
    if status not in _WITHHELD:
        return reason
    return reason.partition(":")[0] if status == "duplicate" or reason.startswith(NO_KEY) else ""


def _parts(outcome: Outcome) -> tuple[_Part, ...]:
    """One for each handler, where the event has several."""
    return tuple(
        [
            _Part(part.handler, _STATUS_NAMES.get(part.status, part.status), part.key, _reason(part))
            for part in outcome.parts
        ]
    )


def refused(
    status: int, title: str, detail: str = "", after_s: float | None = None, key: str = "", **members: Any
) -> HttpResponse:
    """Problem details (RFC 9457), with Retry-After where trying again makes sense."""
    body = problem(status, title, detail, **({"key": key} if key else {}), **members)
    headers = [_PROBLEM, (b"content-length", b"%d" % len(body))]
    if after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(after_s))))
    return HttpResponse(status, headers, body)


def response_for(outcome: Outcome, busy_status: int) -> HttpResponse:
    """The response to a delivery that was processed, or accepted into the inbox."""
    key = outcome.key
    parts: dict[str, Any] = {"parts": _parts(outcome)} if outcome.parts else {}
    match outcome.status:
        case "retry":
            return refused(503, "The handler did not succeed yet", _SEE_KEY, outcome.after or 0.0, key, **parts)
        case "busy":
            title = "Another worker is processing it, or its retry is not due yet"
            return refused(busy_status, title, "", outcome.after or 0.0, key, **parts)
        case "conflict":
            return refused(422, "The same id was received before with another body", outcome.reason, key=key, **parts)
        case "malformed":
            return refused(400, "Malformed event", outcome.reason)
        case _:
            return accepted(outcome)


NOT_VERIFIED = refused(401, "Not verified")  # constant: a guesser learns nothing from it
NOT_POST = HttpResponse(
    405, [*refused(405, "Send events by POST").headers, (b"allow", b"POST")], problem(405, "Send events by POST")
)
NOT_FOUND = refused(
    404, "Not found", "Events go to the configured endpoints, by default /events; see /openapi.json for the API"
)
ENCODED = refused(415, "Content-Encoding is not supported", "Send the body without Content-Encoding")
UNPROVEN_HEADERS = refused(
    400,
    "ce- headers are not covered by the signature",
    "Send CloudEvents in structured mode (application/cloudevents+json), or to an endpoint with scheme header or basic",
)
UNREADABLE_LENGTH = refused(400, "Content-Length is not a number")
TOO_SLOW = refused(408, "The body took too long to arrive")
DISCONNECTED = HttpResponse(499, [], b"")  # the sender closed the connection: never sent


def challenged(challenge: bytes, refusal: HttpResponse = NOT_VERIFIED) -> HttpResponse:
    """The same 401 with the expected scheme (RFC 9110, 15.5.2)."""
    return HttpResponse(401, [*refusal.headers, (b"www-authenticate", challenge)], refusal.body)


def too_large(body_max: int) -> HttpResponse:
    return refused(413, "The body is too large", f"The limit is {body_max:,} bytes")


def cannot_verify(reason: str, after_s: float) -> HttpResponse:
    return refused(503, "Signature verification is temporarily unavailable", reason, after_s)


def overloaded(status: int) -> HttpResponse:
    return refused(status, "Too many concurrent deliveries", "Nothing was processed; send it again", 1.0)


def ledger_down(after_s: float) -> HttpResponse:
    """The response does not name the store or its error; the log does."""
    return refused(503, "The ledger is unavailable", "Nothing was processed; send it again", after_s)


def not_forwarded(reason: str, after_s: float) -> HttpResponse:
    """The broker does not have the event, or did not confirm it. The log names the broker and its error."""
    if reason.startswith(TOO_LARGE):
        return refused(413, "The event is too large for the broker", reason.removeprefix(TOO_LARGE))
    if reason.startswith(UNFIT):
        return refused(422, "The broker cannot take this event", reason.removeprefix(UNFIT))
    return refused(503, "The broker is unavailable", "Send it again: duplicates are detected", after_s)

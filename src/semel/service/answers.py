"""What a sender is told: one HTTP answer for each outcome.

A duplicate is answered 200, because anything else makes the sender try again. What a person has to look at (dead,
uncertain) is 200 too: the event is kept, and sending it again would change nothing.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import Struct

from semel.core.handlers import NO_KEY
from semel.service.problems import problem
from semel.values.outcome import Outcome
from semel.values.parcel import TOO_LARGE, UNFIT

_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", b"application/problem+json")

_SAID = {"done": "processed"}  # the other statuses are told by their own name
_WITHHELD = ("duplicate", "dead", "uncertain")  # reasons may hold an exception's words: `semel events show` tells them
_LOOK = "Whoever runs this finds the reason under the key"


class Answer(Struct, frozen=True):
    """An HTTP answer, ready to be sent."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Part(Struct):
    """What became of the event for one of its handlers."""

    handler: str
    status: str
    key: str


class _Told(Struct, omit_defaults=True):
    """The body of a 200."""

    status: str
    id: str = ""
    key: str = ""
    reason: str = ""
    result: Any = None
    parts: tuple[_Part, ...] = ()  # where the event has several handlers


_encode = msgspec.json.Encoder().encode


def told(outcome: Outcome) -> Answer:
    """It is known and kept: the sender may forget it."""
    status = outcome.status
    reason = outcome.reason
    if status in _WITHHELD:
        reason = reason.partition(":")[0] if status == "duplicate" or reason.startswith(NO_KEY) else ""
    parts = tuple([_Part(part.handler, _SAID.get(part.status, part.status), part.key) for part in outcome.parts])
    body = _encode(_Told(_SAID.get(status, status), outcome.id, outcome.key, reason, outcome.result, parts))
    return Answer(200, [_JSON, (b"content-length", b"%d" % len(body))], body)


def refused(
    status: int, title: str, detail: str = "", after_s: float | None = None, key: str = "", **members: Any
) -> Answer:
    """Problem details (RFC 9457), with Retry-After where trying again makes sense."""
    body = problem(status, title, detail, **({"key": key} if key else {}), **members)
    headers = [_PROBLEM, (b"content-length", b"%d" % len(body))]
    if after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(after_s))))
    return Answer(status, headers, body)


def answer(outcome: Outcome, busy_status: int) -> Answer:
    """The answer to a delivery that went through the flow, or into the inbox."""
    match outcome.status:
        case "retry":
            return refused(503, "The handler did not succeed yet", _LOOK, outcome.after or 0.0, outcome.key)
        case "busy":
            return refused(
                busy_status, "Being handled elsewhere, or not due yet", "", outcome.after or 0.0, outcome.key
            )
        case "conflict":
            return refused(422, "The same id came before with another body", outcome.reason, key=outcome.key)
        case "malformed":
            return refused(400, "Not an event", outcome.reason)
        case _:
            return told(outcome)


NOT_VERIFIED = refused(401, "Not verified")  # constant: it tells nobody how close they came
NOT_POST = Answer(
    405, [*refused(405, "Send events by POST").headers, (b"allow", b"POST")], problem(405, "Send events by POST")
)
NOT_HERE = refused(
    404, "Nothing here", "Events go to the configured endpoints, by default /events; see /openapi.json for the API"
)
ENCODED = refused(415, "Encoded bodies are not read", "Send the body without Content-Encoding")
UNPROVEN_HEADERS = refused(
    400,
    "ce- headers are not covered by the signature",
    "Send CloudEvents in structured mode (application/cloudevents+json), or to an endpoint with scheme header or basic",
)
UNREADABLE_LENGTH = refused(400, "Content-Length is no number")
TOO_SLOW = refused(408, "The body took too long to arrive")
GONE = Answer(499, [], b"")  # the sender went away: nobody reads this


def challenged(challenge: bytes, refusal: Answer = NOT_VERIFIED) -> Answer:
    """The same 401, with the scheme that is expected (RFC 9110, 15.5.2)."""
    return Answer(401, [*refusal.headers, (b"www-authenticate", challenge)], refusal.body)


def too_large(most: int) -> Answer:
    return refused(413, "The body is too large", f"At most {most:,} bytes are read")


def cannot_verify(reason: str, after_s: float) -> Answer:
    return refused(503, "Nobody can tell now whether this is genuine", reason, after_s)


def overloaded(status: int) -> Answer:
    return refused(status, "Too many deliveries at a time", "Nothing was processed; send it again", 1.0)


def ledger_down(after_s: float) -> Answer:
    """Which store it is, and what ails it, is nothing for those outside: the log has it."""
    return refused(503, "The ledger cannot be reached now", "Nothing was processed; send it again", after_s)


def not_handed_on(why: str, after_s: float) -> Answer:
    """The broker does not have it, or nobody knows. Which broker it is, and what ails it, is in the log."""
    if why.startswith(TOO_LARGE):
        return refused(413, "The event is too large to be handed on", why.removeprefix(TOO_LARGE))
    if why.startswith(UNFIT):
        return refused(422, "The event cannot be handed on", why.removeprefix(UNFIT))
    return refused(503, "The event could not be handed on now", "Send it again: duplicates are found", after_s)

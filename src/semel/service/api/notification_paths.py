"""/v1/notifications, described."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from semel.service.api.describing import EVERYWHERE, WITH_BODY, answer, body, refusals
from semel.service.api.listing import CURSOR_PATTERN
from semel.service.api.notification_shapes import (
    LIST_DEFAULT,
    LIST_MAX,
    PRINTABLE,
    Again,
    Cancel,
    Erase,
    Erased,
    Moved,
    NewNotification,
    NotificationPage,
    NotificationReport,
    Resend,
    Resolve,
    StatusReport,
    Taken,
)
from semel.service.api.shapes import KEY_PATTERN
from semel.values.notification import TEXT_MAX
from semel.values.sending import STATES

SHAPES = (
    *(NewNotification, Taken, NotificationPage, NotificationReport, StatusReport),
    *(Resolve, Cancel, Moved, Resend, Again, Erase, Erased),
)
_TEXT = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, "pattern": PRINTABLE}
_FLAG = {"type": "string", "enum": ["true", "false"]}
_TIME = {"type": "string", "format": "date-time"}
_CURSOR = f"^{CURSOR_PATTERN.pattern}$"
_LOCATION = {"Location": "Where it can be looked at."}
_ALWAYS = (*EVERYWHERE, 400, 501)

_READ = "Needs the scope `notifications`."
_DECIDE = "Needs the scope `operate`. The token's name is kept with the reason."
_CREATE = (
    "Needs the scope `notify`. What is answered is durable. The identity is tenant, key, kind, recipient and channel: "
    "the same call twice is one notification. The key is `key` or `Idempotency-Key`; where both are given they are "
    "equal."
)
_STATUS = (
    f"{_READ} By `recipient`, by `recipient` and `kind`, or by `key`. `unknown` is not `never`: the message may have "
    "been sent."
)
_MASKED = f"{_READ} Recipients and contents are masked; `reveal` needs the scope `operate` too."
_RESOLVE = f"{_DECIDE} For what is uncertain; what is pending can be given up. The same call again changes nothing."
_CANCEL = f"{_DECIDE} For what is pending. Where an attempt is in doubt it is uncertain then, until it is resolved."
_RESEND = (
    f"{_DECIDE} A new generation of the same notification, which no guard keeps back. The same call again is answered "
    "with that generation. Refused for what is on its way or uncertain, erased, or past its `not_after`."
)
_ERASE = f"{_DECIDE} What has not left is cancelled. What is known by its identity stays known: nothing is sent twice."


def paths() -> dict[str, Any]:
    id = _parameter("id", "path", "As it was answered.", {"type": "string", "pattern": KEY_PATTERN.pattern})
    reveal = _parameter("reveal", "query", "Tell recipient and content.", _FLAG)
    return {
        "/v1/notifications": {
            "post": _operation("notify", "Send a message, once", _CREATE, [_KEY_HEADER], NewNotification, _CREATED),
            "get": _operation("notifications", "The newest first", _MASKED, [*_LISTED, reveal], None, _PAGE, 409),
        },
        "/v1/notifications/status": {
            "get": _operation("told", "Did this customer get it?", _STATUS, _ASKED, None, _of(StatusReport))
        },
        "/v1/notifications/erase": {
            "post": _operation("erase", "Forget a recipient", _ERASE, [], Erase, _of(Erased)),
        },
        "/v1/notifications/{id}": {
            "get": _operation("notification", "All of one", _MASKED, [id, reveal], None, _of(NotificationReport), 404)
        },
        "/v1/notifications/{id}/resolve": {
            "post": _operation("resolve", "Say what came of it", _RESOLVE, [id], Resolve, _of(Moved), 404, 409)
        },
        "/v1/notifications/{id}/cancel": {
            "post": _operation("cancel", "Have it not sent", _CANCEL, [id], Cancel, _of(Moved), 404, 409)
        },
        "/v1/notifications/{id}/resend": {
            "post": _operation("resend", "Have it sent again", _RESEND, [id], Resend, _AGAIN, 404, 409)
        },
    }


def _operation(
    name: str,
    summary: str,
    says: str,
    parameters: Iterable[dict[str, Any]],
    asked: type[Struct] | None,
    answers: dict[str, Any],
    *refused: int,
) -> dict[str, Any]:
    statuses = {*_ALWAYS, *refused, *(() if asked is None else WITH_BODY)}
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "description": says}
    if found := list(parameters):
        operation["parameters"] = found
    if asked is not None:
        operation["requestBody"] = body(asked)
    return {**operation, "responses": {**answers, **refusals(*statuses)}}


def _parameter(name: str, where: str, says: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": says, "schema": schema}


def _of(shape: type[Struct]) -> dict[str, Any]:
    return {"200": answer(shape)}


_PAGE = _of(NotificationPage)
_CREATED = {"200": answer(Taken, _LOCATION), "201": answer(Taken, _LOCATION), **refusals(422)}
_AGAIN = {"200": answer(Again, _LOCATION), "201": answer(Again, _LOCATION)}

_KEY_HEADER = _parameter(
    "Idempotency-Key",
    "header",
    "The key, where it is not in the body: a structured-field string in quotes, or the plain key.",
    _TEXT,
)
_ASKED = [
    _parameter("recipient", "query", "As it was given to the notification; for + write %2B.", _TEXT),
    _parameter("kind", "query", "With recipient. Without it: of any kind.", _TEXT),
    _parameter("key", "query", "Alone.", _TEXT),
]
_LISTED = [
    _parameter("state", "query", "Only these.", {"type": "string", "enum": list(STATES)}),
    _parameter("recipient", "query", "Only to this one; for + write %2B.", _TEXT),
    _parameter("kind", "query", "Only of this kind.", _TEXT),
    _parameter("key", "query", "Only of this key.", _TEXT),
    _parameter("provider", "query", "Only those that this provider has, or had last.", _TEXT),
    _parameter("possible_duplicates", "query", "Only those that may have been sent twice.", _FLAG),
    _parameter("since", "query", "Added then or later.", _TIME),
    _parameter("until", "query", "Added before.", _TIME),
    _parameter("after", "query", "`next` of the page before.", {"type": "string", "pattern": _CURSOR}),
    _parameter(
        *("limit", "query", "About so many."),
        {"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT},
    ),
]

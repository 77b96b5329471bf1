"""The description of the API, OpenAPI 3.1, made from the shapes that requests are checked against."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from semel.service.api.claim_shapes import (
    KEY_PATTERN,
    ClaimBatch,
    KeyReport,
    Problem,
    RenewAnswerBatch,
    RenewBatch,
    SettleAnswerBatch,
    SettleBatch,
    VerdictBatch,
)
from semel.service.api.errors import TITLES
from semel.service.api.notification_shapes import (
    LIST_DEFAULT,
    LIST_MAX,
    PRINTABLE,
    CancelRequest,
    EraseRequest,
    NewNotification,
    NotificationAdded,
    NotificationDecided,
    NotificationPage,
    NotificationReport,
    NotificationResent,
    NotificationStatus,
    RecipientErased,
    ResendRequest,
    ResolveRequest,
)
from semel.service.api.notifications import CURSOR_PATTERN
from semel.service.responses import PROBLEM_JSON
from semel.values.delivery_state import STATES
from semel.values.notification import TEXT_MAX

# The words of an OpenAPI description: answers, refusals, references.

ROOT = "#/components/schemas/{name}"

EVERYWHERE = (401, 403, 405, 429, 503)
WITH_BODY = (400, 408, 413, 415)
_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate."},
    403: {"WWW-Authenticate": "Which scope is missing."},
    405: {"Allow": "The methods of this path."},
    429: {"Retry-After": "Seconds."},
    503: {"Retry-After": "Seconds."},
}


def body(shape: type[Struct]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": reference(shape)}}}


def answer(shape: type[Struct], headers: dict[str, str] | None = None) -> dict[str, Any]:
    first_line = (shape.__doc__ or "").partition("\n")[0]
    said: dict[str, Any] = {
        "description": first_line,
        "content": {"application/json": {"schema": reference(shape)}},
    }
    return with_headers(said, headers)


def refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): _refusal(status) for status in sorted(statuses)}


def _refusal(status: int) -> dict[str, Any]:
    said: dict[str, Any] = {
        "description": TITLES[status],
        "content": {PROBLEM_JSON: {"schema": reference(Problem)}},
    }
    return with_headers(said, _HEADERS.get(status))


def with_headers(said: dict[str, Any], headers: dict[str, str] | None) -> dict[str, Any]:
    if headers:
        said["headers"] = {
            name: {"description": says, "required": True, "schema": {"type": "string"}}
            for name, says in headers.items()
        }
    return said


def reference(shape: type[Struct]) -> dict[str, str]:
    return {"$ref": ROOT.format(name=shape.__name__)}


# /v1/notifications, described.

SHAPES = (
    *(NewNotification, NotificationAdded, NotificationPage, NotificationReport, NotificationStatus),
    *(
        ResolveRequest,
        CancelRequest,
        NotificationDecided,
        ResendRequest,
        NotificationResent,
        EraseRequest,
        RecipientErased,
    ),
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
            "post": _operation(
                "create_notification", "Send a message, once", _CREATE, [_KEY_HEADER], NewNotification, _CREATED
            ),
            "get": _operation("list_notifications", "The newest first", _MASKED, [*_LISTED, reveal], None, _PAGE, 409),
        },
        "/v1/notifications/status": {
            "get": _operation(
                "get_notification_status", "Did this customer get it?", _STATUS, _ASKED, None, _of(NotificationStatus)
            )
        },
        "/v1/notifications/erase": {
            "post": _operation("erase_recipient", "Forget a recipient", _ERASE, [], EraseRequest, _of(RecipientErased)),
        },
        "/v1/notifications/{id}": {
            "get": _operation(
                "get_notification", "All of one", _MASKED, [id, reveal], None, _of(NotificationReport), 404
            )
        },
        "/v1/notifications/{id}/resolve": {
            "post": _operation(
                "resolve_notification",
                "Say what came of it",
                _RESOLVE,
                [id],
                ResolveRequest,
                _of(NotificationDecided),
                404,
                409,
            )
        },
        "/v1/notifications/{id}/cancel": {
            "post": _operation(
                "cancel_notification",
                "Have it not sent",
                _CANCEL,
                [id],
                CancelRequest,
                _of(NotificationDecided),
                404,
                409,
            )
        },
        "/v1/notifications/{id}/resend": {
            "post": _operation(
                "resend_notification", "Have it sent again", _RESEND, [id], ResendRequest, _AGAIN, 404, 409
            )
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
_CREATED = {"200": answer(NotificationAdded, _LOCATION), "201": answer(NotificationAdded, _LOCATION), **refusals(422)}
_AGAIN = {"200": answer(NotificationResent, _LOCATION), "201": answer(NotificationResent, _LOCATION)}

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


_ABOUT = (
    "Act once on every event: claim a key, do the work if it is granted, settle. Message a customer once: create a "
    "notification, ask whether it was sent. Durations are seconds. A request that is malformed is refused as a whole, "
    "before anything is done."
)
_BEARER = "A token of semel.toml. Its tenant is part of every key, and its scopes say what it may do."

_SHAPES = (
    *(ClaimBatch, VerdictBatch, SettleBatch, SettleAnswerBatch, RenewBatch, RenewAnswerBatch, KeyReport, Problem),
    *SHAPES,
)


def description() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(_SHAPES, ref_template=ROOT)
    _complete_arrays(schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Semel",
            "version": version("semel"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The service that this description comes from."}],
        "security": [{"bearer": []}],
        "paths": {
            "/v1/claims": {"post": _batch("claim_keys", "Ask for leases", ClaimBatch, VerdictBatch)},
            "/v1/claims/settle": {"post": _batch("settle_leases", "End leases", SettleBatch, SettleAnswerBatch)},
            "/v1/claims/renew": {"post": _batch("renew_leases", "Extend leases", RenewBatch, RenewAnswerBatch)},
            "/v1/keys/{key}": {"get": _key()},
            **paths(),
            "/openapi.json": {"get": _openapi()},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": _BEARER,
                }
            },
        },
    }


def _complete_arrays(schema: Any) -> None:
    """Give every array its items. JSON Schema does without for arrays of anything, and generators of clients do not:
    they leave out each operation that uses such a schema."""
    match schema:
        case dict():
            if schema.get("type") == "array":
                schema.setdefault("items", {})
            for inside in schema.values():
                _complete_arrays(inside)
        case list():
            for inside in schema:
                _complete_arrays(inside)


def _batch(name: str, summary: str, asked: type[Struct], told: type[Struct]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "description": "Needs the scope `claims`.",
        "requestBody": body(asked),
        "responses": {"200": answer(told), **refusals(*EVERYWHERE, *WITH_BODY)},
    }


def _key() -> dict[str, Any]:
    key = {
        "name": "key",
        "in": "path",
        "required": True,
        "description": "As it stands in every verdict.",
        "schema": {"type": "string", "pattern": KEY_PATTERN.pattern},
    }
    return {
        "operationId": "get_key",
        "summary": "What is known of a key",
        "description": "Needs the scope `keys`. A key of another tenant is as unknown as any other.",
        "parameters": [key],
        "responses": {"200": answer(KeyReport), **refusals(*EVERYWHERE, 400, 404)},
    }


def _openapi() -> dict[str, Any]:
    itself = {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "operationId": "get_openapi",
        "summary": "This description",
        "security": [],
        "responses": {"200": itself, **refusals(405)},
    }

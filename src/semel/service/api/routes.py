"""The HTTP API as an ASGI application. Routes and the OpenAPI document are made from one table, `OPERATIONS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.ports import Catalog, Ledger, StoredOutbox, Telemetry
from semel.service.api.claim_shapes import (
    KEY_PATTERN,
    ClaimBatch,
    KeyReport,
    RenewAnswerBatch,
    RenewBatch,
    SettleAnswerBatch,
    SettleBatch,
    VerdictBatch,
)
from semel.service.api.claims import ClaimEndpoints, Claims
from semel.service.api.errors import (
    AGAIN_S,
    Refused,
    not_authenticated,
    on_bug,
    on_ledger_down,
    on_malformed,
    on_no_route,
    on_refused,
    refusal,
)
from semel.service.api.notification_shapes import (
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
from semel.service.api.notifications import (
    KEY_HEADER,
    LIST_QUERY,
    SHOW_QUERY,
    STATUS_QUERY,
    NotificationEndpoints,
    no_outbox,
)
from semel.service.api.openapi import Operation, Parameter, describe
from semel.service.api.requests import CREDENTIAL, Keyring, may
from semel.settings.schema import Token
from semel.values.delivery_state import ProviderAccess
from semel.values.errors import MalformedEvent, SemelError
from semel.values.strict_json import DOCUMENT_MAX_BYTES

IN_FLIGHT_MAX = 64  # concurrent requests: each may hold a body of 1 MiB and the values decoded from it

_KEY = Parameter("key", "path", "As in every verdict.", {"type": "string", "pattern": KEY_PATTERN.pattern})
_ID = Parameter("id", "path", "As in the response to its creation.", {"type": "string", "pattern": KEY_PATTERN.pattern})
_LOCATION = {"Location": "The URL of the notification."}
_AUDITED = "The token's name is kept with the reason."
_MASKED = "Recipients and contents are masked; `reveal` needs the scope `operate` too."

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/claims",
        handle=ClaimEndpoints.claim,
        id="claim_keys",
        scope="claims",
        summary="Request leases",
        request=ClaimBatch,
        response=VerdictBatch,
    ),
    Operation(
        method="POST",
        path="/v1/claims/settle",
        handle=ClaimEndpoints.settle,
        id="settle_leases",
        scope="claims",
        summary="End leases",
        request=SettleBatch,
        response=SettleAnswerBatch,
    ),
    Operation(
        method="POST",
        path="/v1/claims/renew",
        handle=ClaimEndpoints.renew,
        id="renew_leases",
        scope="claims",
        summary="Extend leases",
        request=RenewBatch,
        response=RenewAnswerBatch,
    ),
    Operation(
        method="GET",
        path="/v1/keys/{key}",
        handle=ClaimEndpoints.key,
        id="get_key",
        scope="keys",
        summary="Show the state and the history of a key",
        description="A key of another tenant is not found.",
        parameters=[_KEY],
        response=KeyReport,
        refusals=(400, 404),
    ),
    Operation(
        method="POST",
        path="/v1/notifications",
        handle=NotificationEndpoints.create,
        id="create_notification",
        scope="notify",
        summary="Send a message, once",
        description="The response is sent when the notification is durable. Its identity is tenant, key, kind, "
        "recipient and channel: the same call twice makes one notification. The key is `key` or `Idempotency-Key`; if "
        "both are present, they must be equal.",
        parameters=[KEY_HEADER],
        request=NewNotification,
        response=NotificationAdded,
        statuses=(200, 201),
        headers=_LOCATION,
        refusals=(422, 501),
    ),
    Operation(
        method="GET",
        path="/v1/notifications",
        handle=NotificationEndpoints.list,
        id="list_notifications",
        scope="notifications",
        summary="List notifications, the newest first",
        description=_MASKED,
        parameters=LIST_QUERY,
        response=NotificationPage,
        refusals=(400, 409, 501),
    ),
    Operation(
        method="GET",
        path="/v1/notifications/status",
        handle=NotificationEndpoints.status,
        id="get_notification_status",
        scope="notifications",
        summary="Look up whether a customer got a message",
        description="By `recipient`, by `recipient` and `kind`, or by `key`. `unknown` is not `never`: the message may "
        "have been sent.",
        parameters=STATUS_QUERY,
        response=NotificationStatus,
        refusals=(400, 501),
    ),
    Operation(
        method="POST",
        path="/v1/notifications/erase",
        handle=NotificationEndpoints.erase,
        id="erase_recipient",
        scope="operate",
        summary="Erase a recipient",
        description=f"{_AUDITED} Unsent notifications are cancelled. Identities are kept, so nothing is sent twice.",
        request=EraseRequest,
        response=RecipientErased,
        refusals=(501,),
    ),
    Operation(
        method="GET",
        path="/v1/notifications/{id}",
        handle=NotificationEndpoints.show,
        id="get_notification",
        scope="notifications",
        summary="Show a notification with all its attempts",
        description=_MASKED,
        parameters=[_ID, *SHOW_QUERY],
        response=NotificationReport,
        refusals=(400, 404, 501),
    ),
    Operation(
        method="POST",
        path="/v1/notifications/{id}/resolve",
        handle=NotificationEndpoints.resolve,
        id="resolve_notification",
        scope="operate",
        summary="Record the outcome of an uncertain notification",
        description=f"{_AUDITED} A pending notification can be given up. Repeating the call changes nothing.",
        parameters=[_ID],
        request=ResolveRequest,
        response=NotificationDecided,
        refusals=(404, 409, 501),
    ),
    Operation(
        method="POST",
        path="/v1/notifications/{id}/cancel",
        handle=NotificationEndpoints.cancel,
        id="cancel_notification",
        scope="operate",
        summary="Cancel a pending notification",
        description=f"{_AUDITED} If the outcome of an attempt is unknown, the notification becomes uncertain until it "
        "is resolved.",
        parameters=[_ID],
        request=CancelRequest,
        response=NotificationDecided,
        refusals=(404, 409, 501),
    ),
    Operation(
        method="POST",
        path="/v1/notifications/{id}/resend",
        handle=NotificationEndpoints.resend,
        id="resend_notification",
        scope="operate",
        summary="Send a notification again",
        description=f"{_AUDITED} Creates a new generation of the notification, which no guard suppresses. Repeating "
        "the call returns that generation. Refused while the notification is in flight or uncertain, after it was "
        "erased, and after its `not_after`.",
        parameters=[_ID],
        request=ResendRequest,
        response=NotificationResent,
        statuses=(200, 201),
        headers=_LOCATION,
        refusals=(404, 409, 501),
    ),
)


def description() -> dict[str, Any]:
    """The OpenAPI document."""
    return describe(OPERATIONS)


def api(
    ledger: Ledger,
    tokens: Sequence[Token] | Keyring,
    *,
    catalog: Catalog,
    outbox: StoredOutbox | None = None,
    body_max: int = DOCUMENT_MAX_BYTES,
    read_timeout: float = 10.0,
    max_in_flight: int = IN_FLIGHT_MAX,
    telemetry: Telemetry | None = None,
    access: ProviderAccess | None = None,
) -> Starlette:
    """Everything under /v1 for requests with a token, and /openapi.json for everyone. Without an outbox the paths of
    notifications answer 501. `access`: the providers of this process, and the tenants that each one serves."""
    keyring = tokens if isinstance(tokens, Keyring) else Keyring(tokens)
    claims = ClaimEndpoints(Claims(ledger, telemetry), catalog, body_max, read_timeout)
    routes = _routes(claims, "/v1/claims") + _routes(claims, "/v1/keys")
    if outbox is None:
        routes += [
            Route("/notifications", no_outbox, methods=["GET", "POST"]),
            Route("/notifications/{rest:path}", no_outbox, methods=["GET", "POST"]),
        ]
    else:
        notifications = NotificationEndpoints(outbox, body_max, read_timeout, access or ProviderAccess())
        routes += _routes(notifications, "/v1/notifications")
        before_id = [route.path for route in routes].index("/notifications/{id}")
        routes.insert(before_id, Route("/notifications/erase", _only_post, methods=["GET"]))  # `erase` is not an id
    document = msgspec.json.encode(description())

    async def openapi(_: Request) -> Response:
        return Response(document, media_type="application/json")

    app = Starlette(
        routes=[
            Route("/openapi.json", openapi, methods=["GET"]),
            Mount("/v1", app=_Guard(Router(routes, redirect_slashes=False), keyring, max_in_flight)),
        ],
        exception_handlers={
            Refused: on_refused,
            MalformedEvent: on_malformed,
            SemelError: on_ledger_down(),  # any error of the store: it may be repaired while the service runs
            HTTPException: on_no_route,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False
    return app


def _routes(endpoints: object, prefix: str) -> list[Route]:
    """One route per path, so that the Allow header of a 405 names all its methods."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        if operation.path.startswith(prefix):
            paths.setdefault(operation.path.removeprefix("/v1"), {})[operation.method] = operation
    return [Route(path, _dispatch(endpoints, methods), methods=list(methods)) for path, methods in paths.items()]


def _dispatch(endpoints: object, methods: dict[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
    async def dispatch(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        response: Response = await operation.handle(endpoints, request, may(request, operation.scope))
        return response

    return dispatch


async def _only_post(_: Request) -> Response:
    raise HTTPException(405, headers={"Allow": "POST"})


class _Guard:
    """Admits requests with a valid token, up to `max_in_flight` at a time. Nothing of a request is read before that."""

    def __init__(self, app: ASGIApp, keyring: Keyring, max_in_flight: int) -> None:
        self._app = app
        self._keyring = keyring
        self._max_in_flight = max_in_flight
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # the router refuses everything else
            return
        authorization: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
        # Two headers of this name are ambiguous: neither is used.
        credential = self._keyring.authenticate(authorization[0] if len(authorization) == 1 else None)
        if credential is None:
            await not_authenticated(len(self._keyring) > 0)(scope, receive, send)
            return
        if self._in_flight >= self._max_in_flight:
            busy = refusal(429, "too many concurrent requests; nothing was done", {"Retry-After": AGAIN_S})
            await busy(scope, receive, send)
            return
        scope[CREDENTIAL] = credential
        self._in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1

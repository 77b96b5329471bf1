"""The API as an ASGI application: who may ask, what is asked, what is answered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from semel.ports import Catalog, Entry, Ledger, StoredOutbox, Telemetry
from semel.service.api.claim_shapes import KEY_PATTERN, ClaimBatch, KeyLine, KeyReport, RenewBatch, SettleBatch
from semel.service.api.claims import Claims
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
from semel.service.api.notifications import Sending, without_outbox
from semel.service.api.openapi import description
from semel.service.api.requests import CREDENTIAL, Keyring, may, read, time_text, told
from semel.settings.schema import Token
from semel.values.delivery_state import ProviderAccess
from semel.values.errors import MalformedEvent, SemelError
from semel.values.strict_json import DOCUMENT_MAX_BYTES

IN_FLIGHT_MAX = 64  # requests at a time: each may hold a body of 1 MiB and what is made of it

_encode = msgspec.json.Encoder().encode


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
    """Everything under /v1, for those who have a token, and /openapi.json for everybody. Without an outbox the paths of
    notifications say so. `access`: the providers of this process, and the tenants that each one serves."""
    keyring = tokens if isinstance(tokens, Keyring) else Keyring(tokens)
    endpoints = _Endpoints(Claims(ledger, telemetry), catalog, body_max, read_timeout)
    sending = (
        without_outbox()
        if outbox is None
        else Sending(outbox, body_max, read_timeout, access or ProviderAccess()).routes()
    )
    described = _encode(description())

    async def openapi(_: Request) -> Response:
        return Response(described, media_type="application/json")

    inside = Router(
        [
            Route("/claims", endpoints.claim, methods=["POST"]),
            Route("/claims/settle", endpoints.settle, methods=["POST"]),
            Route("/claims/renew", endpoints.renew, methods=["POST"]),
            Route("/keys/{key}", endpoints.key, methods=["GET"]),
            *sending,
        ],
        redirect_slashes=False,
    )
    app = Starlette(
        routes=[
            Route("/openapi.json", openapi, methods=["GET"]),
            Mount("/v1", app=_Guard(inside, keyring, max_in_flight)),
        ],
        exception_handlers={
            Refused: on_refused,
            MalformedEvent: on_malformed,
            SemelError: on_ledger_down(),  # of the store, whatever it is: it may be put right while we run
            HTTPException: on_no_route,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Guard:
    """Lets in whoever has a token, and not too many at a time. Nothing of a request is read before that."""

    def __init__(self, app: ASGIApp, keyring: Keyring, max_in_flight: int) -> None:
        self._app = app
        self._keyring = keyring
        self._max_in_flight = max_in_flight
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # there is nothing else inside, and the router says so
            return
        credential = self._keyring.authenticate(_authorization(scope))
        if credential is None:
            await not_authenticated(len(self._keyring) > 0)(scope, receive, send)
            return
        if self._in_flight >= self._max_in_flight:
            busy = refusal(429, "too many requests at a time; nothing was done", {"Retry-After": AGAIN_S})
            await busy(scope, receive, send)
            return
        scope[CREDENTIAL] = credential
        self._in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1


def _authorization(scope: Scope) -> bytes | None:
    """The one header of this name. Of two, nobody could say which one counts."""
    found: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[0] if len(found) == 1 else None


class _Endpoints(Struct, frozen=True):
    """What is behind each path."""

    claims: Claims
    catalog: Catalog
    body_max: int
    read_timeout: float

    async def claim(self, request: Request) -> Response:
        tenant = may(request, "claims").tenant
        verdicts = await self.claims.claim(tenant, await read(request, ClaimBatch, self.body_max, self.read_timeout))
        if await request.is_disconnected():
            await self.claims.take_back(tenant, verdicts)
        return told(verdicts)

    async def settle(self, request: Request) -> Response:
        tenant = may(request, "claims").tenant
        batch = await read(request, SettleBatch, self.body_max, self.read_timeout)
        return told(await self.claims.settle(tenant, batch))

    async def renew(self, request: Request) -> Response:
        tenant = may(request, "claims").tenant
        batch = await read(request, RenewBatch, self.body_max, self.read_timeout)
        return told(await self.claims.renew(tenant, batch))

    async def key(self, request: Request) -> Response:
        tenant = may(request, "keys").tenant
        key = request.path_params["key"]
        if not KEY_PATTERN.fullmatch(key):
            raise Refused(400, "a key is 32 hexadecimal digits, in lower case")
        history = [entry for entry in await self.catalog.history(key) if entry.tenant == tenant]
        if not history:
            raise Refused(404, "nothing is known of this key")
        return told(_report(history))


def _report(history: Sequence[Entry]) -> KeyReport:
    newest = history[0]
    return KeyReport(newest.key, newest.handler, newest.text, newest.state, [_line(entry) for entry in history])


def _line(entry: Entry) -> KeyLine:
    return KeyLine(
        state=entry.state,
        reason=entry.reason,
        attempts=entry.attempts,
        at=time_text(entry.at_ms),
        generation=entry.generation,
        decision=entry.decision,
        result=Raw(entry.result or b"null"),
    )

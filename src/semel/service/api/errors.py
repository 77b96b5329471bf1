"""Refusals of the API, as problem details (RFC 9457). The OpenAPI document uses the same titles."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from semel.service.responses import PROBLEM_JSON, problem
from semel.values.errors import MalformedEvent
from semel.values.log import IncidentLog

AGAIN_S = "1"  # Retry-After, in seconds: most disturbances are shorter

DETAIL_MAX_CHARS = 400

# A lease that is granted too late is released. A notification or a decision that is written too late stays.
UNDECIDED = "nothing was decided; send the same request again"
UNSURE = "the outcome is unknown; send the same request again, and it takes effect once"

TITLES = {
    400: "Malformed request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Not JSON",
    422: "Same key, other content",
    429: "Too many requests",
    500: "Internal error",
    501: "No outbox",
    503: "The ledger is unavailable",
}


class Refused(Exception):
    """Ends a request with this refusal."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


def refusal(status: int, detail: str, headers: dict[str, str] | None = None, **more: str) -> Response:
    """`more` are further members of the problem, for programs."""
    body = problem(status, TITLES.get(status, "Refused"), detail, **more)
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, PROBLEM_JSON)


def not_authenticated(any_tokens: bool) -> Response:
    """A constant response: a guesser learns nothing from it."""
    detail = (
        "send a token of this service: Authorization: Bearer …"
        if any_tokens
        else "no tokens are configured, so every request is refused: add [[tokens]] to semel.toml"
    )
    return refusal(401, detail, {"WWW-Authenticate": 'Bearer realm="semel"'})


def on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error.status, error.detail, error.headers)


def on_malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, MalformedEvent)
    detail = str(error)
    if len(detail) > DETAIL_MAX_CHARS:  # an unknown field name may be as long as the body
        detail = detail[:DETAIL_MAX_CHARS] + "…"
    return refusal(400, f"{detail}. Nothing was done")


def on_ledger_down() -> Callable[[Request, Exception], Response]:
    """The response does not name the store or its error; the log does."""
    incident = IncidentLog("api_unavailable")

    def down(request: Request, error: Exception) -> Response:
        incident.report(str(error))
        written = request.method == "POST" and "/notifications" in request.url.path
        return refusal(503, UNSURE if written else UNDECIDED, {"Retry-After": AGAIN_S})

    return down


def on_no_route(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, as Starlette finds them."""
    assert isinstance(error, HTTPException)
    detail = (
        "the paths of this API are in /openapi.json"
        if error.status_code == 404
        else f"{request.method} is not allowed for this path"
    )
    return refusal(error.status_code, detail, dict(error.headers or {}))


def on_bug(_: Request, __: Exception) -> Response:
    return refusal(500, "an error of the service, not of the request; see its log")

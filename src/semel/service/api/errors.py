"""Every way in which the API says no. One place, so that the OpenAPI description and the answers cannot drift apart."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from semel.service.responses import PROBLEM_JSON, problem
from semel.values.errors import MalformedEvent
from semel.values.log import IncidentLog

AGAIN_S = "1"  # Retry-After, in seconds: what is short is mostly over by then

SAID_MAX_CHARS = 400

# A claim that is answered too late goes back. What was added, or said by a person, stays.
UNDECIDED = "nothing was decided; send the same request again"
UNSURE = "whether it was done is not known; send the same request again, and it is done once"

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
    """The request ends here, with this answer."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


def refusal(status: int, detail: str, headers: dict[str, str] | None = None, **more: str) -> Response:
    """`more` are further names in the problem: what a program may want to know."""
    body = problem(status, TITLES.get(status, "Refused"), detail, **more)
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, PROBLEM_JSON)


def not_authenticated(any_tokens: bool) -> Response:
    """Constant: it tells nobody how close they came."""
    detail = (
        "send a token of this service: Authorization: Bearer …"
        if any_tokens
        else "no tokens are configured, so nobody is let in: add [[tokens]] to semel.toml"
    )
    return refusal(401, detail, {"WWW-Authenticate": 'Bearer realm="semel"'})


def on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error.status, error.detail, error.headers)


def on_malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, MalformedEvent)
    said = str(error)
    if len(said) > SAID_MAX_CHARS:  # a name that we do not know may be as long as the body
        said = said[:SAID_MAX_CHARS] + "…"
    return refusal(400, f"{said}. Nothing was done")


def on_ledger_down() -> Callable[[Request, Exception], Response]:
    """Which store it is, and what ails it, is nothing for those outside: the log has it."""
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
        else f"{request.method} is not a method of this path"
    )
    return refusal(error.status_code, detail, dict(error.headers or {}))


def on_bug(_: Request, __: Exception) -> Response:
    return refusal(500, "this is a mistake of the service, not of the request; its log says more")

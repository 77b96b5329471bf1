"""The words of an OpenAPI description: answers, refusals, references."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from semel.service.api.refusals import TITLES
from semel.service.api.shapes import Problem
from semel.service.problems import PROBLEM_JSON

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

"""The description of the API, OpenAPI 3.1, made from the shapes that requests are checked against."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from semel.service.api.refusals import TITLES
from semel.service.api.shapes import (
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
from semel.service.problems import PROBLEM_JSON

_ABOUT = (
    "Act once on every event: claim a key, do the work if it is granted, settle. All times are seconds. "
    "A batch of which one item is malformed is refused as a whole, before anything is done."
)
_BEARER = "A token of semel.toml. Its tenant is part of every key, and its scopes say what it may do."

_ROOT = "#/components/schemas/{name}"
_SHAPES = (ClaimBatch, VerdictBatch, SettleBatch, SettleAnswerBatch, RenewBatch, RenewAnswerBatch, KeyReport, Problem)

_EVERYWHERE = (401, 403, 405, 429, 503)
_WITH_BODY = (400, 408, 413, 415)
_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate."},
    403: {"WWW-Authenticate": "Which scope is missing."},
    405: {"Allow": "The methods of this path."},
    429: {"Retry-After": "Seconds."},
    503: {"Retry-After": "Seconds."},
}


def description() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(_SHAPES, ref_template=_ROOT)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Semel",
            "version": version("semel"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": {
            "/v1/claims": {"post": _batch("claim", "Ask for leases", ClaimBatch, VerdictBatch)},
            "/v1/claims/settle": {"post": _batch("settle", "End leases", SettleBatch, SettleAnswerBatch)},
            "/v1/claims/renew": {"post": _batch("renew", "Extend leases", RenewBatch, RenewAnswerBatch)},
            "/v1/keys/{key}": {"get": _key()},
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


def _batch(name: str, summary: str, asked: type[Struct], told: type[Struct]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "description": "Needs the scope `claims`.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": _reference(asked)}}},
        "responses": {"200": _told(told), **_refusals(*_EVERYWHERE, *_WITH_BODY)},
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
        "operationId": "key",
        "summary": "What is known of a key",
        "description": "Needs the scope `keys`. A key of another tenant is as unknown as any other.",
        "parameters": [key],
        "responses": {"200": _told(KeyReport), **_refusals(*_EVERYWHERE, 400, 404)},
    }


def _openapi() -> dict[str, Any]:
    answer = {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "operationId": "openapi",
        "summary": "This description",
        "security": [],
        "responses": {"200": answer, **_refusals(405)},
    }


def _told(shape: type[Struct]) -> dict[str, Any]:
    first_line = (shape.__doc__ or "").partition("\n")[0]
    return {"description": first_line, "content": {"application/json": {"schema": _reference(shape)}}}


def _refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): _refusal(status) for status in sorted(statuses)}


def _refusal(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": TITLES[status],
        "content": {PROBLEM_JSON: {"schema": _reference(Problem)}},
    }
    if headers := _HEADERS.get(status):
        answer["headers"] = {
            name: {"description": says, "required": True, "schema": {"type": "string"}}
            for name, says in headers.items()
        }
    return answer


def _reference(shape: type[Struct]) -> dict[str, str]:
    return {"$ref": _ROOT.format(name=shape.__name__)}

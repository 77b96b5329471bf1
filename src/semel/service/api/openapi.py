"""The description of the API, OpenAPI 3.1, made from the shapes that requests are checked against."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from semel.service.api import notification_paths
from semel.service.api.describing import EVERYWHERE, ROOT, WITH_BODY, answer, body, refusals
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

_ABOUT = (
    "Act once on every event: claim a key, do the work if it is granted, settle. Message a customer once: create a "
    "notification, ask whether it was sent. Durations are seconds. A request that is malformed is refused as a whole, "
    "before anything is done."
)
_BEARER = "A token of semel.toml. Its tenant is part of every key, and its scopes say what it may do."

_SHAPES = (
    *(ClaimBatch, VerdictBatch, SettleBatch, SettleAnswerBatch, RenewBatch, RenewAnswerBatch, KeyReport, Problem),
    *notification_paths.SHAPES,
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
            "/v1/claims": {"post": _batch("claim", "Ask for leases", ClaimBatch, VerdictBatch)},
            "/v1/claims/settle": {"post": _batch("settle", "End leases", SettleBatch, SettleAnswerBatch)},
            "/v1/claims/renew": {"post": _batch("renew", "Extend leases", RenewBatch, RenewAnswerBatch)},
            "/v1/keys/{key}": {"get": _key()},
            **notification_paths.paths(),
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
        "operationId": "key",
        "summary": "What is known of a key",
        "description": "Needs the scope `keys`. A key of another tenant is as unknown as any other.",
        "parameters": [key],
        "responses": {"200": answer(KeyReport), **refusals(*EVERYWHERE, 400, 404)},
    }


def _openapi() -> dict[str, Any]:
    itself = {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "operationId": "openapi",
        "summary": "This description",
        "security": [],
        "responses": {"200": itself, **refusals(405)},
    }

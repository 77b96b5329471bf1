"""OpenAPI 3.1, made from the route table and from the shapes that requests are checked against."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from semel.service.api.claim_shapes import Problem
from semel.service.api.errors import TITLES
from semel.service.responses import PROBLEM_JSON

REFERENCE = "#/components/schemas/{name}"
ALWAYS = (401, 403, 405, 429, 503)
WITH_BODY = (400, 408, 413, 415)
_REFUSAL_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate."},
    403: {"WWW-Authenticate": "Which scope is missing."},
    405: {"Allow": "The methods of this path."},
    429: {"Retry-After": "Seconds."},
    503: {"Retry-After": "Seconds."},
}
_ABOUT = (
    "Act once on every event: claim a key, do the work if the claim is granted, settle. Message a customer once: "
    "create a notification, look up whether it was sent. Durations are seconds. A malformed request is refused "
    "as a whole, before anything is done."
)
_BEARER = "A token of semel.toml. Its tenant is part of every key, and its scopes are its permissions."


class Parameter(Struct, frozen=True):
    """A parameter of an operation, outside of its body."""

    name: str
    where: str  # path, query or header
    description: str
    schema: dict[str, Any]


class Operation(Struct, frozen=True, kw_only=True):
    """A row of the route table: one method of one path."""

    method: str
    path: str
    handle: Callable[..., Awaitable[Any]]  # a method of the endpoints, with the request and its credential
    id: str
    scope: str  # that a token needs
    summary: str
    description: str = ""  # after the sentence about the scope
    parameters: Sequence[Parameter] = ()
    request: type[Struct] | None = None
    response: type[Struct]
    statuses: Sequence[int] = (200,)
    headers: dict[str, str] = {}  # of a response that is not refused, with their descriptions
    refusals: Sequence[int] = ()  # beside ALWAYS and WITH_BODY

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": self.id,
            "summary": self.summary,
            "description": f"Needs the scope `{self.scope}`. {self.description}".strip(),
        }
        if self.parameters:
            described["parameters"] = [
                {
                    "name": parameter.name,
                    "in": parameter.where,
                    "required": parameter.where == "path",
                    "description": parameter.description,
                    "schema": parameter.schema,
                }
                for parameter in self.parameters
            ]
        if self.request is not None:
            described["requestBody"] = {"required": True, "content": _content("application/json", self.request)}
        summary = (self.response.__doc__ or "").partition("\n")[0]
        responses = {
            str(status): _response(summary, "application/json", self.response, self.headers) for status in self.statuses
        }
        refused = {*ALWAYS, *self.refusals, *(() if self.request is None else WITH_BODY)}
        described["responses"] = {**responses, **{str(status): _refusal(status) for status in sorted(refused)}}
        return described


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of these operations and of /openapi.json itself."""
    shapes = {shape for operation in operations for shape in (operation.request, operation.response) if shape}
    _, schemas = msgspec.json.schema_components(
        [*sorted(shapes, key=lambda shape: shape.__name__), Problem], ref_template=REFERENCE
    )
    _complete_arrays(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.describe()
    itself = {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}
    paths["/openapi.json"] = {
        "get": {
            "operationId": "get_openapi",
            "summary": "This description",
            "security": [],
            "responses": {"200": itself, "405": _refusal(405)},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Semel",
            "version": version("semel"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The service that serves this description."}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": _BEARER}},
        },
    }


def _refusal(status: int) -> dict[str, Any]:
    return _response(TITLES[status], PROBLEM_JSON, Problem, _REFUSAL_HEADERS.get(status, {}))


def _response(description: str, media_type: str, shape: type[Struct], headers: dict[str, str]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": description, "content": _content(media_type, shape)}
    if headers:
        response["headers"] = {
            name: {"description": text, "required": True, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return response


def _content(media_type: str, shape: type[Struct]) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": REFERENCE.format(name=shape.__name__)}}}


def _complete_arrays(schema: Any) -> None:
    """Give every array its items. JSON Schema allows arrays without them, but client generators skip each operation
    that uses such a schema."""
    match schema:
        case dict():
            if schema.get("type") == "array":
                schema.setdefault("items", {})
            for inside in schema.values():
                _complete_arrays(inside)
        case list():
            for inside in schema:
                _complete_arrays(inside)

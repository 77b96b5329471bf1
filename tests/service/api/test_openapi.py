"""The description says what is checked, and what is checked is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from tests.service.api.live import PATIENCE_S, Client, api_on

from semel.service.api.errors import TITLES
from semel.service.api.routes import description
from semel.service.responses import problem

DESCRIBED = description()

EXERCISE = """
import msgspec
from semel.service.api import claim_shapes, notification_shapes
from semel.service.api.routes import description
item = {"handler": "h", "key": ["a", "b"], "order": {"subject": "s", "position": 1.0}}
msgspec.convert({"items": [item]}, claim_shapes.ClaimBatch)
msgspec.convert({"items": [{"lease": "x", "outcome": "done"}]}, claim_shapes.SettleBatch)
one = {"kind": "k", "recipient": "r", "channel": "sms", "key": "k", "body": "b", "not_after": "2030-01-01T00:00:00Z"}
msgspec.convert({**one, "guard": {"window_s": 1, "key": "g"}}, notification_shapes.NewNotification)
description()
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with api_on(tmp_path_factory.mktemp("openapi")) as client:
        yield client


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    reference = {"$ref": f"#/components/schemas/{name}", "components": DESCRIBED["components"]}
    return jsonschema_rs.Draft202012Validator(reference)


def everything_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inside in value.items():
            yield name, inside
            yield from everything_in(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from everything_in(inside)


def test_every_reference_leads_somewhere() -> None:
    references = [inside for name, inside in everything_in(DESCRIBED) if name == "$ref"]
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in DESCRIBED["components"]["schemas"]


@pytest.mark.parametrize("name", DESCRIBED["components"]["schemas"])
def test_every_schema_is_one(name: str) -> None:
    jsonschema_rs.meta.validate(
        {**DESCRIBED["components"]["schemas"][name], "$schema": "https://json-schema.org/draft/2020-12/schema"}
    )


def test_every_operation_tells_its_refusals_as_problems() -> None:
    for path, operations in DESCRIBED["paths"].items():
        for operation in operations.values():
            refusals = {status: answer for status, answer in operation["responses"].items() if status >= "300"}
            for status, answer in refusals.items():
                assert list(answer["content"]) == ["application/problem+json"], (path, status)
                assert answer["description"] == TITLES[int(status)]
            if path.startswith("/v1"):
                assert {"401", "403", "405", "429", "503"} <= set(refusals)
                assert operation.get("security", DESCRIBED["security"]) == [{"bearer": []}]
            else:
                assert operation["security"] == []


def test_the_served_document_is_the_description(client: Client) -> None:
    assert Client(client.port, None).ask("GET", "/openapi.json").json() == DESCRIBED
    assert Client(client.port, None).ask("HEAD", "/openapi.json").status == 200


@pytest.mark.parametrize("key", ["k", ["k"], ["", "k"], "Grüße, 世界", ["k"] * 16])
def test_requests_that_match_the_description_are_accepted(client: Client, key: Any) -> None:
    body = {"items": [{"handler": "h", "key": key}]}
    assert validator("ClaimBatch").is_valid(body)
    reply = client.ask("POST", "/v1/claims", body)
    assert reply.status == 200
    assert validator("VerdictBatch").is_valid(reply.json())


@pytest.mark.parametrize("key", ["", [], [""], ["", ""], "a\nb", "a\x7f", ["a\x9f"], "k" * 256, ["k"] * 17, 7, None])
def test_requests_that_violate_the_description_are_refused(client: Client, key: Any) -> None:
    body = {"items": [{"handler": "h", "key": key}]}
    assert not validator("ClaimBatch").is_valid(body)
    assert client.ask("POST", "/v1/claims", body).status == 400


def test_a_problem_matches_the_description() -> None:
    told = json.loads(problem(400, "Malformed request", "no key", at="items[0]"))
    assert validator("Problem").is_valid(told)
    assert told == {
        "type": "about:blank",
        "title": "Malformed request",
        "status": 400,
        "detail": "no key",
        "at": "items[0]",
    }


def test_the_shapes_do_not_break_the_process_when_it_ends() -> None:
    """msgspec frees some unions wrongly; with Python's own checks of its memory that is seen every time."""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    run = subprocess.run([sys.executable, "-c", EXERCISE], env=environment, capture_output=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr[-2000:]


def test_every_field_of_a_request_has_a_description() -> None:
    told = ("NewNotification", "GuardItem", "ResolveRequest", "CancelRequest", "ResendRequest", "EraseRequest")
    for name in ("ClaimItem", "OrderItem", "SettleDone", "SettleRetry", "SettleReject", *told):
        schema = DESCRIBED["components"]["schemas"][name]
        assert re.match(r"[A-Z].*[.?]", schema["description"]), name
        assert schema["additionalProperties"] is False


# ------------------------------------------------------------------------------------------------ generated clients


def type_of(schema: dict[str, Any], at: str) -> str:
    """The type that a generator of clients writes for a schema; it fails where one would leave the operation out."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/components/schemas/")
        assert name in DESCRIBED["components"]["schemas"], at
        return name
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(type_of(one, f"{at}/{union}/{index}") for index, one in enumerate(schema[union]))
    if "enum" in schema:
        return "enum"
    match schema.get("type"):
        case "array":
            assert "items" in schema, f"{at}: an array of what?"
            return f"list[{type_of(schema['items'], at + '/items')}]"
        case "object":
            for name, one in schema.get("properties", {}).items():
                type_of(one, f"{at}/{name}")
            return "object"
        case "string" | "integer" | "number" | "boolean" | "null" as plain:
            return str(plain)
        case None:
            return "any"
        case other:
            raise AssertionError(f"{at}: {other!r} is no single type")


@pytest.mark.parametrize("name", DESCRIBED["components"]["schemas"])
def test_a_generator_of_clients_can_write_every_schema(name: str) -> None:
    type_of(DESCRIBED["components"]["schemas"][name], name)


def test_a_generator_of_clients_can_write_every_operation() -> None:
    for path, operations in DESCRIBED["paths"].items():
        for method, operation in operations.items():
            at = f"{method} {path}"
            assert operation["operationId"].isidentifier(), at
            for parameter in operation.get("parameters", []):
                type_of(parameter["schema"], f"{at} {parameter['name']}")
            for answer in [operation.get("requestBody", {}), *operation["responses"].values()]:
                for media in answer.get("content", {}).values():
                    type_of(media["schema"], at)


def test_a_client_knows_where_the_service_is(client: Client) -> None:
    (server,) = client.ask("GET", "/openapi.json").json()["servers"]
    assert server["url"] == "/", "relative to where the description comes from"

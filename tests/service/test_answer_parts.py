"""The HTTP answer to an event with several handlers names each of them, whatever the status is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.service.responses import response_for
from semel.values.outcome import Outcome, Status, combine

SECRET = "KeyError: +4917012345678"  # of a handler's exception


def body(*parts: Outcome) -> tuple[int, dict[str, Any]]:
    told = response_for(combine(list(parts)), busy_status=409)
    return told.status, json.loads(told.body)


def part(status: Status, handler: str, reason: str = "") -> Outcome:
    return Outcome(status, handler=handler, key=f"key of {handler}", reason=reason, after=1.0)


@pytest.mark.parametrize(("status", "http_status"), [("retry", 503), ("busy", 409), ("conflict", 422)])
def test_a_refusal_names_every_handler(status: Status, http_status: int) -> None:
    told, document = body(part("done", "audit"), part(status, "crm"))
    assert told == document["status"] == http_status
    assert {one["handler"]: one["status"] for one in document["parts"]} == {"audit": "processed", "crm": status}
    assert {one["key"] for one in document["parts"]} == {"key of audit", "key of crm"}


def test_a_part_of_a_duplicate_has_its_reason() -> None:
    _, document = body(part("duplicate", "audit", "done before: x"), part("duplicate", "crm", "given up before: y"))
    assert [one["reason"] for one in document["parts"]] == ["done before", "given up before"]


@pytest.mark.parametrize("status", ["retry", "busy", "dead", "uncertain"])
def test_no_part_contains_the_text_of_an_exception(status: Status) -> None:
    told = response_for(combine([part("done", "audit"), part(status, "crm", SECRET)]), busy_status=503)
    assert SECRET.encode() not in told.body


@pytest.mark.parametrize("status", ["retry", "busy", "conflict"])
def test_one_handler_needs_no_parts(status: Status) -> None:
    assert "parts" not in json.loads(response_for(part(status, "crm"), busy_status=503).body)

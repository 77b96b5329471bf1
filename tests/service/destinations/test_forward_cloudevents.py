"""CloudEvents that are forwarded: the official SDK of the receiver reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings import http
from tests.envelopes.test_cloudevents_modes import ATTRIBUTES, DATA, cloud_event
from tests.service.destinations.servers import Request
from tests.service.destinations.test_forward_answers import sent

from semel.envelopes import decode
from semel.values.event import Event
from semel.values.secret import Secret


def arrived(name: str, mode: str) -> Event:
    write = http.to_binary_event if mode == "binary" else http.to_structured_event
    message = write(cloud_event(name))
    return decode(message.body, headers=message.headers)


def read(request: Request) -> Any:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return http.from_http_event(http.HTTPMessage(headers, request.body))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_the_official_sdk_reads_a_forwarded_event(name: str, mode: str) -> None:
    request = sent(arrived(name, mode))
    assert request.headers["Content-Type"] == "application/cloudevents+json"
    event = read(request)
    assert event.get_data() == DATA[name][1]
    assert {key: event.get_attributes()[key] for key in ATTRIBUTES} == ATTRIBUTES
    assert event.get_attributes().get("datacontenttype") == DATA[name][0]


def test_a_selected_part_is_json_and_a_configured_content_type_is_kept() -> None:
    event = arrived("json", "structured")
    selected = sent(event, select="data")
    assert selected.headers["Content-Type"] == "application/json"
    assert json.loads(selected.body) == DATA["json"][1]
    configured = sent(event, headers={"Content-Type": Secret("application/json")})
    assert configured.headers["Content-Type"] == "application/json"

"""CloudEvents in every mode and over every binding, as the official SDK writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from semel.envelopes import decode
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.event import Event

ATTRIBUTES = {
    "specversion": "1.0",
    "id": "A 234",
    "source": "/sensors/é",
    "type": "com.example.note",
    "subject": 'Euro € 😀 "100%"',
    "time": datetime(2026, 1, 1, 12, 30, tzinfo=UTC),
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
}
DATA: Mapping[str, tuple[str | None, Any]] = {
    "json": ("application/json", {"x": 1, "é": [True, None]}),
    "json by suffix": ("application/vnd.example+json; charset=utf-8", {"x": 1}),
    "text": ("text/plain", "Grüße"),
    "xml": ("application/xml", '<much wow="xml"/>'),
    "xml by suffix": ("application/soap+xml; charset=UTF-8", "<x/>"),
    "bytes": ("application/octet-stream", b"\x00\xff"),
    "no content type": (None, b"\x01\x02"),
    "nothing": (None, None),
}


def cloud_event(name: str) -> CloudEvent:
    content_type, data = DATA[name]
    return CloudEvent({**ATTRIBUTES, **({"datacontenttype": content_type} if content_type else {})}, data)


def over_http(event: CloudEvent) -> Event:
    message = http.to_binary_event(event)
    return decode(message.body, headers=message.headers)


def over_kafka(event: CloudEvent) -> Event:
    message = kafka.to_binary_event(event)
    return decode(structured(message.value or None, message.headers))


def over_amqp(event: CloudEvent) -> Event:
    message = amqp.to_binary_event(event)
    content_type = message.properties.get("content-type", "")
    return decode(structured(message.application_data, message.application_properties, content_type))


def over_rabbitmq(event: CloudEvent) -> Event:
    message = rabbitmq.to_binary_event(event)
    return decode(structured(message.body, message.headers, message.content_type or ""))


def structured(body: bytes | None, properties: Mapping[str, Any], content_type: str = "") -> bytes:
    document = from_message(body, properties.items(), content_type)
    assert document is not None
    return document


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("binding", [over_http, over_kafka, over_amqp, over_rabbitmq])
def test_every_binding_in_binary_mode_is_the_structured_event(
    binding: Callable[[CloudEvent], Event], name: str
) -> None:
    event = cloud_event(name)
    binary, whole = binding(event), decode(http.to_structured_event(event).body)
    for member in ("type", "identity", "subject", "time", "source", "origin", "delivery_id", "shape", "body"):
        assert getattr(binary, member) == getattr(whole, member), member
    assert binary.payload() == whole.payload()
    assert binary.subject == ATTRIBUTES["subject"]
    assert binary.field("traceparent") == ATTRIBUTES["traceparent"]
    assert decode(binary.raw) == binary, "it can be replayed from what is stored of it"


@pytest.mark.parametrize("name", DATA)
def test_the_official_sdk_reads_a_stored_binary_event(name: str) -> None:
    stored = over_http(cloud_event(name)).raw
    read = http.from_http_event(http.HTTPMessage({"content-type": "application/cloudevents+json"}, stored))
    assert read.get_data() == DATA[name][1]
    assert {key: value for key, value in read.get_attributes().items() if key in ATTRIBUTES} == ATTRIBUTES


def test_the_payload_of_an_event_without_data_is_nothing() -> None:
    """So a retry with another traceparent has the same fingerprint."""
    first, second = cloud_event("nothing"), CloudEvent({**ATTRIBUTES, "traceparent": "00-1-2-00"}, None)
    for way in (over_http, over_kafka, lambda event: decode(http.to_structured_event(event).body)):
        one, other = way(first), way(second)
        assert (one.body, one.payload()) == (None, other.payload())


@pytest.mark.parametrize(
    "content_type", ["application/cloudevents+json", "Application/CloudEvents+JSON; charset=utf-8"]
)
def test_a_structured_event_with_attributes_in_headers_beside_it_is_structured(content_type: str) -> None:
    body = http.to_structured_event(cloud_event("json")).body
    headers = {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "/other", "ce-type": "other"}
    assert decode(body, headers={**headers, "Content-Type": content_type}) == decode(body)
    brokers = {name.replace("-", "_"): value.encode() for name, value in headers.items()}
    assert from_message(body, [*brokers.items(), ("content-type", content_type.encode())]) is None
    assert from_message(body, [("cloudEvents:specversion", "1.0"), ("cloudEvents:id", "o")], content_type) is None


HEADERS = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),  # the specification's own example
        ("euro%e2%82%ac", "euro€"),
        ("%41%42", "AB"),
        ('"hello world"', "hello world"),
        (r'"say \"hi\" \\ 50%25"', 'say "hi" \\ 50%'),
        ('"Euro%20%E2%82%AC"', "Euro €"),
        ("100%", "100%"),
        ("%2525", "%25"),
    ],
)
def test_http_attributes_are_unquoted_and_then_percent_decoded_once(value: str, subject: str) -> None:
    assert decode(b"", headers={**HEADERS, "ce-subject": value}).subject == subject


@pytest.mark.parametrize("value", ["%C0%A0", "%ff", "%E2%82", "\xe9", "€", "%ED%A0%80"])
def test_http_attributes_that_are_not_utf_8_are_refused(value: str) -> None:
    with pytest.raises(MalformedEvent, match="ce-subject"):
        decode(b"", headers={**HEADERS, "ce-subject": value})


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents:", "cloudEvents_"])
def test_attributes_of_other_transports_are_not_percent_decoded(prefix: str) -> None:
    properties = {prefix + name[3:]: value for name, value in HEADERS.items()} | {f"{prefix}subject": '"%41"'}
    assert decode(structured(None, properties)).subject == '"%41"'


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("time", 1_767_270_600_000, "2026-01-01T12:30:00Z"),  # AMQP 1.0: milliseconds
        ("time", datetime(2026, 1, 1, 12, 30, tzinfo=UTC), "2026-01-01T12:30:00Z"),
        ("sequence", 5, "5"),
        ("sampled", True, "true"),
        ("note", "Grüße".encode(), "Grüße"),
        ("note", bytearray(b"x"), "x"),
    ],
)
def test_native_types_of_amqp_become_their_canonical_text(name: str, value: Any, text: str) -> None:
    properties = {f"cloudEvents_{header[3:]}": value for header, value in HEADERS.items()}
    assert decode(structured(None, {**properties, f"cloudEvents_{name}": value})).field(name) == text


@pytest.mark.parametrize("value", [b"\xff", {"a": 1}, [1], 1.5, "\ud800"])
def test_a_broker_attribute_that_is_no_text_is_refused(value: Any) -> None:
    properties = {f"ce_{header[3:]}": value for header, value in HEADERS.items()}
    with pytest.raises(MalformedEvent):
        from_message(b"", {**properties, "ce_subject": value}.items())


NAMES = ["specversion", "id", "source", "type", "time", "subject", "data", "data_base64", "datacontenttype", "\ud800"]
VALUES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
)
PROPERTIES = st.lists(
    st.tuples(
        st.builds(str.__add__, st.sampled_from(["ce_", "ce-", "CE_", "cloudEvents:", "x"]), st.sampled_from(NAMES))
        | st.just("Content-Type"),
        VALUES | st.just("1.0") | st.sampled_from(["application/json", "text/plain; charset", "a/xml;charset=utf-8"]),
    ),
    max_size=8,
)


@given(st.none() | st.binary(max_size=20) | st.just(b'{"a":1}'), PROPERTIES, st.sampled_from(["", "text/x", ";"]))
def test_any_broker_message_is_an_event_or_refused(
    body: bytes | None, properties: list[tuple[str, Any]], content_type: str
) -> None:
    with suppress(MalformedEvent):
        if (document := from_message(body, properties, content_type)) is not None:
            assert decode(document).shape == "cloudevents"


@given(st.binary(max_size=20), st.dictionaries(st.sampled_from(["ce-id", "ce-source", "ce-type", "ce-x"]), st.text()))
def test_any_http_headers_make_an_event_or_are_refused(body: bytes, headers: dict[str, str]) -> None:
    with suppress(MalformedEvent):
        assert decode(body, headers={"ce-specversion": "1.0", **headers}).shape == "cloudevents"


def test_a_repeated_attribute_is_refused() -> None:
    properties = [(f"ce_{header[3:]}", value) for header, value in HEADERS.items()]
    with pytest.raises(MalformedEvent, match="ce_id"):
        from_message(b"", [*properties, ("CE_ID", "2")])


def test_an_id_without_a_version_is_refused() -> None:
    with pytest.raises(MalformedEvent, match="specversion"):
        decode(b'{"id":"order-1","type":"t"}', headers={"ce-id": "1", "ce-source": "/s", "ce-type": "t"})
    with pytest.raises(MalformedEvent, match="specversion"):
        from_message(b'{"id":"order-1","type":"t"}', [("ce_id", b"1")])


def test_a_message_without_attributes_is_left_alone() -> None:
    assert from_message(b"{}", [("x-request-id", b"\xff"), ("content-type", b"text/plain"), ("ce_note", b"x")]) is None
    assert from_message(b"{}", []) is None


def test_text_in_another_encoding_stays_bytes() -> None:
    headers = {**HEADERS, "Content-Type": "text/plain; charset=iso-8859-1"}
    event = decode("Grüße".encode("latin-1"), headers=headers)
    assert event.body == "R3L832U="
    assert decode(b"\xff", headers={**HEADERS, "Content-Type": "text/plain"}).body == "/w=="


def test_data_in_two_members_is_refused() -> None:
    with pytest.raises(MalformedEvent, match="data_base64"):
        decode(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data_base64":"AA=="}')
    event = decode(b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1,"data_base64":null}')
    assert event.body == 1

"""Each shape of the field, written out, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.envelopes import decode
from semel.values import keys
from semel.values.errors import ConfigError, MalformedEvent, NoKey

ORG = "5d7a3e90-6a53-4c4b-8a1e-0c1f3a0f7b11"
CONVERSATION = "c7d0e3e6-2d5f-4a4c-9d3f-5b8a9f1c2d3e"
USER = "0d9f6a3c-1b2c-4d5e-8f70-112233445566"


def raw(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def genesys(topic: str, body: dict[str, Any], **envelope: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
        "detail-type": topic.replace(CONVERSATION, "{id}").replace(USER, "{id}"),
        "source": f"aws.partner/genesys.com/cloud/{ORG}/prod",
        "account": "123456789012",
        "time": "2026-03-19T22:04:48Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": {
            "topicName": topic,
            "version": "2",
            "eventBody": body,
            "metadata": {"CorrelationId": "1c2d-archival"},
            "timestamp": "2022-04-06T09:30:45.013Z",
        },
        **envelope,
    }


END_TOPIC = f"v2.detail.events.conversation.{CONVERSATION}.customer.end"
END_BODY = {
    "eventTime": 1649237504949,
    "conversationId": CONVERSATION,
    "participantId": "participant-1",
    "sessionId": "session-1",
    "mediaType": "CHAT",
}
END = genesys(END_TOPIC, END_BODY)


def test_a_genesys_event_through_eventbridge_is_read_whole() -> None:
    event = decode(raw(END), tenant="acme")
    assert event.shape == "genesys-eventbridge"
    assert event.type == "v2.detail.events.conversation.{id}.customer.end"
    assert event.topic == END_TOPIC
    assert event.identity == (END_TOPIC, "participant-1", "session-1", "1649237504949")
    assert event.subject == CONVERSATION
    assert event.occurred == 1649237504949
    assert event.origin == ORG
    assert event.tenant == "acme"
    assert event.delivery_id == END["id"]
    assert event.source == END["source"]
    assert event.body == END_BODY
    assert event.raw == raw(END)


def test_a_test_organisation_has_an_origin_too() -> None:
    assert decode(raw({**END, "source": f"aws.partner/genesys.com.test/cloud/{ORG}/dev"})).origin == ORG


@pytest.mark.parametrize(
    "source",
    ["aws.partner/genesys.community/cloud/x/y", "aws.partner/genesys.com/other/x/y", "aws.partner/genesys.com"],
)
def test_a_source_of_another_form_gives_no_origin(source: str) -> None:
    assert decode(raw({**END, "source": source})).origin == ""


def test_a_configured_origin_wins() -> None:
    assert decode(raw(END), origin="mine").origin == "mine"


def test_a_bare_detail_is_the_same_event_as_in_its_envelope() -> None:
    bare = decode(raw(END["detail"]), origin=ORG)
    assert bare.shape == "genesys-detail"
    assert keys.event(bare) == keys.event(decode(raw(END)))
    assert bare.payload() == decode(raw(END)).payload()
    assert bare.body == END_BODY
    assert bare.delivery_id == ""


@pytest.mark.parametrize("document", [END, END["detail"]])
def test_a_path_means_the_same_in_the_envelope_and_without_it(document: dict[str, Any]) -> None:
    assert decode(raw(document)).field("detail.eventBody.conversationId") == CONVERSATION


def test_a_notification_frame_is_an_event() -> None:
    frame = {
        "topicName": f"v2.users.{USER}.presence",
        "version": "2",
        "eventBody": {"source": "PURECLOUD"},
        "metadata": {},
    }
    event = decode(raw(frame), origin=ORG)
    assert (event.shape, event.subject, event.topic) == ("genesys-detail", USER, frame["topicName"])


@pytest.mark.parametrize(
    "frame",
    [
        {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}},
        {"topicName": "channel.metadata", "eventBody": {"message": "pong"}, "version": 2},
        {"topicName": "channel.metadata"},
        {"topicName": "v2.system.socket_closing", "eventBody": {"message": "The channel is closing"}},
    ],
)
def test_a_control_frame_is_marked_and_has_no_key(frame: dict[str, Any]) -> None:
    event = decode(raw(frame))
    assert event.shape == "control"
    assert event.document == {"detail": frame}
    with pytest.raises(NoKey):
        keys.event(event)


def test_a_generic_webhook_is_identified_by_its_id() -> None:
    document = {
        "id": "evt-1",
        "type": "interaction.created",
        "createdTime": 1678886400000,
        "data": {"interactionId": "i-1"},
    }
    event = decode(raw(document), origin="shop")
    assert (event.shape, event.type, event.identity) == ("webhook", "interaction.created", ("evt-1",))
    assert (event.occurred, event.subject, event.delivery_id) == (1678886400000, "i-1", "evt-1")
    assert event.body == {"interactionId": "i-1"}
    assert keys.event(event) == ("shop", "evt-1")


def test_a_webhook_whose_detail_is_a_text_is_still_a_webhook() -> None:
    event = decode(raw({"id": "1", "type": "note", "detail": "free text"}))
    assert event.shape == "webhook"


RECORD = {
    "id": "bus-1",
    "detail-type": "Conversation Event",
    "source": "genesys.cloud",
    "time": "2026-01-01T00:00:00Z",
    "detail": {
        "eventId": "evt-7",
        "eventType": "conversation.ended",
        "timestamp": "2026-01-01T00:00:00.123Z",
        "body": {"conversationId": CONVERSATION},
    },
}


def test_an_inner_event_record_is_identified_by_its_event_id() -> None:
    event = decode(raw(RECORD))
    assert (event.shape, event.identity) == ("eventbridge-record", ("evt-7",))
    assert (event.type, event.topic) == ("conversation.ended", "Conversation Event")
    assert (event.subject, event.occurred) == (CONVERSATION, "2026-01-01T00:00:00.123Z")
    assert (event.delivery_id, event.origin) == ("bus-1", "")
    assert event.body == {"conversationId": CONVERSATION}


@pytest.mark.parametrize("time_name", ["timestamp", "date"])
def test_an_event_of_com_genesyscloud_is_identified_by_its_inner_id(time_name: str) -> None:
    detail = {"id": "evt-8", "type": "call.ended", time_name: "2026-01-01T00:00:00Z", "interactionId": "i-1"}
    event = decode(raw({"id": "bus-1", "detail-type": "Genesys", "source": "com.genesyscloud", "detail": detail}))
    assert (event.shape, event.identity) == ("eventbridge-genesyscloud", ("evt-8",))
    assert (event.type, event.topic, event.occurred) == ("call.ended", "Genesys", "2026-01-01T00:00:00Z")
    assert (event.subject, event.body) == ("i-1", detail)


@pytest.mark.parametrize(
    ("detail", "type_name", "resource"),
    [
        ({"interactionId": "i-1", "state": "open"}, "Interaction", "i-1"),
        ({"type": "routing:queue-member:added", "data": {"id": "q-1"}}, "routing:queue-member:added", "q-1"),
        ({"type": "conversation:call:updated", "data": {"id": "c-1"}}, "conversation:call:updated", "c-1"),
    ],
)
def test_an_interaction_is_identified_by_type_resource_and_content(
    detail: dict[str, Any], type_name: str, resource: str
) -> None:
    event = decode(raw({"id": "bus-1", "detail-type": "Interaction", "source": "any", "detail": detail}))
    assert event.shape == "eventbridge-interaction"
    assert event.identity[:2] == (type_name, resource)
    assert len(event.identity[2]) == 32
    assert event.identity[3:] == ("bus-1",)  # the detail has no time: equal content may be a state that came back
    assert (event.type, event.subject, event.body) == (type_name, resource, detail)


def test_an_open_messaging_webhook_is_identified_by_its_id() -> None:
    document = {
        "id": "msg-1",
        "channel": {
            "id": "ch",
            "platform": "Open",
            "type": "Private",
            "messageId": "m-1",
            "to": {"id": "customer"},
            "from": {"id": "integration"},
            "time": "2026-01-01T00:00:00.000Z",
        },
        "type": "Text",
        "text": "hello",
        "direction": "Outbound",
    }
    event = decode(raw(document), origin="om")
    assert (event.shape, event.type, event.identity) == ("open-messaging", "Text", ("msg-1",))
    assert event.occurred == "2026-01-01T00:00:00.000Z"
    assert event.body == document


CLOUD_EVENT = {
    "specversion": "1.0",
    "id": "A234",
    "source": "/sensors/é",
    "type": "com.example.note",
    "subject": "s-1",
    "time": "2026-01-01T00:00:00Z",
    "data": {"x": 1},
}
CLOUD_HEADERS = {
    "Content-Type": "application/json; charset=utf-8",
    "CE-SpecVersion": "1.0",
    "ce-id": "A234",
    "ce-source": "/sensors/%C3%A9",
    "ce-type": "com.example.note",
    "ce-subject": "s-1",
    "ce-time": "2026-01-01T00:00:00Z",
}


def test_a_structured_cloud_event_is_identified_by_source_and_id() -> None:
    event = decode(raw(CLOUD_EVENT))
    assert event.shape == "cloudevents"
    assert keys.event(event) == ("/sensors/é", "A234")
    assert (event.type, event.subject, event.occurred) == ("com.example.note", "s-1", "2026-01-01T00:00:00Z")
    assert event.body == {"x": 1}
    assert keys.event(decode(raw(CLOUD_EVENT), origin="o")) == ("o", "/sensors/é", "A234")


def test_equal_ids_of_two_sources_are_two_cloud_events_under_a_configured_origin() -> None:
    other = {**CLOUD_EVENT, "source": "/other"}
    assert keys.event(decode(raw(CLOUD_EVENT), origin="o")) != keys.event(decode(raw(other), origin="o"))


def test_a_binary_cloud_event_is_the_same_as_a_structured_one() -> None:
    binary = decode(b'{"x":1}', headers=CLOUD_HEADERS)
    structured = decode(raw(CLOUD_EVENT))
    for name in ("type", "identity", "subject", "occurred", "source", "origin", "delivery_id", "shape", "body"):
        assert getattr(binary, name) == getattr(structured, name), name
    assert binary.payload() == structured.payload()


def test_a_stored_binary_cloud_event_can_be_replayed() -> None:
    binary = decode(b'{"x":1}', headers=CLOUD_HEADERS)
    assert decode(binary.raw) == binary


def test_a_binary_cloud_event_without_or_with_other_data_is_accepted() -> None:
    assert decode(b"", headers=CLOUD_HEADERS).shape == "cloudevents"
    event = decode(b"<x/>", headers={**CLOUD_HEADERS, "Content-Type": "application/xml"})
    assert event.body == "<x/>"


@pytest.mark.parametrize(
    "body", [b'1,"partner":"evil"', b'1,"subject":"evil"', b'{},"id":"evil"', b"1}", b""""x""", b'{"a":1,"a":2}']
)
def test_a_binary_body_cannot_reach_into_the_attributes(body: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode(body, headers=CLOUD_HEADERS)


def test_ordinary_headers_change_nothing() -> None:
    assert decode(raw(END), headers={"X-Request-ID": "r-1", "Content-Type": "application/json"}) == decode(raw(END))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specversion": "0.3"}, "specversion.*'0.3'"),
        ({"type": ""}, "type"),
        ({"source": None}, "source"),
    ],
)
def test_the_error_of_an_invalid_cloud_event_names_the_missing_attribute(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedEvent, match=message):
        decode(raw({**CLOUD_EVENT, **change}))


def test_any_json_is_accepted_with_a_path_to_its_id() -> None:
    document = {"order": {"ids": [{"no": 17}]}, "kind": {"name": "order.paid"}}
    event = decode(raw(document), id_path="order.ids.0.no", type_path="kind.name")
    assert (event.shape, event.identity, event.type, event.body) == ("json", ("17",), "order.paid", document)
    assert decode(raw(document), id_path="order.ids.0.no").type == "json"
    assert decode(raw({**document, "type": "t"}), id_path="order.ids.0.no").type == "t"


@pytest.mark.parametrize(
    "document",
    [
        END,
        END["detail"],
        CLOUD_EVENT,
        {"id": "e-1", "type": "interaction.created", "data": {"x": 1}},
        {"id": "m-1", "channel": {"to": {"id": "c"}}, "type": "Text"},
        {"id": "bus-1", "detail-type": "t", "source": "genesys.cloud", "detail": {"eventId": "e-1"}},
        {"topicName": "channel.metadata", "eventBody": {"message": "pong"}},
    ],
)
def test_a_path_to_the_id_leaves_recognised_shapes_as_they_are(document: dict[str, Any]) -> None:
    with_ref = {**document, "ref": "r-1"}
    assert decode(raw(with_ref), id_path="ref", type_path="ref") == decode(raw(with_ref))


def test_a_path_to_the_id_leaves_cloud_events_in_binary_mode_as_they_are() -> None:
    assert decode(b'{"x":1}', headers=CLOUD_HEADERS, id_path="x") == decode(b'{"x":1}', headers=CLOUD_HEADERS)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "paid", "data": {"no": 1}},  # as the generic webhook, without its id
        {"detail": {"no": 1}},  # as an EventBridge envelope
        {"id": "resource-1", "detail": {"type": "paid"}},
        {"id": "resource-1", "source": "shop", "detail": {"type": "paid"}},
        {"specversion": "0.3", "id": "resource-1"},
        {"topicName": "v2.users.u-1.station", "eventBody": {"id": "u-1"}},  # it may come back: no identity
        {"topicName": 5},
    ],
)
def test_a_path_to_the_id_is_used_for_a_document_that_only_resembles_a_shape(document: dict[str, Any]) -> None:
    event = decode(raw({**document, "ref": "r-1"}), id_path="ref")
    assert (event.shape, event.identity, event.delivery_id) == ("json", ("r-1",), "r-1")


def test_a_configured_path_that_leads_nowhere_is_named() -> None:
    event = decode(raw({"a": 1}), id_path="b.c")
    with pytest.raises(NoKey, match=r"\bb\.c\b"):
        keys.event(event)
    with pytest.raises(MalformedEvent, match=r"type.*\bb\.c\b"):
        decode(raw({"a": 1}), id_path="a", type_path="b.c")
    with pytest.raises(ConfigError):
        decode(raw({"a": 1}), type_path="a")


@pytest.mark.parametrize("value", [None, "", True, 1.5, [], {}])
@pytest.mark.parametrize(
    "document",
    [
        {"detail-type": "x", "source": "com.genesyscloud", "detail": {"id": "ID", "type": "t"}},
        {"detail-type": "x", "source": "genesys.cloud", "detail": {"eventId": "ID", "eventType": "t"}},
        {"id": "ID", "detail-type": "x", "source": "else", "detail": {}},
        {"id": "bus", "source": "else", "detail": {"type": "t"}},
        {"id": "ID", "type": "interaction.created", "data": {"id": "resource"}},
    ],
)
def test_the_error_of_an_event_without_an_id_lists_the_expected_fields(document: dict[str, Any], value: Any) -> None:
    spoiled = json.loads(json.dumps(document).replace('"ID"', json.dumps(value)))
    with pytest.raises(NoKey, match=r"\bid\b.*detail\.eventId.*detail\.id.*eventBody\.id"):
        keys.event(decode(raw(spoiled)))


def test_a_whole_number_is_an_id() -> None:
    assert decode(raw({"id": 0, "type": "t"})).identity == ("0",)
    assert decode(raw({"detail-type": "t", "source": "s", "detail": {"eventId": 42}})).identity == ("42",)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**END, "detail": []}, r"^detail\b.*object.*array"),
        ({**END, "detail": None}, r"^detail\b.*object.*null"),
        ({**END, "detail": "{}"}, r"^detail\b.*object.*text"),
        (genesys(END_TOPIC, []), r"^detail\.eventBody\b.*object.*array"),  # type: ignore[arg-type]
        ({"topicName": END_TOPIC, "eventBody": 5}, r"^eventBody\b.*object.*number"),
        ({**END, "detail": {"topicName": END_TOPIC}}, r"detail\.eventBody\b.*missing"),
        ({"topicName": END_TOPIC}, r"^eventBody\b.*missing"),
        ({**END, "detail": {"topicName": 5, "eventBody": {}}}, r"^detail\.topicName\b.*text.*\b5\b"),
        ({"detail": {}}, r"type.*detail-type"),
        ([END], r"JSON object.*array"),
        ("x", r"JSON object.*text"),
        (7, r"JSON object.*number"),
        (None, r"JSON object.*null"),
    ],
)
def test_a_wrong_type_is_named_with_its_path(document: Any, message: str) -> None:
    with pytest.raises(MalformedEvent, match=message):
        decode(raw(document))


def test_the_error_of_an_unknown_shape_lists_its_names_and_the_accepted_shapes() -> None:
    with pytest.raises(MalformedEvent) as caught:
        decode(raw({f"n{i}": i for i in range(20)}))
    message = str(caught.value)
    assert "'n0', 'n1'" in message
    assert "'n9'" not in message
    assert "id_path" in message
    assert "topicName" in message
    with pytest.raises(MalformedEvent, match="id_path"):
        decode(b"{}")


def test_odd_types_in_a_genesys_event_do_not_stop_it() -> None:
    odd = genesys(END_TOPIC, {**END_BODY, "conversationId": 17, "sessionId": 5}, id=12, time=99)
    event = decode(raw(odd))
    assert event.shape == "genesys-eventbridge"
    assert event.identity == (END_TOPIC, "participant-1", "5", "1649237504949")
    assert (event.subject, event.delivery_id) == ("17", "12")

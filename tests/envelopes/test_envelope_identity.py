"""What is one event and what are two."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.envelopes import decode
from semel.values import keys
from semel.values.keys import Parts

ORG = "5d7a3e90-6a53-4c4b-8a1e-0c1f3a0f7b11"
CONVERSATION = "c7d0e3e6-2d5f-4a4c-9d3f-5b8a9f1c2d3e"
TIMESTAMP = "2022-04-06T09:30:45.013Z"
IDS = {"conversationId": CONVERSATION, "participantId": "p-1", "sessionId": "s-1", "eventTime": 1649237504949}


def genesys(topic: str, body: dict[str, Any], **envelope: Any) -> dict[str, Any]:
    source = f"aws.partner/genesys.com/cloud/{ORG}/prod"
    detail = {"topicName": topic, "version": "2", "eventBody": body, "metadata": {}, "timestamp": TIMESTAMP}
    return {"id": "bus-1", "detail-type": topic, "source": source, "time": "2026-03-19", "detail": detail, **envelope}


def key(document: dict[str, Any], **options: Any) -> Parts:
    return keys.checked(keys.event(decode(json.dumps(document).encode(), **options)))


ALL_SHAPES = [
    genesys(f"v2.detail.events.conversation.{CONVERSATION}.acw", IDS),
    genesys("v2.users.u-1.presence", {"presenceDefinition": {"id": "x"}}),
    genesys("v2.audits.entitytype.q.entityid.1", {"id": "audit-1", "eventDate": "2026-01-01T00:00:00Z"}),
    {"id": "bus-1", "detail-type": "t", "source": "genesys.cloud", "detail": {"eventId": "e", "eventType": "t"}},
    {"id": "bus-1", "detail-type": "t", "source": "com.genesyscloud", "detail": {"id": "e", "type": "t"}},
    {"id": "bus-1", "detail-type": "t", "source": "x", "detail": {"interactionId": "i", "timestamp": TIMESTAMP}},
]


@pytest.mark.parametrize("document", ALL_SHAPES)
def test_a_producers_retry_with_a_new_eventbridge_id_is_the_same_event(document: dict[str, Any]) -> None:
    assert key(document) == key({**document, "id": "bus-2", "time": "2026-03-19T22:09:00Z"})
    assert "bus-1" not in key(document)


@pytest.mark.parametrize("document", ALL_SHAPES[:3])
def test_one_event_over_two_roads_has_one_key(document: dict[str, Any]) -> None:
    assert key(document) == key(document["detail"], origin=ORG)


@pytest.mark.parametrize("document", ALL_SHAPES[:3])
def test_one_event_over_two_buses_has_one_key(document: dict[str, Any]) -> None:
    other_bus = f"aws.partner/genesys.com/cloud/{ORG}/second"
    assert key(document) == key({**document, "source": other_bus})


def test_the_same_event_of_two_organisations_has_two_keys() -> None:
    document = ALL_SHAPES[0]
    assert key(document) != key({**document, "source": "aws.partner/genesys.com/cloud/other/prod"})


@pytest.mark.parametrize("topic", ["v2.users.u-1", "v2.routing.queues.u-1.users", "v2.users.u-1.conversations"])
def test_two_updates_of_one_resource_are_two_events(topic: str) -> None:
    first = genesys(topic, {"id": "u-1", "name": "before"})
    second = genesys(topic, {"id": "u-1", "name": "after"})
    assert key(first) != key(second)
    assert key(first) == key(genesys(topic, {"name": "before", "id": "u-1"}, id="bus-9"))


@pytest.mark.parametrize(
    "detail", [{"interactionId": "i-1"}, {"type": "conversation:call:updated", "data": {"id": "c"}}]
)
def test_two_updates_of_one_interaction_are_two_events(detail: dict[str, Any]) -> None:
    envelope = {"id": "bus-1", "detail-type": "t", "source": "x"}
    assert key({**envelope, "detail": {**detail, "n": 1}}) != key({**envelope, "detail": {**detail, "n": 2}})


def test_a_burst_within_one_millisecond_is_many_events() -> None:
    topic = f"v2.detail.events.conversation.{CONVERSATION}.acd.start"
    burst = {key(genesys(topic, {**IDS, "sessionId": f"s-{i}"})) for i in range(50)}
    assert len(burst) == 50


def test_a_request_id_header_is_no_identity() -> None:
    document = {"id": "e-1", "type": "t", "data": {}}
    assert key(document, headers={"X-Request-ID": "1"}) == key(document, headers={"X-Request-ID": "2"})


def test_attributes_that_fire_again_with_another_map_are_another_event() -> None:
    topic = f"v2.detail.events.conversation.{CONVERSATION}.attributes"
    first, second = [genesys(topic, {**IDS, "attributes": {"step": n}}) for n in ("1", "2")]
    assert key(first) != key(second)
    assert key(first)[1:5] == (topic, "p-1", "s-1", "1649237504949")
    assert key(first) == key({**first, "id": "bus-2"})


def test_an_audit_is_identified_by_its_own_id_only() -> None:
    topic = "v2.audits.entitytype.queue.entityid.1"
    assert key(genesys(topic, {**IDS, "id": "audit-1"})) == (ORG, topic, "audit-1")
    assert len(key(genesys(topic, {"action": "x"}))[2]) == 32


@pytest.mark.parametrize("nested", [True, False])
def test_an_utterance_is_identified_by_conversation_communication_and_finality(nested: bool) -> None:
    topic = f"v2.conversations.{CONVERSATION}.transcription"

    def transcription(**utterance: Any) -> dict[str, Any]:
        body = {**IDS, "eventTime": "2026-01-01T00:00:00Z", "communicationId": "k-1"}
        return genesys(topic, {**body, "transcripts": [utterance]} if nested else {**body, **utterance})

    final = key(transcription(utteranceId="u-1", isFinal=True, text="hello"))
    assert final == (ORG, topic, CONVERSATION, "k-1", "u-1", "true")
    assert final != key(transcription(utteranceId="u-1", isFinal=False))
    assert len(key(transcription(text="no id"))) == 3  # by its content


@pytest.mark.parametrize("nested", [True, False])
def test_interim_versions_of_an_utterance_are_events_of_their_own(nested: bool) -> None:
    topic = f"v2.conversations.{CONVERSATION}.transcription"

    def interim(words: str) -> dict[str, Any]:
        utterance = {"utteranceId": "u-1", "isFinal": False, "text": words}
        body = {**IDS, "eventTime": "2026-01-01T00:00:00Z", "communicationId": "k-1"}
        return genesys(topic, {**body, "transcripts": [utterance]} if nested else {**body, **utterance})

    assert key(interim("hel")) != key(interim("hello"))
    assert key(interim("hel")) == key({**interim("hel"), "id": "bus-2"})


@pytest.mark.parametrize("topic", ["flow.outcome", "flow.milestone"])
def test_two_flow_outcomes_of_one_session_at_one_time_are_two_events(topic: str) -> None:
    topic = f"v2.detail.events.conversation.{CONVERSATION}.{topic}"
    first, second = [genesys(topic, {**IDS, "flowOutcomeId": outcome}) for outcome in ("o-1", "o-2")]
    assert key(first) != key(second)
    assert key(first)[1:5] == (topic, "p-1", "s-1", "1649237504949")
    assert key(first) == key({**first, "id": "bus-2"})


def test_flow_outcomes_without_an_id_are_distinguished_by_their_content() -> None:
    topic = f"v2.detail.events.conversation.{CONVERSATION}.flow.outcome"
    assert key(genesys(topic, {**IDS, "flowOutcome": "SUCCESS"})) != key(genesys(topic, {**IDS, "flowOutcome": "NO"}))


def test_several_utterances_in_one_event_are_identified_by_content() -> None:
    topic = f"v2.conversations.{CONVERSATION}.transcription"
    body = {**IDS, "communicationId": "k", "transcripts": [{"utteranceId": "1", "isFinal": True}] * 2}
    assert len(key(genesys(topic, body))) == 3


@pytest.mark.parametrize("missing", ["participantId", "sessionId", "eventTime"])
def test_an_event_that_lacks_part_of_its_identity_is_identified_by_content(missing: str) -> None:
    topic = f"v2.detail.events.conversation.{CONVERSATION}.acw"
    body = {name: value for name, value in IDS.items() if name != missing}
    assert key(genesys(topic, body))[3:] == ((TIMESTAMP,) if missing == "eventTime" else ())
    assert key(genesys(topic, body)) != key(genesys(topic, {**body, "more": 1}))


def test_a_topic_outside_detail_events_may_carry_the_same_identity() -> None:
    assert key(genesys("v2.outbound.something", IDS)) == (ORG, "v2.outbound.something", "p-1", "s-1", "1649237504949")

"""A state that comes back is a new event, although its body is that of the first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel import Context, Event, Semel
from semel.envelopes import decode
from semel.values import keys
from semel.values.errors import NoKey
from semel.values.keys import Parts

SOURCE = "aws.partner/genesys.com/cloud/5d7a3e90-6a53-4c4b-8a1e-0c1f3a0f7b11/prod"

STATES: dict[
    str, list[dict[str, Any]]
] = {  # topics whose bodies have no time, as in the models of the platform's own SDK
    "v2.telephony.providers.edges.e-1": [{"id": "e-1", "onlineStatus": status} for status in ("ONLINE", "OFFLINE")],
    "v2.routing.queues.q-1.users": [{"id": "u-1", "joined": joined} for joined in (True, False)],
    "v2.users.u-1.station": [{"associatedStation": {"id": "s-1"}}, {"associatedStation": None}],
}

# Times of the resource stay the same when one of its states comes back, and so do times inside of its parts.
RESOURCE_TIMES: list[dict[str, Any]] = [
    {"dateCreated": "2026-01-01T00:00:00Z"},
    {"dateModified": "2026-01-01T00:00:00Z"},
    {"startTime": "2026-01-01T00:00:00Z"},
    {"participants": [{"calls": [{"connectedTime": "2026-01-01T00:00:00Z"}]}]},
    {"eventTime": None},
    {"eventTime": 0},
    {"eventTime": True},
    {"eventTime": "soon"},
    {"eventTime": 1e308},
    {"timestamp": ""},
]


def envelope(topic: str, body: dict[str, Any], bus_id: str, **around: Any) -> dict[str, Any]:
    detail = {"topicName": topic, "version": "2", "eventBody": body, **around}
    return {"version": "0", "id": bus_id, "detail-type": topic, "source": SOURCE, "detail": detail}


def key(document: dict[str, Any]) -> Parts:
    return keys.checked(keys.event(decode(json.dumps(document).encode())))


def at(second: int) -> dict[str, Any]:
    """A `detail` with a time and, for all of them, the same correlation."""
    return {"timestamp": f"2026-03-19T22:04:{second:02}.000Z", "metadata": {"CorrelationId": "same"}}


@pytest.mark.parametrize("topic", STATES)
def test_a_recurring_state_runs_again_and_its_copies_do_not(topic: str) -> None:
    ran: list[Any] = []
    app = Semel("memory://")

    @app.on(topic)
    async def state(event: Event, ctx: Context) -> None:
        ran.append(event.body)

    first, second = STATES[topic]
    sent = [envelope(topic, body, f"bus-{n}", **at(n)) for n, body in enumerate([first, second, first, second])]
    outcomes = [app.process_sync(document) for document in sent]
    again = [app.process_sync({**document, "id": "a-new-one"}) for document in sent]
    app.close_sync()
    assert [outcome.status for outcome in outcomes] == ["done"] * 4
    assert [outcome.status for outcome in again] == ["duplicate"] * 4
    assert ran == [first, second, first, second]


@pytest.mark.parametrize("times", RESOURCE_TIMES)
def test_only_the_time_of_the_event_itself_makes_content_an_identity(times: dict[str, Any]) -> None:
    body = {"id": "e-1", "onlineStatus": "ONLINE", **times}
    first, second = [envelope("v2.edges.e-1", body, "bus-1", **at(n)) for n in (1, 2)]
    assert key(first) != key(second)


@pytest.mark.parametrize("time", [{"eventTime": 1649237504949}, {"eventDate": "2026-01-01T00:00:00Z"}])
def test_a_body_with_its_own_time_is_one_event_whatever_is_around_it(time: dict[str, Any]) -> None:
    body = {"id": "e-1", "onlineStatus": "ONLINE", **time}
    assert key(envelope("v2.edges.e-1", body, "bus-1", **at(1))) == key(envelope("v2.edges.e-1", body, "bus-2"))


@pytest.mark.parametrize("none", [{}, {"timestamp": None}, {"timestamp": ""}])
def test_without_a_timestamp_the_correlation_is_part_of_the_identity(none: dict[str, Any]) -> None:
    def document(correlation: str, bus_id: str) -> dict[str, Any]:
        return envelope("v2.edges.e-1", {"id": "e-1"}, bus_id, **none, metadata={"CorrelationId": correlation})

    assert key(document("c-1", "bus-1")) != key(document("c-2", "bus-1"))
    assert key(document("c-1", "bus-1")) == key(document("c-1", "bus-2"))


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {"CorrelationId": ""}}, {"metadata": []}])
def test_without_a_correlation_the_eventbridge_id_is_part_of_the_identity(metadata: dict[str, Any]) -> None:
    first, second = [envelope("v2.edges.e-1", {"id": "e-1"}, bus_id, **metadata) for bus_id in ("bus-1", "bus-2")]
    assert key(first) != key(second)
    assert key(first) == key(dict(first))


def test_a_bare_detail_without_a_time_has_no_identity() -> None:
    event = decode(json.dumps({"topicName": "v2.edges.e-1", "eventBody": {"id": "e-1"}}).encode())
    with pytest.raises(NoKey, match=r"detail\.timestamp"):
        keys.event(event)
    assert keys.content(event)


@pytest.mark.parametrize("detail", [{"interactionId": "i-1", "state": "held"}, {"type": "a:b", "data": {"id": "c-1"}}])
def test_an_interaction_without_a_time_runs_again_when_its_state_recurs(detail: dict[str, Any]) -> None:
    document = {"id": "bus-1", "detail-type": "t", "source": "x", "detail": detail}
    assert key(document) != key({**document, "id": "bus-2"})
    timed = {**document, "detail": {**detail, "timestamp": "2026-01-01T00:00:00Z"}}
    assert key(timed) == key({**timed, "id": "bus-2"})


@pytest.mark.parametrize("more", [{}, {"eventTime": 1649237504949}, {"flowOutcomeId": "o"}, {"flowOutcomeId": 5}])
@pytest.mark.parametrize("topic", ["v2.edges.e-1", "v2.detail.events.conversation.c-1.flow.outcome"])
def test_an_event_is_the_same_whether_its_whole_document_is_parsed_first_or_not(
    topic: str, more: dict[str, Any]
) -> None:
    body = {"id": "e-1", "participantId": "p", "sessionId": "s", **more}
    raw = json.dumps(envelope(topic, body, "bus-1", **at(1))).encode()
    assert decode(raw) == decode(raw, id_path="nowhere")

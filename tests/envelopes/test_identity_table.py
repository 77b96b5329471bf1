"""The table of identities says what the code does: each row has an event, sent again under a new transport id."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel import Semel, keys
from semel.envelopes import IDENTITIES, ShapeIdentity, decode
from semel.values.key import content_digest

TIME = "2026-03-19T22:04:48.000Z"


def genesys(body: dict[str, Any], **around: Any) -> dict[str, Any]:
    detail = {"topicName": "v2.x.y", "eventBody": body, **around}
    return {"id": "bus", "detail-type": "v2.x.{id}", "source": "aws.partner/genesys.com/cloud/o/b", "detail": detail}


def bus(source: str, **detail: Any) -> dict[str, Any]:
    return {"id": "bus", "detail-type": "t", "source": source, "detail": detail}


SAMPLES: dict[str, dict[str, Any]] = {
    "Genesys, with a time in eventBody": genesys({"eventTime": TIME, "id": "r"}),
    "Genesys, without a time in eventBody": genesys({"id": "r"}, timestamp=TIME),
    "Genesys, without any of these": genesys({"id": "r"}),
    "EventBridge with detail.eventId, not of an AWS service": bus("genesys.cloud", eventId="e"),
    "EventBridge of com.genesyscloud with detail.id": bus("com.genesyscloud", id="e", type="t"),
    "EventBridge about an interaction, with a time in detail": bus("x", interactionId="i", timestamp=TIME),
    "EventBridge about an interaction, without a time": bus("x", interactionId="i"),
    "any other EventBridge event": bus("aws.s3", bucket={"name": "b"}),
    "CloudEvents 1.0": {"specversion": "1.0", "id": "e", "source": "s", "type": "t"},
    "webhook (id and type)": {"id": "e", "type": "t"},
    "Open Messaging": {"id": "e", "type": "Text", "channel": {"messageId": "m"}},
    "any other JSON": {"ref": "e"},
}


def test_each_row_has_an_event() -> None:
    assert [row.events for row in IDENTITIES] == list(SAMPLES)


@pytest.mark.parametrize("row", IDENTITIES, ids=lambda row: row.events)
def test_the_table_states_whether_a_retry_under_a_new_transport_id_is_recognised(row: ShapeIdentity) -> None:
    sample = SAMPLES[row.events]
    retry = {**sample, "id": "another"} if "detail" in sample else sample  # only EventBridge gives events an id
    first, second = [decode(json.dumps(document).encode(), id_path="ref") for document in (sample, retry)]
    assert first.shape == row.shape
    assert (keys.event(first) == keys.event(second)) is row.recognised
    assert content_digest(first.payload()) == content_digest(second.payload()), "it is the same event"


@pytest.mark.parametrize(
    ("topics", "key", "runs_again"),
    [
        (("Object Created",), keys.event, True),
        (("v2.users.*.presence", "**"), keys.event, True),
        (("v2.users.*.presence", "v2.audits.**"), keys.event, False),
        (("Object Created",), keys.delivery, True),
        (("Object Created",), keys.content, False),
        (("Object Created",), keys.fields("detail.object.key"), False),
    ],
)
def test_the_guarantee_names_shapes_whose_retry_may_not_be_recognised(
    topics: tuple[str, ...], key: Any, runs_again: bool
) -> None:
    app = Semel("memory://")
    app.on(*topics, key=key, name="handler")(lambda event, ctx: None)
    (promised,) = app.guarantees()
    assert bool(promised.repeats) is runs_again
    assert promised.repeats in str(promised)

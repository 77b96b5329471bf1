"""Ordinary EventBridge events, as AWS documents them for its services."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel import Context, Event, Semel
from semel.envelopes import decode
from semel.values import keys
from semel.values.keys import Parts

S3 = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "account": "111122223333",
    "time": "2021-11-12T00:00:00Z",
    "region": "ca-central-1",
    "resources": ["arn:aws:s3:::amzn-s3-demo-bucket1"],
    "detail": {
        "version": "0",
        "bucket": {"name": "amzn-s3-demo-bucket1"},
        "object": {"key": "example-key", "size": 5, "etag": "b1946ac92492d2347c6235b4d2611184"},
        "request-id": "N4N7GDK58NMKJ12R",
        "requester": "123456789012",
        "source-ip-address": "1.2.3.4",
        "reason": "PutObject",
    },
}
EC2 = {
    "id": "7bf73129-1428-4cd3-a780-95db273d1602",
    "detail-type": "EC2 Instance State-change Notification",
    "source": "aws.ec2",
    "account": "123456789012",
    "time": "2021-11-11T21:29:54Z",
    "region": "us-east-1",
    "resources": ["arn:aws:ec2:us-east-1:123456789012:instance/i-abcd1111"],
    "detail": {"instance-id": "i-abcd1111", "state": "pending"},
}
GUARDDUTY = {
    "version": "0",
    "id": "cd2d702e-ab31-411b-9344-793ce56b1bc7",
    "detail-type": "GuardDuty Finding",
    "source": "aws.guardduty",
    "account": "111122223333",
    "time": "1970-01-01T00:00:00Z",
    "region": "us-east-1",
    "resources": [],
    "detail": {
        "schemaVersion": "2.0",
        "accountId": "111122223333",
        "region": "us-east-1",
        "id": "16afba5c5c43e07c9e3e5e2e544e95df",
        "type": "Canary:EC2/Stateless.IntegTest",
        "service": {"serviceName": "guardduty", "count": 1},
        "severity": 5,
        "createdAt": "2019-05-10T21:55:02Z",
        "updatedAt": "2019-05-10T21:55:02Z",
    },
}
DMS = {
    "version": "0",
    "id": "11a11b11-222b-333a-44d4-01234a5b67890",
    "detail-type": "DMS Replication Task State Change",
    "source": "aws.dms",
    "time": "1970-01-01T00:00:00Z",
    "resources": ["arn:aws:dms:us-east-1:0123456789012:task:AAAABBBB0CCCCDDDDEEEEE1FFFF2GGG3"],
    "detail": {
        "type": "REPLICATION_TASK",
        "category": "StateChange",
        "eventType": "REPLICATION_TASK_STARTED",
        "eventId": "DMS-EVENT-0069",
        "detailMessage": "Replication task started, with flag = fresh start",
    },
}
SAMPLES = [S3, EC2, GUARDDUTY, DMS]


def key(document: dict[str, Any]) -> Parts:
    return keys.checked(keys.event(decode(json.dumps(document).encode())))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["source"])
def test_an_event_of_an_aws_service_runs_once_for_each_eventbridge_id(sample: dict[str, Any]) -> None:
    ran: list[Any] = []
    app = Semel("memory://")

    @app.on(sample["detail-type"])
    async def handle(event: Event, ctx: Context) -> None:
        ran.append((event.shape, event.body))

    sent = (sample, sample, {**sample, "id": "another-event"})
    statuses = [app.process_sync(document).status for document in sent]
    app.close_sync()
    assert statuses == ["done", "duplicate", "done"]
    assert ran == [("eventbridge", sample["detail"])] * 2


def test_a_finding_that_guardduty_repeats_under_its_id_is_another_event() -> None:
    detail: dict[str, Any] = {**GUARDDUTY["detail"], "service": {"serviceName": "guardduty", "count": 2}}  # type: ignore[dict-item]
    assert key(GUARDDUTY) != key({**GUARDDUTY, "id": "another-event", "detail": detail})


@pytest.mark.parametrize("source", ["aws.guardduty", "genesys.cloud", "shop", "com.genesyscloud.other", ""])
def test_the_id_in_detail_is_the_events_own_for_known_producers_only(source: str) -> None:
    document = {"id": "bus-1", "detail-type": "t", "source": source, "detail": {"id": "own-1", "type": "t"}}
    assert key(document)[1:] == ("bus-1",)
    assert key({**document, "source": "com.genesyscloud"})[1:] == ("own-1",)


def test_the_event_id_of_a_record_is_the_events_own_except_for_aws_services() -> None:
    document = {"id": "bus-1", "detail-type": "t", "source": "genesys.cloud", "detail": {"eventId": "own-1"}}
    assert key(document)[1:] == ("own-1",)
    assert key({**document, "source": "aws.partner/example.com/x"})[1:] == ("own-1",)
    assert key({**document, "source": "aws.dms"})[1:] == ("bus-1",)

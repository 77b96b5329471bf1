"""Every trigger: what is acted on, and what the trigger is told."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import pytest
from tests.aws_lambda.invocations import (
    Clocked,
    Noting,
    every_shape,
    failures,
    fifo,
    firehose,
    genesys,
    gone_wrong,
    kafka,
    kinesis,
    notification,
    piped,
    rabbitmq,
    sequence,
    small,
    sns,
    sqs,
    summary,
)
from tests.engine.faults import FaultyLine

from semel import ConfigError, Context, Event, Semel, keys
from semel.aws_lambda import RecordsFailed

BODIES = [genesys(at) for at in range(6)]
SHAPES = dict(every_shape(BODIES))


def all_is_well(shape: str, invocation: Any, new: int) -> dict[str, Any]:
    """What this trigger wants to hear, when so many of the six events were new."""
    if "sqs" in shape or "bus" in shape or shape == "kinesis":
        return failures()
    if shape.startswith("firehose"):
        return {
            "records": [
                {"recordId": record["recordId"], "result": "Ok", "data": record["data"]}
                for record in invocation["records"]
            ]
        }
    return summary(processed=new, skipped=len(BODIES) - new)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_event_of_every_shape_is_acted_on_once(shape: str) -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    assert handler(SHAPES[shape], Clocked(60)) == all_is_well(shape, SHAPES[shape], 6)
    assert len(set(noting.acted)) == len(noting.acted) == 6
    assert handler(SHAPES[shape], Clocked(60)) == all_is_well(shape, SHAPES[shape], 0)
    assert len(noting.acted) == 6


def test_one_event_by_every_road_is_one_event() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    for body in BODIES:
        handler(json.loads(body), Clocked(60))
    for shape, invocation in SHAPES.items():
        assert handler(invocation, Clocked(60)) == all_is_well(shape, invocation, 0), shape
    assert len(noting.acted) == 6


def test_duplicates_inside_an_invocation_and_across_them_are_acted_on_once() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    assert handler(sqs([BODIES[0], BODIES[1], BODIES[0], notification(BODIES[1])]), None) == failures()
    assert handler([json.loads(body) for body in (BODIES[2], BODIES[2], BODIES[0])], None) == summary(1, 2)
    assert len(noting.acted) == 3


def test_an_event_alone_is_answered_with_a_summary() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    assert handler(json.loads(BODIES[0]), Clocked(60)) == {
        "statusCode": 200,
        "body": '{"processed":1,"skipped":0,"errors":0}',
    }
    assert handler(json.loads(BODIES[0]), Clocked(60)) == summary(skipped=1)
    assert handler(json.loads(small("1", "nobody's")), Clocked(60)) == summary(skipped=1)
    assert handler(json.loads(small("2", "never")), Clocked(60)) == summary(errors=1)  # kept as a dead letter
    assert [entry.reason for entry in asyncio.run(noting.app.entries("dead"))] == ["of no use"]


# ----------------------------------------------------------------------------------------------------------- failures


def test_for_a_queue_exactly_the_failed_records_are_reported() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    bodies = [small("1"), small("2", "later"), small("3", "breaks"), small("4", "never"), small("5", "nobody's"), b"{"]
    told = failures("message-1", "message-2", "message-5")
    assert handler(sqs(bodies), Clocked(60)) == told
    assert noting.acted == ["1", "2", "3", "4"]
    assert handler(sqs(bodies), Clocked(60)) == told  # the second is not due, the third is tried again
    assert noting.acted == ["1", "2", "3", "4", "3"]


@pytest.mark.parametrize("shape", [sqs, kinesis, kafka, rabbitmq, sns])
def test_an_event_without_a_key_for_one_handler_is_its_dead_letter_and_not_a_failure(shape: Any) -> None:
    noting = Noting()
    noting.app.on("ok", name="crm", key=keys.fields("data.customer"))(lambda event, ctx: None)
    handler = noting.app.lambda_handler()
    for _ in range(2):
        assert handler(shape([small("1")]), Clocked(60)) in (failures(), summary(errors=1), summary(skipped=1))
    assert noting.acted == ["1"]
    (dead_letter,) = asyncio.run(noting.app.entries("dead"))
    assert dead_letter.handler == "crm"


def test_a_copy_of_a_failed_record_fails_with_it() -> None:
    handler = Noting().app.lambda_handler()
    twice = sqs([small("1", "later"), small("1", "later"), small("2")])
    assert handler(twice, Clocked(60)) == failures("message-0", "message-1")


def test_a_group_of_a_fifo_queue_stops_at_its_first_failure() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    invocation = fifo(
        [
            ("a", small("a1")),
            ("b", small("b1", "later")),
            ("a", small("a2")),
            ("b", small("b2")),
            ("a", b"no event"),
            ("a", small("a4")),
            ("b", small("b3")),
            ("c", small("c1")),
        ]
    )
    assert handler(invocation, Clocked(60)) == failures("message-1", "message-3", "message-4", "message-5", "message-6")
    assert sorted(noting.acted) == ["a1", "a2", "b1", "c1"]


def test_a_group_of_a_fifo_queue_is_acted_on_in_order_and_groups_beside_each_other() -> None:
    app = Semel("memory://")
    begun: list[str] = []
    meet = asyncio.Barrier(2)

    @app.on("**")
    async def act(event: Event, ctx: Context) -> None:
        begun.append(event.id)
        async with asyncio.timeout(10):
            await meet.wait()  # nobody would come if groups waited for each other

    messages = [("ab"[at % 2], small(f"{'ab'[at % 2]}{at // 2}")) for at in range(8)]
    assert app.lambda_handler()(fifo(messages), Clocked(60)) == failures()
    assert [own_id for own_id in begun if own_id[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert [own_id for own_id in begun if own_id[0] == "b"] == ["b0", "b1", "b2", "b3"]


def test_a_standard_queue_with_groups_promises_no_order_and_stops_nowhere() -> None:
    invocation = sqs([small("1", "later"), small("2")])
    for record in invocation["Records"]:
        record["attributes"]["MessageGroupId"] = "tenant-1"
    assert Noting().app.lambda_handler()(invocation, Clocked(60)) == failures("message-0")


def test_for_a_stream_the_lowest_failure_is_reported() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    bodies = [small("1"), small("2"), small("3", "later"), small("4"), small("5", "breaks")]
    assert handler(kinesis(bodies, first=97), Clocked(60)) == failures(sequence(99))
    assert sorted(noting.acted) == ["1", "2", "3", "4", "5"]
    backwards = {"Records": list(reversed(kinesis(bodies, first=97)["Records"]))}
    assert handler(backwards, Clocked(60)) == failures(sequence(99))
    assert handler(kinesis(bodies[3:4], first=100), Clocked(60)) == failures()


def test_records_with_the_same_partition_key_stay_in_order() -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    bodies = [small("1", "later"), small("2"), small("3")]
    assert handler(kinesis(bodies, keys=["k", "k", "other"]), Clocked(60)) == failures(sequence(0))
    assert sorted(noting.acted) == ["1", "3"]
    with pytest.raises(RecordsFailed, match=r"\b2\b.*\b3\b.*busy"):
        handler(kafka([bodies[0], small("7"), small("8")], keys=["k", "k", "k"]), Clocked(60))
    assert sorted(noting.acted) == ["1", "3", "7"]  # the second is in another partition


@pytest.mark.parametrize(
    "invocation",
    [
        json.loads(small("1", "later")),
        sns([small("1", "later")]),
        kafka([small("2"), small("1", "later")]),
        rabbitmq([small("2"), small("1", "later")]),
        [json.loads(small("2")), json.loads(small("1", "later"))],
        piped(kinesis([small("2"), small("1", "later")])),
        firehose([small("2"), small("1", "later")]),
        firehose([b"{}", small("1", "later")]),
        gone_wrong(json.loads(small("1", "later"))),
        {"Records": [{"body": small("1", "later").decode(), "eventSource": "aws:sqs"}]},
    ],
    ids=["alone", "sns", "kafka", "rabbitmq", "pipe", "pipe of a stream", "firehose", "firehose 2", "wrapped", "no id"],
)
def test_a_trigger_without_a_response_for_failed_records_gets_an_error(invocation: Any) -> None:
    noting = Noting()
    handler = noting.app.lambda_handler()
    for _ in range(2):
        with pytest.raises(RecordsFailed, match=r"retry|busy"):
            handler(invocation, Clocked(60))
    assert noting.acted.count("1") == 1
    assert noting.acted.count("2") <= 1


def test_a_tombstone_of_kafka_is_nothing_to_act_on() -> None:
    assert Noting().app.lambda_handler()(kafka([small("1"), None]), Clocked(60)) == summary(1, 1)


def test_an_error_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    handler = Noting().app.lambda_handler()
    with caplog.at_level(logging.INFO), pytest.raises(RecordsFailed) as raised:
        handler(json.loads(small("1", "breaks")), Clocked(60))
    assert "retry" in str(raised.value)
    assert "breaks" in caplog.text
    assert "s3cret" not in str(raised.value) + caplog.text


# -------------------------------------------------------------------------------------------------------------- poison


def test_a_poison_event_becomes_a_dead_letter_and_its_message_is_deleted() -> None:
    app = Semel("memory://", random=lambda: 0.0)
    runs: list[int] = []

    @app.on("**", max_attempts=3)
    async def fall(event: Event, ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise RuntimeError

    handler = app.lambda_handler()
    poison = sqs([small("1")])
    assert [handler(poison, Clocked(60)) for _ in range(4)] == [failures("message-0")] * 2 + [failures()] * 2
    assert runs == [1, 2, 3]
    assert len(asyncio.run(app.entries("dead"))) == 1


def test_malformed_records_are_left_to_the_trigger() -> None:
    handler = Noting().app.lambda_handler()
    assert handler(sqs([b"{", small("1")]), Clocked(60)) == failures("message-0")
    assert handler(kinesis([small("1"), b"\xff"]), Clocked(60)) == failures(sequence(1))
    told = handler(firehose([b"{}", small("1")]), Clocked(60))
    assert [record["result"] for record in told["records"]] == ["ProcessingFailed", "Ok"]
    with pytest.raises(RecordsFailed, match=r"\b1\b.*\b2\b.*malformed"):
        handler(kafka([b"{", small("1")]), Clocked(60))


def test_a_conflict_is_left_to_the_trigger() -> None:
    handler = Noting().app.lambda_handler()
    assert handler(sqs([small("1", n=1)]), Clocked(60)) == failures()
    assert handler(sqs([small("1", n=2)]), Clocked(60)) == failures("message-0")
    with pytest.raises(RecordsFailed, match="conflict"):
        handler(json.loads(small("1", n=3)), Clocked(60))


@pytest.mark.parametrize("is_async", [True, False])
def test_malformed_records_can_be_kept_by_a_callback(is_async: bool) -> None:
    aside: list[tuple[bytes, str]] = []

    def keep(body: bytes, reason: str) -> None:
        aside.append((body, reason))

    async def keep_later(body: bytes, reason: str) -> None:
        await asyncio.sleep(0)
        keep(body, reason)

    handler = Noting().app.lambda_handler(malformed_records=keep_later if is_async else keep)
    assert handler(kinesis([b"{", small("1")]), Clocked(60)) == failures()
    assert handler(kafka([small("1"), small("1", n=1)]), Clocked(60)) == summary(skipped=1, errors=1)
    assert [body for body, _ in aside] == [b"{", small("1", n=1)]
    assert all(reason for _, reason in aside)


def test_a_malformed_record_that_cannot_be_kept_is_redelivered(caplog: pytest.LogCaptureFixture) -> None:
    def cannot(body: bytes, reason: str) -> None:
        raise OSError("the disk of s3cret is full")

    handler = Noting().app.lambda_handler(malformed_records=cannot)
    assert handler(sqs([b"{", small("1")]), Clocked(60)) == failures("message-0")
    assert "record_not_kept" in caplog.text
    assert "s3cret" not in caplog.text


# -------------------------------------------------------------------------------------------------------------- ledger


def test_without_a_ledger_everything_is_redelivered_and_nothing_is_started() -> None:
    noting = Noting(concurrency=2)
    line = FaultyLine(noting.app)
    line.cut = {"claim"}
    handler = noting.app.lambda_handler()
    bodies = [small(str(at)) for at in range(6)]
    assert handler(sqs(bodies), Clocked(60)) == failures(*[f"message-{at}" for at in range(6)])
    assert line.landed == 2  # asked once more, and not again for the rest
    assert handler(kinesis(bodies), Clocked(60)) == failures(sequence(0))
    with pytest.raises(RecordsFailed, match="busy"):
        handler(json.loads(bodies[0]), Clocked(60))
    assert noting.acted == []
    line.cut = set()
    assert handler(sqs(bodies), Clocked(60)) == failures()
    assert len(noting.acted) == 6


def test_an_invalid_decode_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match="type_path"):
        Semel("memory://", type_path="a.b").lambda_handler()(sqs([small("1")]), Clocked(60))


def test_an_unknown_shape_is_an_error_that_names_its_fields() -> None:
    handler = Noting().app.lambda_handler()
    for invocation, names in (
        ({"version": "2.0", "body": "s3cret", "headers": {"a": "s3cret"}}, "'version', 'body', 'headers'"),
        ({"Records": [{"eventVersion": "2.1", "s3": {"object": {"key": "s3cret"}}}]}, "'eventVersion', 's3'"),
        ({"Records": [{"dynamodb": {"Keys": "s3cret"}, "eventID": "s3cret"}]}, "'dynamodb', 'eventID'"),
    ):
        with pytest.raises(RecordsFailed, match=names) as raised:
            handler(invocation, Clocked(60))
        assert "s3cret" not in str(raised.value)


def test_the_reason_of_a_malformed_record_is_in_the_exception_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    handler = Noting().app.lambda_handler()
    broken: list[bytes] = [b'{"repeated":"1","repeated":"2"}', b"[]", b'{"a":NaN}', b"{", b"[]"]
    with pytest.raises(RecordsFailed) as raised:
        handler(kafka([*broken, small("1")]), Clocked(60))
    said = str(raised.value)
    assert re.search(r"\b5\b.*\b6\b.*malformed", said)
    assert all(fault in said for fault in ("repeated", "array", "NaN")), said
    assert re.search(r"\b1 (other|more)\b", said), "the fourth reason is counted"
    logged = [record.getMessage() for record in caplog.records if "record_malformed" in record.getMessage()]
    assert len(logged) == 5
    assert any("repeated" in line for line in logged)
    caplog.clear()
    assert handler(sqs([b"[]", small("1")]), Clocked(60)) == failures("message-0")
    assert any("array" in record.getMessage() and "message-0" in record.getMessage() for record in caplog.records)


def test_a_record_that_cannot_be_read_is_in_the_exception_with_its_reason() -> None:
    invocation = rabbitmq([small("1")])
    invocation["rmqMessagesByQueue"]["events::/"][0]["data"] = "no base64!"
    with pytest.raises(RecordsFailed, match="base64"):
        Noting().app.lambda_handler()(invocation, Clocked(60))

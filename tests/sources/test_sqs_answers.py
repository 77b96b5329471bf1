"""What a queue is told: in batches, again after a failure, and never what is not so. On an emulator, by real HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError
from tests.sources.meddling import Hands, Meddler, refusal
from tests.sources.places import Queue, reason_of

from semel.sources.lifecycle import QueueDelivery
from semel.sources.sqs_queue import SqsSource
from semel.sources.sqs_queue.answers import SqsDeadLetter
from semel.sources.sqs_queue.in_flight import SqsMessage
from semel.testing.laws.source_harness import SOON_S, document

HOUR_S = 3600

pytestmark = pytest.mark.usefixtures("quick_end")


def bodies(count: int) -> list[bytes]:
    return [document(f"e{number:04}") for number in range(count)]


async def received(source: SqsSource, count: int) -> list[QueueDelivery[SqsMessage]]:
    deliveries: list[QueueDelivery[SqsMessage]] = []
    async with asyncio.timeout(SOON_S):
        while len(deliveries) < count:
            deliveries += await source.receive(count - len(deliveries))
    return deliveries


async def until(true: Callable[[], bool]) -> None:
    ends = asyncio.get_running_loop().time() + SOON_S
    while not true():
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.02)


def meddled(queue: Queue, meddler: Meddler, **options: Any) -> SqsSource:
    return queue.source(connect=meddler.connect(queue.server, queue.url), **options)


def test_messages_travel_ten_at_a_time_in_and_out(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(100))
        meddler = Meddler()
        source = meddled(queue, meddler)
        for delivery in await received(source, 100):
            await delivery.ack()
        await source.close()
        assert queue.left() == 0
        full = [request for request in meddler.asked("receive_message") if request["MaxNumberOfMessages"] == 10]
        assert len(full) == len(meddler.asked("receive_message"))
        assert max(len(request["Entries"]) for request in meddler.asked("delete_message_batch")) == 10
        assert len(meddler.asked("delete_message_batch")) <= 20
        assert source.counts.deleted == 100

    asyncio.run(story())


@pytest.mark.parametrize("pollers", [1, 5])
def test_so_many_polls_run_in_parallel(queue: Queue, pollers: int) -> None:
    async def story() -> None:
        meddler = Meddler()
        source = meddled(queue, meddler, pollers=pollers)
        waiting = asyncio.ensure_future(source.receive(1))
        await until(lambda: meddler.most["receive_message"] >= pollers)
        await asyncio.sleep(0.1)
        assert meddler.most["receive_message"] == pollers
        await source.close()
        assert await waiting == []

    asyncio.run(story())


def test_no_more_is_in_flight_than_was_allowed(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(60))
        source = queue.source(max_in_flight=25, pollers=4)
        deliveries = await received(source, 20)
        await asyncio.sleep(0.5)
        assert queue.attributes()["ApproximateNumberOfMessagesNotVisible"] <= 25
        for delivery in deliveries:
            await delivery.ack()
        for _ in range(40):
            for delivery in await received(source, 1):
                await delivery.ack()
        await source.close()
        assert queue.left() == 0

    asyncio.run(story())


@pytest.mark.parametrize("operation", ["delete_message_batch", "change_message_visibility_batch"])
def test_entries_of_a_batch_that_fail_are_tried_again_and_only_those(queue: Queue, operation: str) -> None:
    async def story() -> None:
        queue.send(bodies(10))
        tries: Counter[str] = Counter()

        def meddle(asked: str, request: Mapping[str, Any]) -> Any:
            if asked != operation or meddler.landed:
                return None
            entries: Sequence[Mapping[str, Any]] = request["Entries"]
            return partly(entries)

        async def partly(entries: Sequence[Mapping[str, Any]]) -> Any:
            good = [entry for entry in entries if int(entry["Id"]) % 2]
            answer = await meddler.really(operation, {"QueueUrl": queue.url, "Entries": good})
            failed = [
                {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False, "Message": "for a test"}
                for entry in entries
                if int(entry["Id"]) % 2 == 0
            ]
            return {"Successful": answer["Successful"], "Failed": failed}

        meddler = Meddler(meddle)
        source = meddled(queue, meddler)
        deliveries = await received(source, 10)
        for delivery in deliveries:
            await (delivery.ack() if operation == "delete_message_batch" else delivery.retry(0))
        await source._answers.drained()
        for request in meddler.asked(operation):
            tries.update(entry["ReceiptHandle"] for entry in request["Entries"])
        assert meddler.landed == 1
        assert sorted(tries.values()) == [1] * 5 + [2] * 5
        counts = source.counts
        assert (counts.deleted + counts.returned, counts.failures, counts.expired) == (10, 5, 0)
        await source.close()
        assert queue.left() == (0 if operation == "delete_message_batch" else 10)

    asyncio.run(story())


def test_a_receipt_that_has_expired_deletes_nothing_and_is_not_counted_as_done(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(1))
        late = queue.source(visibility=1, clock=Hands(), max_in_flight=1)  # no time passes: nothing is extended
        (first,) = await late.receive(1)
        other = queue.source()
        (second,) = await asyncio.wait_for(other.receive(1), SOON_S)
        await first.ack()
        await late._answers.drained()
        assert (late.counts.deleted, late.counts.expired) == (0, 1)
        assert queue.left() == 1, "it belongs to the other one"
        await second.ack()
        await other.close()
        await late.close()
        assert queue.left() == 0

    asyncio.run(story())


def test_visibility_is_extended_while_a_message_is_in_flight(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(2))
        source = queue.source(visibility=2)
        handed, waiting = (await received(source, 1))[0], source._in_flight
        other = queue.source(visibility=2)
        looking = asyncio.ensure_future(other.receive(2))
        await until(lambda: source.counts.extended >= 8)  # four rounds, two thirds of a second apart
        assert not looking.done()
        assert len(waiting) == 2
        await handed.ack()
        for delivery in await received(source, 1):
            await delivery.ack()
        await source.close()
        await other.close()
        assert await looking == []
        assert queue.left() == 0

    asyncio.run(story())


def test_visibility_is_never_extended_past_twelve_hours(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(2))
        clock = Hands()
        meddler = Meddler()
        source = meddled(queue, meddler, clock=clock, visibility=60)
        one, two = await received(source, 2)
        began_s = clock.now_s
        asked: list[int] = []
        while clock.now_s < began_s + 12 * HOUR_S:
            clock.now_s += 47.0
            before = len(meddler.asked("change_message_visibility_batch"))
            await source._answers.extend()
            for request in meddler.asked("change_message_visibility_batch")[before:]:
                for entry in request["Entries"]:
                    asked.append(entry["VisibilityTimeout"])
                    assert clock.now_s - began_s + entry["VisibilityTimeout"] <= 12 * HOUR_S
            if len(asked) > 4:  # the hours between are all the same
                clock.now_s = max(clock.now_s, began_s + 12 * HOUR_S - 200)
                for held in source._in_flight.extendable:
                    held.visible_at = max(held.visible_at, clock.now_s + 1)
        assert asked[0] == 60
        assert 0 < asked[-1] < 60, "the last extension is cut"
        await source._answers.extend()
        assert source._in_flight.extendable == [], "they are let go"
        await two.retry(5)
        await source._answers.drained()
        assert meddler.asked("change_message_visibility_batch")[-1]["Entries"][0]["VisibilityTimeout"] == 0
        await one.ack()  # the emulator does not know of twelve hours, and takes it
        await source.close()

    asyncio.run(story())


def test_a_delay_is_rounded_up_to_whole_seconds_and_at_most_twelve_hours(queue: Queue) -> None:
    async def story() -> None:
        delays = {0.0: 0, 0.01: 1, 1.0: 1, 1.2: 2, 11 * HOUR_S: 11 * HOUR_S, 13 * HOUR_S: 12 * HOUR_S, 3e9: 12 * HOUR_S}
        queue.send(bodies(len(delays)))
        meddler = Meddler()
        source = meddled(queue, meddler, clock=Hands())
        for delivery, after_s in zip(await received(source, len(delays)), delays, strict=True):
            await delivery.retry(after_s)
        await source.close()
        request = meddler.asked("change_message_visibility_batch")[0]
        assert [entry["VisibilityTimeout"] for entry in request["Entries"]] == list(delays.values())
        assert queue.left() == len(delays)

    asyncio.run(story())


@pytest.mark.parametrize(
    "error",
    [
        refusal("RequestThrottled"),
        refusal("ServiceUnavailable", 503),
        refusal("AccessDenied", 403),
        refusal("SomethingNew"),
        NoCredentialsError(),
        ConnectionResetError("for a test"),
        RuntimeError("of a driver that nobody expects"),
    ],
    ids=repr,
)
def test_nothing_that_a_poll_is_answered_with_ends_the_source(queue: Queue, error: Exception) -> None:
    async def story() -> None:
        queue.send(bodies(3))

        def meddle(operation: str, request: Mapping[str, Any]) -> None:
            if operation == "receive_message" and meddler.landed < 5:
                raise error

        meddler = Meddler(meddle)
        source = meddled(queue, meddler)
        for delivery in await received(source, 3):
            await delivery.ack()
        assert meddler.landed == 5
        assert source.counts.failures == 5
        await source.close()
        assert queue.left() == 0

    asyncio.run(story())


def test_a_message_whose_dead_letter_cannot_be_sent_is_returned(queue: Queue) -> None:
    async def story() -> None:
        queue.send([b"{"])

        def meddle(operation: str, request: Mapping[str, Any]) -> None:
            if operation == "send_message_batch":
                raise refusal("AccessDenied")

        meddler = Meddler(meddle)
        source = meddled(queue, meddler)
        (delivery,) = await received(source, 1)
        await delivery.reject("no event")
        await source._answers.drained()
        assert meddler.landed >= 2
        assert meddler.asked("delete_message_batch") == []
        assert (source.counts.dead_letters, source.counts.returned) == (0, 1)
        await source.close()
        assert queue.left() == 1
        assert queue.dead_letters() == []

    asyncio.run(story())


def test_a_dead_letter_has_the_original_message_and_the_reason(queue: Queue) -> None:
    async def story() -> None:
        theirs = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(10)}
        queue.aws.send_message(QueueUrl=queue.url, MessageBody="whole", MessageAttributes=theirs)
        queue.aws.send_message(QueueUrl=queue.url, MessageBody="plain", MessageAttributes={"a": theirs["a0"]})
        queue.aws.send_message(QueueUrl=queue.url, MessageBody="é" * 131_072)
        source = queue.source()
        for delivery in await received(source, 3):
            await delivery.reject("a reason with \x00 and \ud800 in it, and an end " + "…" * 5_000)
        await source.close()
        assert queue.left() == 0
        dead_letters = {dead_letter["Body"][:5]: dead_letter for dead_letter in queue.dead_letters()}
        assert set(dead_letters) == {"whole", "plain", "ééééé"}
        for dead_letter in dead_letters.values():
            assert reason_of(dead_letter).startswith("a reason with � and � in it")
            assert len(dead_letter["MessageAttributes"]) <= 10
            assert dead_letter["MessageAttributes"]["semel.queue"]["StringValue"] == queue.url
            assert dead_letter["MessageAttributes"]["semel.receives"]["StringValue"] == "1"
        assert "semel.truncated" not in dead_letters["plain"]["MessageAttributes"]
        assert dead_letters["plain"]["MessageAttributes"]["a"] == theirs["a0"]
        assert "attributes" in dead_letters["whole"]["MessageAttributes"]["semel.truncated"]["StringValue"]
        cut = dead_letters["ééééé"]
        assert "262,144" in cut["MessageAttributes"]["semel.truncated"]["StringValue"]
        assert 0 < len(cut["Body"].encode()) < 262_144
        assert set(cut["Body"]) == {"é"}, "it is cut between characters"

    asyncio.run(story())


@pytest.mark.parametrize("size_max", [1024, 4096, 262_144])
@pytest.mark.parametrize("text", ["short", "x" * 300_000, "é" * 2_000, "𝄞" * 600])
@pytest.mark.parametrize("reason", ["", "why", "…" * 4_000])
def test_a_dead_letter_fits_into_its_queue(size_max: int, text: str, reason: str) -> None:
    theirs = {f"attribute-{number}": {"DataType": "String", "StringValue": "v" * 40} for number in range(10)}
    message = {"MessageId": "m" * 36, "ReceiptHandle": "r", "Body": text, "MessageAttributes": theirs}
    dead_letter = SqsDeadLetter(SqsMessage(message, 0.0, 0.0), reason, "https://sqs/" + "q" * 80, True, size_max)
    entry = dead_letter.entry
    size = len(entry["MessageBody"].encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"].encode())
        for name, value in entry["MessageAttributes"].items()
    )
    assert size <= dead_letter.size <= size_max
    assert len(entry["MessageAttributes"]) <= 10
    assert text.startswith(entry["MessageBody"])
    assert entry["MessageAttributes"]["semel.reason"]["StringValue"]
    told = "semel.truncated" in entry["MessageAttributes"]
    assert told == (entry["MessageBody"] != text or not theirs.keys() <= entry["MessageAttributes"].keys())

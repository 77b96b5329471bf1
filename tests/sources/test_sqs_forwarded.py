"""A queue that Semel's own doors fill: the note beside a message is believed, and only where the source is told so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.facts import rendered
from tests.sources.places import Queue, make_app, reason_of

from semel.sources.lifecycle import QueueDelivery
from semel.sources.sqs_queue import SqsPublisher
from semel.sources.sqs_queue.in_flight import SqsMessage
from semel.testing.laws.source_harness import SOON_S, SourceConsumer, document
from semel.values.event import DecodeOptions, Event
from semel.values.forwarded import METADATA_MAX_BYTES, ForwardedEvent, ForwardMetadata, encode_metadata

METADATA = ForwardMetadata("acme", DecodeOptions(origin="platform"), {"ce-id": "1"})
BROKEN: tuple[str | bytes, ...] = (
    "{",
    "[]",
    '{"tenant":1}',
    '{"who":"acme"}',
    '{"tenant":"' + "x" * METADATA_MAX_BYTES + '"}',
    "\u00e9",
    b"\xff",
    b"{",
    '{"decode_options":{"x":' + "[" * 5_000 + "]" * 5_000 + "}}",
)


def put(queue: Queue, body: bytes, metadata: str | bytes | None = None, group: str = "g") -> None:
    attributes: dict[str, Any] = {}
    if isinstance(metadata, bytes):
        attributes = {"semel": {"DataType": "Binary", "BinaryValue": metadata}}
    elif metadata is not None:
        attributes = {"semel": {"DataType": "String", "StringValue": metadata}}
    fifo = {"MessageGroupId": group, "MessageDeduplicationId": f"{body!r}{metadata!r}"[:128]} if queue.fifo else {}
    queue.aws.send_message(QueueUrl=queue.url, MessageBody=body.decode(), MessageAttributes=attributes, **fifo)


async def received(queue: Queue, count: int, **options: Any) -> list[QueueDelivery[SqsMessage]]:
    """All are acknowledged, and the source is closed."""
    source = queue.source(**options)
    found: list[QueueDelivery[SqsMessage]] = []
    async with asyncio.timeout(SOON_S):
        while len(found) < count:
            some: Sequence[QueueDelivery[SqsMessage]] = await source.receive(10)
            for delivery in some:
                await delivery.ack()
            found += some
    await source.close()
    return found


def test_metadata_sets_the_tenant_and_the_decode_options(queue: Queue, quick_end: None) -> None:
    async def story() -> None:
        put(queue, b"{}", encode_metadata(METADATA))
        (delivery,) = await received(
            queue, 1, forwarded=True, tenant="mine", decode_options=DecodeOptions(origin="here")
        )
        assert (delivery.body, delivery.tenant, delivery.decode_options) == (
            b"{}",
            "acme",
            DecodeOptions(origin="platform"),
        )
        assert delivery.headers == {"ce-id": "1"}

    asyncio.run(story())


def test_empty_metadata_replaces_the_options_of_the_source(queue: Queue, quick_end: None) -> None:
    async def story() -> None:
        put(queue, b"{}", "{}")
        (delivery,) = await received(
            queue, 1, forwarded=True, tenant="mine", decode_options=DecodeOptions(origin="here")
        )
        assert (delivery.tenant, delivery.decode_options, delivery.headers) == ("", DecodeOptions(), None)

    asyncio.run(story())


def test_a_message_with_untrusted_metadata_is_not_processed(queue: Queue, quick_end: None) -> None:
    async def story() -> None:
        for metadata in (encode_metadata(METADATA), "{", b"\xff"):
            put(queue, b"{}", metadata)
        put(queue, b'"bare"')
        (delivery,) = await received(queue, 1, tenant="mine")
        assert (delivery.body, delivery.tenant) == (b'"bare"', "mine")
        dead_letters = queue.dead_letters()
        assert [dead_letter["Body"] for dead_letter in dead_letters] == ["{}"] * 3
        assert all("forwarded" in reason_of(dead_letter) for dead_letter in dead_letters)

    asyncio.run(story())


def test_without_a_note_a_message_is_taken_as_usual(queue: Queue, quick_end: None) -> None:
    notification = {"Type": "Notification", "MessageId": "m", "TopicArn": "arn:aws:sns:x", "Message": "{}"}
    wrapped = json.dumps({**notification, "Timestamp": "2026-01-01T00:00:00Z"}).encode()

    async def story() -> None:
        put(queue, wrapped)
        put(queue, wrapped, encode_metadata(ForwardMetadata("acme")))
        found = {delivery.tenant: delivery.body for delivery in await received(queue, 2, forwarded=True, tenant="mine")}
        assert found == {"mine": b"{}", "acme": wrapped}, "what was handed on is taken as it is"

    asyncio.run(story())


@pytest.mark.parametrize("fifo", [False, True])
def test_unreadable_metadata_makes_one_dead_letter(new_queue: Any, tmp_path: Path, fifo: bool) -> None:
    async def story() -> None:
        queue: Queue = new_queue(fifo=fifo)
        harness = queue.harness(tmp_path)
        harness.open = lambda: queue.source(forwarded=True)
        ran: list[str] = []

        async def handle(event: Event, ctx: Any) -> None:
            ran.append(event.tenant)

        for number, metadata in enumerate(BROKEN):
            put(queue, document(f"e{number}"), metadata)
        put(queue, document("good"), encode_metadata(ForwardMetadata("acme")))
        put(
            queue, document("binary"), encode_metadata(ForwardMetadata("other")).encode()
        )  # an attribute of bytes says the same
        async with SourceConsumer(harness, handle) as consumer:
            await consumer.until_all_is_answered()
            await consumer.until(lambda: len(queue.dead_letters()) == len(BROKEN), "the dead letters")
            assert consumer.answers() == {"ack": 2}, "nobody was given what nobody can read"
        assert sorted(ran) == ["acme", "other"]
        assert sorted(json.loads(dead_letter["Body"])["id"] for dead_letter in queue.dead_letters()) == [
            f"e{number}" for number in range(len(BROKEN))
        ]
        for dead_letter in queue.dead_letters():
            assert "metadata" in reason_of(dead_letter)
            assert "x" * 50 not in reason_of(dead_letter), "the note itself is not repeated"

    asyncio.run(story())


def test_a_dead_letter_keeps_its_metadata(queue: Queue, tmp_path: Path, quick_end: None) -> None:
    """So that it is the same event again when a person moves it back."""

    async def story() -> None:
        publisher = SqsPublisher(queue.url, endpoint=queue.server.endpoint, region=queue.server.region, timeout=20)
        assert await publisher.publish([ForwardedEvent(b"no event", ForwardMetadata("acme"))]) == [""]
        await publisher.close()
        app = make_app(tmp_path)(_done)
        source = queue.source(forwarded=True)
        working = asyncio.ensure_future(app.worker(source).run())
        dead_letters = await asyncio.to_thread(first_letters, queue)
        source.stop()
        await working
        await source.close()
        await app.close()
        assert dead_letters[0]["MessageAttributes"]["semel"]["StringValue"] == encode_metadata(ForwardMetadata("acme"))

    asyncio.run(story())


def first_letters(queue: Queue) -> list[dict[str, Any]]:
    ends = time.monotonic() + SOON_S
    while not (dead_letters := queue.dead_letters()):
        assert time.monotonic() < ends, "there is no dead letter"
        time.sleep(0.05)
    return dead_letters


async def _done(event: Event, ctx: Any) -> None: ...


def test_doctor_shows_that_metadata_is_trusted(queue: Queue) -> None:
    async def story() -> None:
        assert "tenant" in rendered(await queue.source(forwarded=True).diagnose())["forwarded"]
        assert "forwarded" not in rendered(await queue.source().diagnose())

    asyncio.run(story())

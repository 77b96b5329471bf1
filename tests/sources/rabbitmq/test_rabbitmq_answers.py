"""What becomes of messages at a real broker: bounds, waits, dead letters, notes, and what strangers may send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.sources.rabbitmq.places import Place, headers_of, reason_of
from tests.sources.rabbitmq.raw_publish import publish_raw

from semel.sources.rabbitmq_queue import RabbitSource
from semel.sources.rabbitmq_queue.messages import wait_queue
from semel.testing.laws.source_harness import SOON_S, SourceConsumer, document
from semel.testing.laws.sources import received
from semel.values.event import DecodeOptions, Event
from semel.values.forwarded import METADATA_KEY, ForwardMetadata, encode_metadata
from semel.values.outcome import Retry

HOUR_S = 3600.0


async def until(is_so: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() < ends, f"waited {SOON_S:g} s for {what}"
        await asyncio.sleep(0.02)


async def _done(event: Event, ctx: Any) -> None: ...


# ------------------------------------------------------------------------------------------------------------ receiving


def test_no_more_than_the_prefetch_is_in_our_hands(place: Place) -> None:
    async def story() -> None:
        place.send([document(f"e{number}") for number in range(12)])
        source = place.source(prefetch=5)
        deliveries = await received(source, 5)
        waiting = asyncio.ensure_future(source.receive(10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert (source.counts.received, place.ready(place.queue)) == (5, 7)
        await deliveries[2].ack()
        assert len(await asyncio.wait_for(waiting, SOON_S)) == 1, "room for one is filled by one"
        await source.close()
        assert place.left() == 11

    asyncio.run(story())


def test_a_second_answer_changes_nothing(place: Place) -> None:
    async def story() -> None:
        place.send([document("a"), b"{"])
        source = place.source()
        first, second = await received(source, 2)
        await first.ack()
        await first.retry(0.0)
        await first.reject("no")
        await second.reject("yes")
        await second.ack()
        await second.reject("again")
        await source.close()
        assert place.left() == 0
        assert [reason_of(dead_letter) for dead_letter in place.dead_letters()] == ["yes"]

    asyncio.run(story())


# ---------------------------------------------------------------------------------------------------------------- waits


def test_a_retry_of_an_hour_blocks_no_message_and_survives_its_consumer(place: Place, tmp_path: Path) -> None:
    async def story() -> None:
        attempt_log: list[str] = []

        async def handle(event: Event, ctx: Any) -> None:
            attempt_log.append(event.id)
            if event.id.startswith("late"):
                raise Retry(after=HOUR_S)

        harness = place.harness(tmp_path)
        harness.open = lambda: place.source(prefetch=2)
        harness.put(*[document(f"late{number}") for number in range(6)])
        waits = wait_queue(place.queue, int(HOUR_S))
        async with SourceConsumer(harness, handle) as consumer:
            await consumer.until(lambda: place.ready(waits) == 6, "all to wait at the broker")
            await asyncio.to_thread(harness.put, document("quick"))
            await consumer.until(lambda: "quick" in attempt_log, "what came later, through a prefetch of two")
        assert place.ready(waits) == 6, "they wait for whoever comes then"
        assert sorted(attempt_log) == sorted([*[f"late{number}" for number in range(6)], "quick"])
        for message in place.peek(waits):
            assert headers_of(message)["semel.retries"] == 1

    asyncio.run(story())


def test_a_wait_beyond_the_longest_delay_continues_without_a_delivery(place: Place) -> None:
    async def story() -> None:
        place.send([document("far")], headers={"semel.wait": "1.5", "semel.retries": 1})
        began = time.monotonic()
        source = place.source()
        (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
        assert time.monotonic() - began >= 1.5
        assert source.counts.waited == 1
        assert source.counts.received == 2
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())


def test_a_busy_message_is_never_counted_against_the_delivery_limit(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)
    place.declare(**{"x-delivery-limit": 2})

    async def story() -> None:
        place.send([document("busy")])
        source = place.source()
        for _ in range(6):
            (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
            await delivery.retry(0.0)
        (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
        assert delivery.body == document("busy")
        await delivery.ack()
        await source.close()
        assert (place.left(), place.dead_letters()) == (0, [])

    asyncio.run(story())


def test_a_message_beyond_the_delivery_limit_becomes_a_dead_letter(new_place: Callable[..., Place]) -> None:
    """It kills every consumer before anybody can count it: the broker's own limit is for that."""
    place = new_place(declared=False)
    place.declare(**{"x-delivery-limit": 2})

    async def story() -> None:
        place.send([document("deadly")])
        for _ in range(3):
            source = place.source()
            await asyncio.wait_for(source.receive(10), SOON_S)
            await source.close()
        await until(lambda: len(place.dead_letters()) == 1, "the broker's letter")
        (dead_letter,) = place.dead_letters()
        assert dead_letter.body == document("deadly")
        assert place.left() == 0

    asyncio.run(story())


def test_without_permission_for_retry_queues_a_retry_waits_in_flight_and_is_not_lost(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        place.occupy(wait_queue(place.queue, 3))
        place.send([document("e")])
        source = place.source()
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        began = time.monotonic()
        await delivery.retry(2.1)
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        assert time.monotonic() - began >= 2.1
        assert source.counts.waited_in_memory == 1
        await delivery.retry(2.5)
        await source.close()  # does not wait for it
        assert place.left() == 1

    asyncio.run(story())
    assert "message_retry_in_memory" in caplog.text


# --------------------------------------------------------------------------------------------------------- dead letters


def test_a_dead_letter_keeps_everything_of_its_message(place: Place) -> None:
    headers = {"a": 1, "b": {"c": [True, None, "d"]}, "t": datetime(2026, 1, 2, tzinfo=UTC), "raw": bytearray(b"\xff")}

    async def story() -> None:
        place.send(
            [b"\x00\xff"], headers=headers, message_id="m-1", correlation_id="c-1", content_type="x/y", priority=3
        )
        source = place.source()
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        await delivery.reject("because")
        await source.close()

    asyncio.run(story())
    (dead_letter,) = place.dead_letters()
    properties = dead_letter.header.properties
    told = headers_of(dead_letter)
    assert dead_letter.body == b"\x00\xff"
    assert {name: told[name] for name in headers} == headers
    assert (properties.message_id, properties.correlation_id, properties.content_type) == ("m-1", "c-1", "x/y")
    assert (properties.priority, properties.delivery_mode) == (3, 2)
    assert (told["semel.reason"], told["semel.queue"], told["semel.routing_key"]) == (
        "because",
        place.queue,
        place.queue,
    )
    assert place.left() == 0


def test_an_unroutable_dead_letter_does_not_count_as_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("semel.sources.rabbitmq_queue.answers.DEAD_LETTER_RETRY_S", 1.0)

    async def story() -> None:
        place.send([b"{", b"{"], message_id="the same")
        source = place.source(random=lambda: 0.0)
        try:
            deliveries = await received(source, 2)
            await asyncio.to_thread(place.delete, place.dead)
            for delivery in deliveries:
                await delivery.reject("malformed")
            await until(lambda: source.counts.waited == 2, "both to wait for a place that takes them")
            await until(lambda: place.left() == 2, "the broker to hear that the first two are answered")
            assert source.counts.dead_letters == 0
            await asyncio.to_thread(place.declare)
            for delivery in await received(source, 2):
                await delivery.reject("malformed")
        finally:
            await source.close()
        assert place.left() == 0
        assert [reason_of(dead_letter) for dead_letter in place.dead_letters()] == ["malformed"] * 2

    asyncio.run(story())
    assert "message_dead_letter_failed" in caplog.text
    assert "queue" in caplog.text


# -------------------------------------------------------------------------------------------------------------- hostile


def test_forged_headers_do_no_harm(place: Place, tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"headers": {}},
        {"headers": {"semel.note": 5, "semel.retries": "many", "semel.wait": "nan", "x-death": "none", "CC": ["x"]}},
        {"headers": {"d": Decimal("1.50"), "f": 1e30, "none": None, "deep": {"a": {"b": {"c": [[[1]]]}}}}},
        {"headers": {"x" * 120: "y" * 30_000}},
        {"timestamp": datetime(2106, 2, 7, tzinfo=UTC), "priority": 255, "message_id": "é" * 60},
        {"reply_to": "elsewhere", "expiration": "3600000", "message_type": "t", "app_id": "a"},
    ]

    async def story() -> None:
        seen: list[str] = []

        async def handle(event: Event, ctx: Any) -> None:
            seen.append(event.id)
            if ctx.attempt == 1:
                raise Retry(after=0)

        harness = place.harness(tmp_path)
        for number, properties in enumerate(odd):
            place.send([document(f"e{number}"), b"\xff\xfe\x00"], **properties)
        async with SourceConsumer(harness, handle) as consumer:
            await consumer.until_all_is_answered()
            assert len(await consumer.entries("done")) == len(odd)
        assert sorted(seen) == sorted([f"e{number}" for number in range(len(odd))] * 2), "each came again, once"
        assert len(place.dead_letters()) == len(odd)

    asyncio.run(story())


def test_a_message_that_the_driver_cannot_read_becomes_a_dead_letter_and_does_not_block(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        micros = (1_700_000_000_000_000).to_bytes(8)
        await publish_raw(place.broker.url, place.queue, b"in microseconds", 1 << 6, micros)
        await publish_raw(place.broker.url, place.queue, b"in Latin-1", 1 << 15, b"\x04caf\xe9")
        await asyncio.to_thread(place.send, [document("good")])
        source = place.source(random=lambda: 0.0)
        (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
        assert delivery.body == document("good")
        await delivery.ack()
        await until(lambda: source.counts.dead_letters == 2, "the letters")
        await source.close()
        assert place.left() == 0

    asyncio.run(story())
    dead_letters = {dead_letter.body: reason_of(dead_letter) for dead_letter in place.dead_letters()}
    assert set(dead_letters) == {b"in microseconds", b"in Latin-1"}
    assert all("properties" in reason for reason in dead_letters.values())


# ---------------------------------------------------------------------------------------------------------------- notes


def test_metadata_is_trusted_only_if_forwarded_is_set(place: Place) -> None:
    metadata = ForwardMetadata(tenant="theirs", decode_options=DecodeOptions(origin="o"), headers={"ce-id": "1"})

    async def believing() -> tuple[str, DecodeOptions | None, Any]:
        place.send([document("e")], headers={METADATA_KEY: encode_metadata(metadata)})
        source = place.source(forwarded=True, tenant="ours")
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        await delivery.ack()
        await source.close()
        return delivery.tenant, delivery.decode_options, delivery.headers

    assert asyncio.run(believing()) == ("theirs", DecodeOptions(origin="o"), {"ce-id": "1"})

    async def unbelieving() -> None:
        place.send([document("noted")], headers={METADATA_KEY: encode_metadata(metadata)})
        place.send([document("bare")])
        source = place.source(tenant="ours")
        (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
        assert (delivery.body, delivery.tenant) == (document("bare"), "ours")
        await delivery.ack()
        await source.close()

    asyncio.run(unbelieving())
    (dead_letter,) = place.dead_letters()
    assert dead_letter.body == document("noted"), "read without its note it could be another tenant's"
    assert "forwarded" in reason_of(dead_letter)


def test_unreadable_metadata_makes_a_dead_letter_and_missing_metadata_does_not(place: Place) -> None:
    async def story() -> None:
        for broken in ("{", '{"tenant": 5}', 7, bytearray(b"\xff"), "x" * 20_000):
            place.send([document("e")], headers={METADATA_KEY: broken})
        place.send([document("plain")])
        source = place.source(forwarded=True, tenant="ours")
        (delivery,) = await asyncio.wait_for(source.receive(10), SOON_S)
        assert (delivery.body, delivery.tenant) == (document("plain"), "ours")
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())
    assert len(place.dead_letters()) == 5
    assert all("metadata" in reason_of(dead_letter) for dead_letter in place.dead_letters())


# ------------------------------------------------------------------------------------------------------------- stopping


def test_a_source_that_was_never_opened_can_be_closed(place: Place) -> None:
    async def story(source: RabbitSource) -> None:
        source.stop()
        await source.close()
        assert list(await source.receive(1)) == []

    asyncio.run(story(place.source()))


def test_messages_that_wait_in_flight_are_returned_when_the_source_is_stopped(place: Place) -> None:
    async def story() -> None:
        place.send([document(f"e{number}") for number in range(10)])
        source = place.source()
        (delivery,) = await source.receive(1)
        await until(lambda: source.counts.received == 10, "the prefetch")
        source.stop()
        await until(lambda: place.ready(place.queue) == 9, "the others to be had by others")
        await delivery.ack()
        await source.close()
        assert (source.counts.acked, source.counts.returned) == (1, 9)
        await until(lambda: place.left() == 9, "the broker to have counted")  # it answers before it has

    asyncio.run(story())

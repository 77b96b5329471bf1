"""Dead letters, and messages that somebody else has thought of."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.sources.kafka.test_kafka_groups import opened, received, run, until
from tests.sources.kafka.topics import OUTLASTING, Topics
from tests.support.servers.kafka import PRODUCE, KafkaServer

from semel.values.event import DecodeOptions
from semel.values.forwarded import ForwardMetadata, encode_metadata

TOO_LARGE, NOT_ENOUGH_REPLICAS = 10, 19  # errors, as the protocol numbers them


def test_a_dead_letter_has_its_origin_and_the_reason(topics: Topics) -> None:
    async def story() -> None:
        at_ms = int(time.time() * 1000) - 60_000
        headers: list[Any] = [("theirs", b"\xff\xfe"), ("empty", None), ("semel.reason", b"a forgery")]
        topics.send([b"a", b"b"], group="customer 1", headers=headers, timestamp=at_ms)
        async with opened(topics.source()) as source:
            first, second = await received(source, 2)
            await first.ack()
            await second.reject("nobody knows what it is: é\ud800")
            await until(lambda: topics.left() == 0, "the letter")
            assert source.counts.dead_letters == 1
        (dead_letter,) = topics.dead_letters()
        assert (dead_letter.value, dead_letter.key, dead_letter.at_ms) == (b"b", b"customer 1", at_ms)
        assert dead_letter.headers == {
            "theirs": b"\xff\xfe",
            "empty": None,
            "semel.topic": topics.topic.encode(),
            "semel.partition": b"0",
            "semel.offset": b"1",
            "semel.reason": "nobody knows what it is: é?".encode(),
        }

    run(story)


def test_a_message_without_value_is_a_dead_letter(topics: Topics) -> None:
    async def story() -> None:
        topics.send([None, b"after"], group="gone")
        async with opened(topics.source()) as source:
            (delivery,) = await received(source, 1)
            assert delivery.body == b"after"
            await delivery.ack()
            await until(lambda: topics.left() == 0, "the letter")
        (dead_letter,) = topics.dead_letters()
        assert (dead_letter.value, dead_letter.key) == (None, b"gone")
        assert "tombstone" in dead_letter.reason

    run(story)


def test_hostile_messages_are_delivered_and_can_become_dead_letters(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"\x00\xff" * 1_000], headers=[("x" * 1_000, b"\xff" * 200_000), ("", b""), ("\u202e", None)])
        topics.send([b""], headers=[(f"h{number}", b"x") for number in range(2_000)])
        async with opened(topics.source(forwarded=True)) as source:
            for delivery in await received(source, 2):
                await delivery.reject("r" * 100_000)
            await until(lambda: topics.left() == 0, "the letters")
        large, many = topics.dead_letters()
        assert large.headers["x" * 1_000] == b"\xff" * 200_000
        assert len(many.headers) == 2_004
        assert len(many.reason) == 2_000

    run(story)


def test_a_dead_letter_that_is_too_large_is_truncated_and_marked(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"0123456789" * 1_000], headers=[("theirs", b"x")])
        async with opened(topics.source(options={"message.max.bytes": 4_000})) as source:
            (delivery,) = await received(source, 1)
            await delivery.reject("too much of it")
            await until(lambda: topics.left() == 0, "the letter")
        (dead_letter,) = topics.dead_letters()
        assert dead_letter.value is not None
        assert 1_000 <= len(dead_letter.value) < 4_000
        assert (b"0123456789" * 1_000).startswith(dead_letter.value)
        assert dead_letter.headers["semel.truncated"] == b"10000"
        assert dead_letter.reason == "too much of it"

    run(story)


def test_a_dead_letter_that_the_broker_refuses_as_too_large_is_truncated(own_kafka: KafkaServer) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        topics.send([b"0123456789" * 1_000])
        async with opened(topics.source()) as source:
            (delivery,) = await received(source, 1)
            own_kafka.refuse(PRODUCE, TOO_LARGE)
            await delivery.reject("too much of it")
            await until(lambda: topics.left() == 0, "the letter")
        (dead_letter,) = topics.dead_letters()
        assert dead_letter.value == b"0123456789" * 500
        assert dead_letter.headers["semel.truncated"] == b"10000"

    run(story)
    topics.close()


def settled_only_when_durable(own_kafka: KafkaServer) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        topics.send([b"poison", b"good"])
        async with opened(topics.source(options=OUTLASTING)) as source:
            poison, good = await received(source, 2)
            own_kafka.down()
            try:
                await poison.reject("never")
                await good.ack()
                await asyncio.sleep(0.5)
                assert source.counts.dead_letters == 0, "inconclusive: the letter could be sent"
                assert source.counts.settled == 1, "it is settled, and its letter is nowhere"
            finally:
                own_kafka.up()
            await until(lambda: topics.left() == 0, "the letter")
        assert [dead_letter.value for dead_letter in topics.dead_letters()] == [b"poison"]

    try:
        run(story)
    finally:
        topics.close()


def test_a_message_is_settled_only_when_its_dead_letter_is_durable(own_kafka: KafkaServer) -> None:
    settled_only_when_durable(own_kafka)


def test_a_refused_dead_letter_is_retried(own_kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        topics.send([b"poison"])
        async with opened(topics.source(random=lambda: 0.1)) as source:
            (poison,) = await received(source, 1)
            own_kafka.refuse(PRODUCE, 29, 2)  # TOPIC_AUTHORIZATION_FAILED, which librdkafka does not repeat
            await poison.reject("never")
            await until(lambda: topics.left() == 0, "the letter")
            assert source.counts.failures >= 1, "inconclusive: it was not refused"
        assert [dead_letter.value for dead_letter in topics.dead_letters()] == [b"poison"]
        assert "message_dead_letter_failed" in caplog.text

    run(story)
    topics.close()


def test_metadata_written_by_semel_is_trusted(topics: Topics) -> None:
    metadata = ForwardMetadata(
        tenant="acme", decode_options=DecodeOptions(origin="org", id_path="a.b"), headers={"ce-id": "1"}
    )

    async def story() -> None:
        topics.send([b"noted"], headers=[("semel", encode_metadata(metadata))])
        topics.send([b"forged"], headers=[("semel", b'{"tenant": "acme", "more": 1}')])
        topics.send([b"bare"])
        async with opened(topics.source(forwarded=True, tenant="own")) as source:
            noted, bare = await received(source, 2)
            assert (noted.tenant, noted.decode_options, noted.headers) == (
                metadata.tenant,
                metadata.decode_options,
                metadata.headers,
            )
            assert (bare.tenant, bare.decode_options, bare.headers) == ("own", None, None)
            await noted.ack()
            await bare.ack()
            await until(lambda: topics.left() == 0, "the letter")
        (dead_letter,) = topics.dead_letters()
        assert dead_letter.value == b"forged"
        assert "Semel" in dead_letter.reason

    run(story)


def test_a_message_with_untrusted_metadata_becomes_a_dead_letter(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"noted"], headers=[("semel", encode_metadata(ForwardMetadata(tenant="acme")))])
        topics.send([b"bare"])
        decode_options = DecodeOptions(origin="here")
        async with opened(topics.source(tenant="own", decode_options=decode_options)) as source:
            (delivery,) = await received(source, 1)
            assert (delivery.body, delivery.tenant, delivery.decode_options) == (b"bare", "own", decode_options)
            await delivery.ack()
            await until(lambda: topics.left() == 0, "the letter")
        (dead_letter,) = topics.dead_letters()
        assert dead_letter.value == b"noted", "read without its note it could be another tenant's"
        assert "forwarded" in dead_letter.reason

    run(story)


def test_a_second_answer_changes_nothing(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"a", b"b"])
        async with opened(topics.source()) as source:
            first, second = await received(source, 2)
            await first.retry(0.0)
            await first.ack()
            await first.reject("no")
            await second.ack()
            (again,) = await received(source, 1)
            assert again.body == b"a"
            assert topics.positions() == {0: 0}
            await again.ack()
        assert topics.left() == 0
        assert topics.dead_letters() == []

    run(story)

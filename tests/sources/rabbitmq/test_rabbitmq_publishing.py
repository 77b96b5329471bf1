"""Handing events on: only what the broker has confirmed counts, and every parcel is answered in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pamqp.commands import Basic
from tests.facts import rendered
from tests.sources.rabbitmq.places import Place, headers_of

from semel.sources.rabbitmq_queue import RabbitPublisher, RabbitSource
from semel.sources.rabbitmq_queue.publisher import ConfirmedSender
from semel.testing.laws.source_harness import SOON_S, document
from semel.testing.proxy import DEAF, Fault, FaultProxy
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions
from semel.values.forwarded import METADATA_KEY, TOO_LARGE, ForwardedEvent, ForwardMetadata, decode_metadata

NOTED = ForwardMetadata(tenant="t", decode_options=DecodeOptions(origin="o"), headers={"ce-id": "1"}, trace="00-1")
GENEROUS_S = 30.0


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    parts = urlsplit(place.broker.url)
    with FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy


def test_a_published_event_is_in_the_queue_and_is_received_unchanged(place: Place) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, place.queue, timeout=GENEROUS_S)
        bodies = [document("a"), b"\x00\xff", b"", document("large", text="x" * 300_000)]
        assert await publisher.publish([ForwardedEvent(body, NOTED) for body in bodies]) == [""] * 4
        found = place.peek(place.queue)
        assert [message.body for message in found] == bodies, "and in order"
        for message in found:
            assert message.header.properties.delivery_mode == 2
            assert decode_metadata(headers_of(message)[METADATA_KEY]) == NOTED
        assert await publisher.publish([]) == []
        await publisher.close()
        source = place.source(forwarded=True)
        delivery = (await asyncio.wait_for(source.receive(1), SOON_S))[0]
        assert (delivery.tenant, delivery.decode_options, delivery.headers) == (
            "t",
            NOTED.decode_options,
            NOTED.headers,
        )
        await source.close()

    asyncio.run(story())


def test_several_calls_may_be_under_way_and_close_waits_for_them(place: Place) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, place.queue, timeout=GENEROUS_S)
        calls = [
            asyncio.ensure_future(publisher.publish([ForwardedEvent(document(f"{call}-{at}")) for at in range(20)]))
            for call in range(10)
        ]
        await asyncio.sleep(0)
        await publisher.close()
        assert all(call.done() for call in calls)
        assert [why for call in calls for why in call.result()] == [""] * 200
        assert place.left() == 200

    asyncio.run(story())


@pytest.mark.parametrize(
    ("exchange", "reason"), [("", "no queue is bound"), ("amq.direct", "no queue is bound"), ("gone", "")]
)
def test_an_event_that_no_queue_accepts_is_not_published(place: Place, exchange: str, reason: str) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, "nobody", exchange=exchange, timeout=GENEROUS_S)
        answers = await publisher.publish([ForwardedEvent(document("a")), ForwardedEvent(document("b"))])
        assert all(answers)
        assert all(reason in answer for answer in answers)
        assert all("test-password" not in answer for answer in answers)
        await publisher.close()

    asyncio.run(story())


def test_an_event_that_the_broker_refuses_is_not_published(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)
    place.declare(**{"x-max-length": 2})  # with reject-publish: more is refused with a nack

    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, place.queue, timeout=GENEROUS_S)
        answers: list[str] = []
        while not any(answers):  # a quorum queue's limit is not exact
            answers += await publisher.publish([ForwardedEvent(document("e")) for _ in range(20)])
            assert len(answers) < 10_000
        await publisher.close()
        assert {answer for answer in answers if answer} == {answers[-1]}
        assert "refused" in answers[-1]
        assert place.left() == answers.count(""), "the answers tell exactly what is there"

    asyncio.run(story())


@pytest.mark.parametrize("fault", [Fault(refuse=True), DEAF], ids=["refused", "silent"])
def test_a_broker_out_of_reach_is_answered_in_time_and_found_again(
    place: Place, proxy: FaultProxy, fault: Fault
) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(proxy.url(place.broker.url), place.queue, timeout=1.0, random=lambda: 0.01)
        proxy.set(fault)
        began = time.monotonic()
        (why,) = await publisher.publish([ForwardedEvent(document("lost"))])
        assert why
        assert "test-password" not in why
        assert time.monotonic() - began < SOON_S / 2
        proxy.heal()
        proxy.reset()
        await _soon(publisher, ForwardedEvent(document("found")))
        await publisher.close()

    asyncio.run(story())
    assert place.left() >= 1


def test_a_confirmation_that_is_lost_counts_as_not_there(place: Place, proxy: FaultProxy) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(proxy.url(place.broker.url), place.queue, timeout=GENEROUS_S, random=lambda: 0.0)
        assert await publisher.publish([ForwardedEvent(document("first"))]) == [""]
        proxy.lose("reply")
        (why,) = await publisher.publish([ForwardedEvent(document("second"))])
        assert proxy.seen.lost_replies == 1, "inconclusive: the confirmation was not lost"
        assert why
        await _soon(publisher, ForwardedEvent(document("second")))
        await publisher.close()

    asyncio.run(story())
    assert [message.body for message in place.peek(place.queue)] == [document(e) for e in ("first", "second", "second")]


def test_two_parcels_that_look_the_same_are_each_answered_for_themselves(place: Place) -> None:
    """The driver tells by a message's id which one came back."""

    async def story() -> None:
        sending = ConfirmedSender(place.broker.url, "test", lambda: 0.0)
        same: dict[str, Any] = {"message_id": "same", "delivery_mode": 2}
        answers = await asyncio.gather(
            *[
                sending.send("", queue, b"x", Basic.Properties(**same), GENEROUS_S)
                for queue in ("nobody", place.queue, "nobody", "nobody", place.queue)
            ]
        )
        await sending.close()
        assert [not answer for answer in answers] == [False, True, False, False, True]

    asyncio.run(story())
    assert place.left() == 2


def test_an_event_that_is_too_large_is_refused_before_sending(place: Place) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, place.queue)
        large = ForwardedEvent(bytes(16 * 1024 * 1024 + 1))
        noted = ForwardedEvent(b"{}", ForwardMetadata(tenant="t" * 20_000))
        assert all(answer.startswith(TOO_LARGE) for answer in await publisher.publish([large, noted]))
        await publisher.close()

    asyncio.run(story())


def test_a_publisher_describes_its_target(place: Place) -> None:
    async def told(publisher: RabbitPublisher) -> dict[str, str]:
        facts = await publisher.diagnose()
        await publisher.close()
        return rendered(facts)

    place.send([document("e")])
    assert asyncio.run(told(RabbitPublisher(place.broker.url, place.queue)))["waiting"] == "1"
    assert asyncio.run(told(RabbitPublisher(place.broker.url, "nobody")))["queue"].startswith("error: ")
    nowhere = asyncio.run(told(RabbitPublisher("amqp://me:s3cret@127.0.0.1:1/", "q")))
    assert nowhere["connection"].startswith("error: ")
    assert "s3cret" not in str(nowhere)


async def _soon(publisher: RabbitPublisher, parcel: ForwardedEvent) -> None:
    ends = time.monotonic() + SOON_S
    while any(await publisher.publish([parcel])):
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


def test_a_publisher_that_declares_makes_the_queues_that_its_source_makes(place: Place) -> None:
    """On a fresh broker the receiver may come first, or the consumer."""

    async def story() -> None:
        queue, dead = f"{place.queue}-fresh", f"{place.queue}-fresh-dead"
        options: dict[str, Any] = {"declare": True, "dead_letters": dead}
        publisher = RabbitPublisher(place.broker.url, queue, timeout=GENEROUS_S, **options)
        assert not [fact for fact in await publisher.diagnose() if fact.level == "error"]
        assert await publisher.publish([ForwardedEvent(document("a"), NOTED)]) == [""]
        source = RabbitSource(place.broker.url, queue, forwarded=True, **options)
        (delivery,) = await asyncio.wait_for(source.receive(1), GENEROUS_S)
        assert delivery.body == document("a")
        await delivery.ack()
        await source.close()
        await publisher.close()

    asyncio.run(story())


def test_declare_needs_to_know_what_it_declares() -> None:
    wrong: list[dict[str, Any]] = [{"declare": True}, {"declare": True, "dead_letters": "dead", "exchange": "x"}]
    for options in wrong:
        with pytest.raises(ConfigError, match="dead_letters"):
            RabbitPublisher("amqp://127.0.0.1/", "queue", **options)

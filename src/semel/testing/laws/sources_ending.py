"""Receiving, and how it ends: what was received and not answered is never lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import TracebackType
from typing import Any

from semel.ports import Delivery, Source
from semel.testing.laws.sources_harness import SOON_S, Consumer, SourceBinding, SourceHarness, document
from semel.values.event import Event

MANY = 24


async def received(source: Source, count: int) -> list[Delivery]:
    """This many deliveries, however many receives they take."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(SOON_S):
        while len(deliveries) < count:
            some = await source.receive(count)
            assert some, "the source has ended before everything came"
            deliveries += some
    return deliveries


class Opened:
    """A source without a worker, which does not outlive the block."""

    def __init__(self, harness: SourceHarness) -> None:
        self.source = harness.open()
        self._harness = harness
        self._open = True

    async def __aenter__(self) -> Opened:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.end()

    async def end(self) -> None:
        """As a service ends it."""
        if self._open:
            self._open = False
            self._harness.stop(self.source)
            await self._harness.close(self.source)


class EndLaws(SourceBinding):
    """Limits, stopping, closing."""

    def test_a_receive_hands_over_no_more_than_was_asked_for(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(*[document(f"e{number}") for number in range(7)], group="")
            bodies: list[bytes] = []
            async with Opened(harness) as opened:
                while len(bodies) < 7:
                    some = await opened.source.receive(2)
                    assert 1 <= len(some) <= 2
                    bodies += [delivery.body for delivery in some]
                    for delivery in some:
                        await delivery.ack()
            assert sorted(bodies) == [document(f"e{number}") for number in range(7)]
            assert harness.left() == 0, "when a source is closed it has been told all answers"

        asyncio.run(story())

    def test_what_was_received_and_not_answered_is_given_back_at_the_end(self, harness: SourceHarness) -> None:
        async def story() -> None:
            bodies = sorted(document(f"e{number:02}") for number in range(MANY))
            harness.put(*bodies, group="")
            async with Opened(harness) as first:
                some = await first.source.receive(3)
                assert some
            began = time.monotonic()
            assert harness.left() == MANY
            async with Opened(harness) as second:
                assert sorted(delivery.body for delivery in await received(second.source, MANY)) == bodies
                if harness.hold_s:
                    assert time.monotonic() - began < harness.hold_s, "it was not given back: its time ran out"
                for delivery in some:
                    await delivery.ack()  # too late, and harmless
            if harness.hold_s:
                assert harness.left() == MANY

        asyncio.run(story())

    def test_an_answer_to_a_later_delivery_does_not_bury_an_earlier_one(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(document("first"), document("second"), document("third"), group="")
            async with Opened(harness) as one:
                deliveries = {delivery.body: delivery for delivery in await received(one.source, 3)}
                await deliveries[document("second")].ack()
                await deliveries[document("third")].ack()
            assert harness.left() >= 1
            async with Opened(harness) as other:
                assert document("first") in [d.body for d in await received(other.source, harness.left())]

        asyncio.run(story())

    def test_a_stopped_consumer_finishes_or_gives_back_what_it_has_in_hand(self, harness: SourceHarness) -> None:
        async def story() -> None:
            began: Counter[str] = Counter()
            finished: list[str] = []
            may_end = asyncio.Event()

            async def handle(event: Event, ctx: Any) -> None:
                began[event.id] += 1
                await may_end.wait()
                finished.append(event.id)

            harness.put(*[document(f"e{number:02}") for number in range(MANY)], group="")
            async with Consumer(harness, handle) as consumer:
                await consumer.until(lambda: bool(began), "the handlers to begin")
                consumer.begin_to_stop()
                ending = asyncio.ensure_future(consumer.stop())
                await asyncio.sleep(0.3)
                assert not ending.done(), "it waits for what is under way"
                may_end.set()
                await asyncio.wait_for(ending, SOON_S)
                assert began == Counter(finished), "what was begun was finished, and nothing more was begun"
                assert harness.left() == MANY - len(finished)
                assert len(await consumer.entries("done")) == len(finished)
            since = time.monotonic()
            async with Consumer(harness, handle) as other:
                await other.until_all_is_answered()
                if harness.hold_s:
                    assert time.monotonic() - since < harness.hold_s, "it was not given back: its time ran out"
                assert len(await other.entries("done")) == MANY
            assert set(began.values()) == {1}

        asyncio.run(story())


class WaitLaws(SourceBinding):
    """Of a source that waits for more when it is empty."""

    def test_a_receive_waits_for_a_delivery_until_the_source_is_stopped(self, harness: SourceHarness) -> None:
        async def story() -> None:
            async with Opened(harness) as opened:
                waiting = asyncio.ensure_future(opened.source.receive(10))
                await asyncio.sleep(0.5)
                assert not waiting.done()
                await asyncio.to_thread(harness.put, document("e"))
                (delivery,) = await asyncio.wait_for(waiting, SOON_S)
                await delivery.ack()
                waiting = asyncio.ensure_future(opened.source.receive(10))
                await asyncio.sleep(0.2)
                harness.stop(opened.source)
                assert list(await asyncio.wait_for(waiting, SOON_S)) == []
                assert list(await opened.source.receive(10)) == [], "it stays so"
            assert harness.left() == 0

        asyncio.run(story())


class HoldLaws(SourceBinding):
    """Of a source that keeps what one consumer has received from all others, for `hold_s`."""

    def test_a_message_in_hand_is_nobody_elses(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(document("e"))
            async with Opened(harness) as one, Opened(harness) as other:
                (delivery,) = await one.source.receive(1)
                looking = asyncio.ensure_future(other.source.receive(1))
                await asyncio.sleep(1.0)
                assert not looking.done()
                await delivery.ack()
                await one.end()
                harness.stop(other.source)
                assert list(await asyncio.wait_for(looking, SOON_S)) == []
            assert harness.left() == 0

        asyncio.run(story())

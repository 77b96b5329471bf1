"""For sources that keep order within a group: SQS FIFO queues, partitions of Kafka."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from semel.testing.laws.sources_harness import Consumer, SourceBinding, SourceHarness, document
from semel.values.event import Event
from semel.values.outcome import Reject, Retry

AFTER_S = 0.5


class OrderedSourceLaws(SourceBinding):
    """Order within a group is kept, also through failures."""

    def test_the_events_of_a_group_run_one_after_the_other_in_order(self, harness: SourceHarness) -> None:
        async def story() -> None:
            ran: list[str] = []
            running: Counter[str] = Counter()
            most: Counter[str] = Counter()

            async def handle(event: Event, ctx: Any) -> None:
                group = event.id[0]
                running[group] += 1
                most[group] = max(most[group], running[group])
                await asyncio.sleep(0.005)
                running[group] -= 1
                ran.append(event.id)

            for group in "abc":
                harness.put(*[document(f"{group}{number:02}") for number in range(15)], group=group)
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            assert most == {"a": 1, "b": 1, "c": 1}, "two of a group at a time"
            for group in "abc":
                assert [event for event in ran if event[0] == group] == [f"{group}{number:02}" for number in range(15)]

        asyncio.run(story())

    def test_a_group_is_stopped_by_a_failure_and_goes_on_after_it(self, harness: SourceHarness) -> None:
        async def story() -> None:
            tries: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                tries.append(event.id)
                if event.id == "a1" and ctx.attempt <= 2:
                    raise Retry(after=AFTER_S)

            harness.put(*[document(f"a{number}") for number in range(5)], group="a")
            harness.put(*[document(f"b{number}") for number in range(5)], group="b")
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            of_a = [event for event in tries if event[0] == "a"]
            assert of_a == ["a0", "a1", "a1", "a1", "a2", "a3", "a4"], "nothing overtakes what failed"
            assert [event for event in tries if event[0] == "b"] == [f"b{number}" for number in range(5)]

        asyncio.run(story())

    def test_a_group_goes_on_after_what_was_given_up(self, harness: SourceHarness) -> None:
        async def story() -> None:
            ran: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                if event.id == "a1":
                    raise Reject("never")
                ran.append(event.id)

            harness.put(document("a0"), document("a1"), b"{", document("a2"), document("a3"), group="a")
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("dead")) == 1
                await consumer.until(lambda: len(harness.letters()) == 1, "the dead letter")
            assert ran == ["a0", "a2", "a3"]

        asyncio.run(story())

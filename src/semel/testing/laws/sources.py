"""What a source is told, when, and what it makes of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from semel.testing.laws.sources_harness import Consumer, SourceBinding, SourceHarness, document
from semel.values.event import Event
from semel.values.outcome import Reject, Retry

MALFORMED = (b"{", b"no JSON at all", b"[]", b"null", b'{"a": 1, "a": 2}', b'{"neither": "id", "nor": "type"}')
RETRY_S = 1.5  # no whole number: sources that count seconds must not round it down


async def _done(event: Event, ctx: Any) -> None: ...


class AnswerLaws(SourceBinding):
    """Ack, retry and reject."""

    def test_what_is_acknowledged_is_gone_and_was_settled_before(self, harness: SourceHarness) -> None:
        async def story() -> None:
            not_forgotten: list[int] = []

            async def handle(event: Event, ctx: Any) -> None:
                not_forgotten.append(await asyncio.to_thread(harness.left) + consumer.answers()["ack"])

            harness.put(*[document(f"e{number}") for number in range(5)])
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("done")) == 5
                assert consumer.answers() == {"ack": 5}
                assert {told.state for told in consumer.told} == {"done"}
            assert min(not_forgotten) >= 5, "nothing is acknowledged while its handler runs"
            assert harness.letters() == []

        asyncio.run(story())

    def test_a_body_arrives_as_it_was_sent(self, harness: SourceHarness) -> None:
        async def story() -> None:
            arrived: list[bytes] = []

            async def handle(event: Event, ctx: Any) -> None:
                arrived.append(event.raw)

            bodies = [document("é – 漢字 \U0001f4de"), document("large", text="x" * 150_000), b" " + document("spaced")]
            harness.put(*bodies)
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            assert sorted(arrived) == sorted(bodies)

        asyncio.run(story())

    def test_a_retry_comes_again_and_not_before_its_time(self, harness: SourceHarness) -> None:
        async def story() -> None:
            began: list[float] = []

            async def handle(event: Event, ctx: Any) -> None:
                began.append(time.monotonic())
                if ctx.attempt == 1:
                    raise Retry(after=RETRY_S)

            harness.put(document("e"))
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("done")) == 1
                assert consumer.answers() == {"retry": 1, "ack": 1}, "an early one would only be Busy"
            first, second = began
            assert second - first >= RETRY_S

        asyncio.run(story())

    def test_a_retry_keeps_nobody_else_waiting(self, harness: SourceHarness) -> None:
        async def story() -> None:
            order: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                order.append(event.id)
                if event.id == "slow" and ctx.attempt == 1:
                    raise Retry(after=RETRY_S)

            harness.put(document("slow"), group="one")
            async with Consumer(harness, handle) as consumer:
                await consumer.until(lambda: bool(order), "the first try")
                harness.put(document("quick"), group="two")
                await consumer.until_all_is_answered()
            assert order == ["slow", "quick", "slow"]

        asyncio.run(story())

    def test_poison_is_dead_after_its_attempts_and_acknowledged_when_the_letter_is_kept(
        self, harness: SourceHarness
    ) -> None:
        async def story() -> None:
            tried: Counter[str] = Counter()

            async def handle(event: Event, ctx: Any) -> None:
                tried[event.id] += 1
                if event.id == "rejected":
                    raise Reject("never")
                if event.id == "poison":
                    raise ValueError("the handler's own words")

            harness.put(document("poison"), group="one")
            harness.put(document("rejected"), group="two")
            harness.put(document("good"), group="three")
            async with Consumer(harness, handle, max_attempts=3) as consumer:
                await consumer.until_all_is_answered()
                dead = {entry.text: entry for entry in await consumer.entries("dead")}
                assert len(dead) == 2
                for entry in dead.values():
                    assert entry.reason
                    assert entry.event in (document("poison"), document("rejected"))
                acks = {told.body: told.state for told in consumer.told if told.answer == "ack"}
                assert acks == {document("poison"): "dead", document("rejected"): "dead", document("good"): "done"}
            assert tried == {"poison": 3, "rejected": 1, "good": 1}
            assert harness.letters() == [], "the ledger keeps it, and shows it to people"

        asyncio.run(story())

    def test_a_busy_event_comes_again_and_is_not_counted_as_a_failure(self, harness: SourceHarness) -> None:
        async def story() -> None:
            began: list[int] = []
            may_end = asyncio.Event()

            async def handle(event: Event, ctx: Any) -> str:
                began.append(ctx.attempt)
                await may_end.wait()
                return "first"

            harness.put(document("e"), group="one")
            async with Consumer(harness, handle, max_attempts=1) as first:
                await first.until(lambda: bool(began), "the handler to begin")
                async with Consumer(harness, handle, max_attempts=1) as second:
                    harness.put(document("e"), group="two")  # another copy; the first is in hand
                    await second.until(lambda: len(first.told) + len(second.told) >= 2, "two answers of busy")
                    assert {told.answer for told in [*first.told, *second.told]} == {"retry"}
                    may_end.set()
                    await second.until_all_is_answered()
                (entry,) = await first.entries()
            assert (entry.state, entry.attempts, began) == ("done", 1, [1])
            assert harness.letters() == []

        asyncio.run(story())

    def test_what_is_no_event_becomes_a_dead_letter_with_its_reason_once(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(*MALFORMED)
            harness.put(document("good"))
            async with Consumer(harness, _done) as consumer:
                await consumer.until_all_is_answered()
                await consumer.until(lambda: len(harness.letters()) == len(MALFORMED), "the dead letters")
                assert consumer.answers() == {"reject": len(MALFORMED), "ack": 1}, "each came once"
                assert len(await consumer.entries()) == 1
            letters = harness.letters()
            assert sorted(letter.body for letter in letters) == sorted(MALFORMED)
            assert all(letter.reason for letter in letters)

        asyncio.run(story())

    def test_another_payload_under_a_known_key_becomes_a_dead_letter(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(document("e"))
            async with Consumer(harness, _done) as consumer:
                await consumer.until_all_is_answered()
                harness.put(document("e", other="payload"))
                await consumer.until(lambda: len(harness.letters()) == 1, "the dead letter")
                await consumer.until_all_is_answered()
            ((body, reason),) = harness.letters()
            assert body == document("e", other="payload")
            assert "payload" in reason

        asyncio.run(story())

    def test_a_duplicate_is_acknowledged_without_another_effect(self, harness: SourceHarness) -> None:
        async def story() -> None:
            ran: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                ran.append(event.id)

            harness.put(*[document(event) for event in ("a", "b", "a", "c", "b", "a")])
            async with Consumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            assert sorted(ran) == ["a", "b", "c"]
            assert harness.letters() == []

        asyncio.run(story())

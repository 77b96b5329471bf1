"""Laws of a source: its answers, its end, order within groups, and killed consumers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from semel.ports import Delivery, Source
from semel.testing.crash import landing
from semel.testing.laws.source_harness import (
    LANDED,
    SAID,
    SOON_S,
    Process,
    SourceBinding,
    SourceConsumer,
    SourceHarness,
    document,
)
from semel.values.event import Event
from semel.values.outcome import Reject, Retry

MALFORMED = (b"{", b"no JSON at all", b"[]", b"null", b'{"a": 1, "a": 2}', b'{"neither": "id", "nor": "type"}')
RETRY_S = 1.5  # not a whole number, so that rounding down to seconds fails


async def _done(event: Event, ctx: Any) -> None: ...


class AnswerLaws(SourceBinding):
    """Laws of ack, retry and reject."""

    def test_an_acknowledged_message_is_gone_and_was_settled_before(self, harness: SourceHarness) -> None:
        async def story() -> None:
            not_forgotten: list[int] = []

            async def handle(event: Event, ctx: Any) -> None:
                not_forgotten.append(await asyncio.to_thread(harness.left) + consumer.answers()["ack"])

            harness.put(*[document(f"e{number}") for number in range(5)])
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("done")) == 5
                assert consumer.answers() == {"ack": 5}
                assert {one.state for one in consumer.seen} == {"done"}
            assert min(not_forgotten) >= 5, "nothing is acknowledged while its handler runs"
            assert harness.dead_letters() == []

        asyncio.run(story())

    def test_a_body_arrives_as_it_was_sent(self, harness: SourceHarness) -> None:
        async def story() -> None:
            arrived: list[bytes] = []

            async def handle(event: Event, ctx: Any) -> None:
                arrived.append(event.raw)

            bodies = [document("é – 漢字 \U0001f4de"), document("large", text="x" * 150_000), b" " + document("spaced")]
            harness.put(*bodies)
            async with SourceConsumer(harness, handle) as consumer:
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
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("done")) == 1
                assert consumer.answers() == {"retry": 1, "ack": 1}, "an early one would only be Busy"
            first, second = began
            assert second - first >= RETRY_S

        asyncio.run(story())

    def test_a_retry_does_not_delay_other_messages(self, harness: SourceHarness) -> None:
        async def story() -> None:
            order: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                order.append(event.id)
                if event.id == "slow" and ctx.attempt == 1:
                    raise Retry(after=RETRY_S)

            harness.put(document("slow"), group="one")
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until(lambda: bool(order), "the first try")
                harness.put(document("quick"), group="two")
                await consumer.until_all_is_answered()
            assert order == ["slow", "quick", "slow"]

        asyncio.run(story())

    def test_poison_is_dead_after_its_attempts_and_acknowledged_when_the_dead_letter_is_kept(
        self, harness: SourceHarness
    ) -> None:
        async def story() -> None:
            attempt_log: Counter[str] = Counter()

            async def handle(event: Event, ctx: Any) -> None:
                attempt_log[event.id] += 1
                if event.id == "rejected":
                    raise Reject("never")
                if event.id == "poison":
                    raise ValueError("the handler's own words")

            harness.put(document("poison"), group="one")
            harness.put(document("rejected"), group="two")
            harness.put(document("good"), group="three")
            async with SourceConsumer(harness, handle, max_attempts=3) as consumer:
                await consumer.until_all_is_answered()
                dead = {entry.text: entry for entry in await consumer.entries("dead")}
                assert len(dead) == 2
                for entry in dead.values():
                    assert entry.reason
                    assert entry.event in (document("poison"), document("rejected"))
                acks = {one.body: one.state for one in consumer.seen if one.answer == "ack"}
                assert acks == {document("poison"): "dead", document("rejected"): "dead", document("good"): "done"}
            assert attempt_log == {"poison": 3, "rejected": 1, "good": 1}
            assert harness.dead_letters() == [], "the dead letter is in the ledger"

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
            async with SourceConsumer(harness, handle, max_attempts=1) as first:
                await first.until(lambda: bool(began), "the handler to begin")
                async with SourceConsumer(harness, handle, max_attempts=1) as second:
                    harness.put(document("e"), group="two")  # another copy; the first is in flight
                    await second.until(lambda: len(first.seen) + len(second.seen) >= 2, "two answers of busy")
                    assert {one.answer for one in [*first.seen, *second.seen]} == {"retry"}
                    may_end.set()
                    await second.until_all_is_answered()
                (entry,) = await first.entries()
            assert (entry.state, entry.attempts, began) == ("done", 1, [1])
            assert harness.dead_letters() == []

        asyncio.run(story())

    def test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(*MALFORMED)
            harness.put(document("good"))
            async with SourceConsumer(harness, _done) as consumer:
                await consumer.until_all_is_answered()
                await consumer.until(lambda: len(harness.dead_letters()) == len(MALFORMED), "the dead letters")
                assert consumer.answers() == {"reject": len(MALFORMED), "ack": 1}, "each was delivered once"
                assert len(await consumer.entries()) == 1
            dead_letters = harness.dead_letters()
            assert sorted(dead_letter.body for dead_letter in dead_letters) == sorted(MALFORMED)
            assert all(dead_letter.reason for dead_letter in dead_letters)

        asyncio.run(story())

    def test_another_payload_under_a_known_key_becomes_a_dead_letter(self, harness: SourceHarness) -> None:
        async def story() -> None:
            harness.put(document("e"))
            async with SourceConsumer(harness, _done) as consumer:
                await consumer.until_all_is_answered()
                harness.put(document("e", other="payload"))
                await consumer.until(lambda: len(harness.dead_letters()) == 1, "the dead letter")
                await consumer.until_all_is_answered()
            ((body, reason),) = harness.dead_letters()
            assert body == document("e", other="payload")
            assert "payload" in reason

        asyncio.run(story())

    def test_a_duplicate_is_acknowledged_without_another_effect(self, harness: SourceHarness) -> None:
        async def story() -> None:
            ran: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                ran.append(event.id)

            harness.put(*[document(event) for event in ("a", "b", "a", "c", "b", "a")])
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            assert sorted(ran) == ["a", "b", "c"]
            assert harness.dead_letters() == []

        asyncio.run(story())


# Laws of the end of a source: a message that was received and not answered is never lost.

MANY = 24


async def received(source: Source, count: int) -> list[Delivery]:
    """Receive until there are this many deliveries."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(SOON_S):
        while len(deliveries) < count:
            some = await source.receive(count)
            assert some, "the source ended before all deliveries"
            deliveries += some
    return deliveries


class Opened:
    """A source without a worker, closed at the end of the block."""

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
        """Stop and close the source as a service does."""
        if self._open:
            self._open = False
            self._harness.stop(self.source)
            await self._harness.close(self.source)


class EndLaws(SourceBinding):
    """Laws of limits, stopping and closing."""

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
            assert harness.left() == 0, "a closed source has all answers"

        asyncio.run(story())

    def test_unanswered_messages_are_returned_at_the_end(self, harness: SourceHarness) -> None:
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
                    assert time.monotonic() - began < harness.hold_s, "it was not returned, but its time ran out"
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
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until(lambda: bool(began), "the handlers to begin")
                consumer.begin_to_stop()
                ending = asyncio.ensure_future(consumer.stop())
                await asyncio.sleep(0.3)
                assert not ending.done(), "it waits for running handlers"
                may_end.set()
                await asyncio.wait_for(ending, SOON_S)
                assert began == Counter(finished), "running handlers finished, and no other started"
                assert harness.left() == MANY - len(finished)
                assert len(await consumer.entries("done")) == len(finished)
            since = time.monotonic()
            async with SourceConsumer(harness, handle) as other:
                await other.until_all_is_answered()
                if harness.hold_s:
                    assert time.monotonic() - since < harness.hold_s, "it was not returned, but its time ran out"
                assert len(await other.entries("done")) == MANY
            assert set(began.values()) == {1}

        asyncio.run(story())


class WaitLaws(SourceBinding):
    """Laws for a source that waits for more messages when it is empty."""

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
                assert list(await opened.source.receive(10)) == [], "it stays stopped"
            assert harness.left() == 0

        asyncio.run(story())


class HoldLaws(SourceBinding):
    """Laws for a source that hides received messages from other consumers for `hold_s`."""

    def test_a_message_in_flight_is_hidden_from_other_consumers(self, harness: SourceHarness) -> None:
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


# Laws for sources that keep order within a group: SQS FIFO queues, Kafka partitions.

AFTER_S = 0.5


class OrderedSourceLaws(SourceBinding):
    """Laws of order within a group, also through failures."""

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
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            assert most == {"a": 1, "b": 1, "c": 1}, "two events of a group ran at the same time"
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
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
            of_a = [event for event in tries if event[0] == "a"]
            assert of_a == ["a0", "a1", "a1", "a1", "a2", "a3", "a4"], "no event overtakes a failed one"
            assert [event for event in tries if event[0] == "b"] == [f"b{number}" for number in range(5)]

        asyncio.run(story())

    def test_a_group_continues_after_an_event_that_was_given_up(self, harness: SourceHarness) -> None:
        async def story() -> None:
            ran: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                if event.id == "a1":
                    raise Reject("never")
                ran.append(event.id)

            harness.put(document("a0"), document("a1"), b"{", document("a2"), document("a3"), group="a")
            async with SourceConsumer(harness, handle) as consumer:
                await consumer.until_all_is_answered()
                assert len(await consumer.entries("dead")) == 1
                await consumer.until(lambda: len(harness.dead_letters()) == 1, "the dead letter")
            assert ran == ["a0", "a2", "a3"]

        asyncio.run(story())


# Laws of a killed consumer: every event takes effect exactly once, whichever step the kill hits.

AGAIN = "again"  # `data.again`: the handler requests a retry in the first attempt
EACH = 2  # good events for each crash
POLL_S = 0.02


class CrashLaws(SourceBinding):
    """A real process consumes the source and is killed by SIGKILL. Its handler for the type `law` has
    effect="transaction", or another effect that happens once. With `data.again` it raises `Retry(after=0)` in its first
    attempt. The number of attempts is unlimited, and leases are as short as possible."""

    def test_nothing_is_lost_when_the_consumer_is_killed_at_any_step(
        self, harness: SourceHarness, tmp_path: Path
    ) -> None:
        """Processes run one after the other, each with its own events and the events that killed processes left."""
        events: list[str] = []
        malformed: list[bytes] = []
        for step in harness.steps:
            mine = [f"{step} {number}" for number in range(EACH)]
            events += [*mine, f"{step} again"]
            malformed.append(f"{{ {step}".encode())
            harness.put(*[document(event) for event in mine], group=step)
            harness.put(document(f"{step} again", again=True), group=f"{step} again")
            harness.put(malformed[-1], group=f"{step} malformed")
            _die(harness, step, tmp_path)
        with _working(harness, "", tmp_path) as process:
            _wait(harness, process, tmp_path)
        assert Counter(harness.happened()) == dict.fromkeys(events, 1)
        kept = Counter(dead_letter.body for dead_letter in harness.dead_letters())
        assert set(kept) == set(malformed), "malformed messages are kept"
        assert all(dead_letter.reason for dead_letter in harness.dead_letters())


def _die(harness: SourceHarness, step: str, folder: Path) -> None:
    marker = folder / LANDED
    marker.unlink(missing_ok=True)
    with _working(harness, step, folder) as process:
        try:
            code = process.wait(SOON_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the consumer did not reach {step} within {SOON_S:g} s{_output(folder)}")
    assert code in (0, -signal.SIGKILL), f"the consumer failed with {code} before {step}{_output(folder)}"
    assert marker.exists(), f"inconclusive: the crash at {step} did not land, exit code {code}{_output(folder)}"
    assert marker.read_text() == landing(step)
    assert code == -signal.SIGKILL, f"the consumer survived its crash at {step}{_output(folder)}"


def _wait(harness: SourceHarness, process: Process, folder: Path) -> None:
    ends = time.monotonic() + SOON_S
    while harness.left():
        assert process.poll() is None, f"it ended with {process.poll()}{_output(folder)}"
        assert time.monotonic() < ends, f"{harness.left()} messages are left{_output(folder)}"
        time.sleep(POLL_S)


@contextmanager
def _working(harness: SourceHarness, step: str, folder: Path) -> Iterator[Process]:
    process = harness.consumer(step, folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _output(folder: Path) -> str:
    file = folder / SAID
    return "; its output:\n" + file.read_text("utf-8", "replace")[-4000:] if file.exists() else ""

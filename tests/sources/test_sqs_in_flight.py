"""What is in hand: order within a group, and nothing forgotten. And how answers are put together."""

from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from semel.sources.sqs_queue.answers import BatchSender
from semel.sources.sqs_queue.in_flight import SqsInFlight, SqsMessage

GROUPS = "abc"
MOST = 1_000


def held(number: int, group: str) -> SqsMessage:
    message = {"MessageId": str(number), "ReceiptHandle": str(number), "Attributes": {"MessageGroupId": group}}
    return SqsMessage(message, 0.0, 30.0)


class Everywhere:
    """Where each message is, told by whoever moved it."""

    def __init__(self, fifo: bool) -> None:
        self.fifo = fifo
        self.in_flight = SqsInFlight(MOST, fifo=fifo)
        self.put: list[SqsMessage] = []
        self.handed: list[SqsMessage] = []
        self.over: list[SqsMessage] = []  # settled, given back or lost

    def end(self, *some: SqsMessage) -> None:
        for one in some:
            assert one not in self.over, "one answer for each"
            self.over.append(one)
            self.in_flight.forget(one)

    def check(self) -> None:
        assert len(self.in_flight) == len(self.put) - len(self.over)
        if self.fifo:
            groups = [one.group for one in self.handed]
            assert len(groups) == len(set(groups)), "one of a group at a time"
            for one in self.handed:
                before = [other for other in self.put[: self.put.index(one)] if other.group == one.group]
                assert all(other in self.over for other in before), "nothing is overtaken"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.sampled_from(GROUPS), max_size=10)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["settle", "fail", "lose", "lose any", "leave"]), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(steps=steps, fifo=st.booleans())
def test_messages_in_flight_keep_their_order_within_groups_and_none_is_lost(
    steps: list[tuple[str, object]], fifo: bool
) -> None:
    async def story() -> None:
        at = Everywhere(fifo)
        for what, how in steps:
            match what, how:
                case "put", list(groups):
                    some = [held(len(at.put) + number, group) for number, group in enumerate(groups)]
                    at.put += some
                    at.in_flight.put(some, 0)
                case "take", int(limit):
                    taken = at.in_flight.take(limit)
                    assert len(taken) <= limit
                    at.handed += taken
                case (("settle" | "fail" | "lose"), int(which)) if at.handed:
                    one = at.handed[which % len(at.handed)]
                    if what == "lose":
                        assert at.in_flight.mark_lost(one) == [], "somebody works on it"
                        continue
                    at.handed.remove(one)
                    if what == "settle":
                        at.in_flight.release_next(one)
                        at.end(one)
                    else:
                        rest = at.in_flight.remove_group(one)
                        assert rest == sorted(rest, key=at.put.index), "they go back in order"
                        at.end(one, *rest)
                case "lose any", int(which):
                    waiting = [one for one in at.put if one not in at.over and one not in at.handed]
                    if waiting:
                        one = waiting[which % len(waiting)]
                        at.over.append(one)
                        at.end(*at.in_flight.mark_lost(one))
                        assert one not in at.in_flight.extendable
                case "leave", int(which) if which % 10 == 0:
                    at.end(*at.in_flight.take_waiting())
            at.check()
        while taken := at.in_flight.take(100):  # everything that waits can be had
            for one in taken:
                at.in_flight.release_next(one)
                at.end(one)
        for one in list(at.handed):
            at.handed.remove(one)
            at.in_flight.release_next(one)
            at.end(one)
        while taken := at.in_flight.take(100):
            for one in taken:
                at.in_flight.release_next(one)
                at.end(one)
        assert len(at.in_flight) == 0
        assert set(at.over) == set(at.put)

    asyncio.run(story())


def test_room_is_waited_for_and_never_exceeded() -> None:
    async def story() -> None:
        in_flight = SqsInFlight(25, fifo=False)
        assert await in_flight.reserve(10) == 10
        first = [held(number, "") for number in range(7)]
        in_flight.put(first, 10)
        assert await in_flight.reserve(10) == 10
        waiting = asyncio.ensure_future(in_flight.reserve(10))
        await asyncio.sleep(0)
        for one in first[:1]:
            in_flight.forget(one)
            await asyncio.sleep(0)
            assert not waiting.done()
        in_flight.forget(first[1])
        assert await waiting == 10

    asyncio.run(story())


@given(
    weights=st.lists(st.integers(1, 60), max_size=80),
    lanes=st.integers(1, 4),
    bad=st.sets(st.integers(0, 79), max_size=20),
)
def test_every_entry_is_sent_until_it_has_arrived_in_batches_that_fit(
    weights: list[int], lanes: int, bad: set[int]
) -> None:
    async def story() -> None:
        arrived: list[int] = []
        fails = set(bad)
        running = 0

        async def send(batch: list[int]) -> list[int]:
            nonlocal running
            running += 1
            assert running <= lanes
            assert 1 <= len(batch) <= 10
            assert len(batch) == 1 or sum(weights[entry] for entry in batch) <= 50
            await asyncio.sleep(0)
            again = [entry for entry in batch if entry in fails]
            fails.difference_update(again)
            arrived.extend(entry for entry in batch if entry not in again)
            running -= 1
            return again

        grouped = BatchSender(send, lanes, lambda: 0.0, lambda entry: weights[entry], 50)
        for entry in range(len(weights)):
            grouped.add(entry)
            if entry % 7 == 0:
                await asyncio.sleep(0)
        await grouped.drained()
        assert sorted(arrived) == list(range(len(weights)))

    asyncio.run(story())


def test_an_entry_that_is_added_in_the_moment_when_a_request_ends_is_sent() -> None:
    async def story() -> None:
        arrived: list[int] = []

        async def send(batch: list[int]) -> list[int]:
            await asyncio.sleep(0)
            arrived.extend(batch)
            asyncio.get_running_loop().call_soon(late, len(arrived))  # its lane has ended then, and nobody has noticed
            return []

        def late(number: int) -> None:
            if number < 20:
                grouped.add(number)

        grouped = BatchSender(send, 1, lambda: 0.0)
        grouped.add(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert arrived == list(range(20))

    asyncio.run(story())


def test_entries_added_during_a_request_form_the_next_one() -> None:
    async def story() -> None:
        batches: deque[list[int]] = deque()
        answered = asyncio.Event()

        async def send(batch: list[int]) -> list[int]:
            batches.append(batch)
            await answered.wait()
            return []

        grouped: BatchSender[int] = BatchSender(send, 8, lambda: 0.0)
        grouped.add(0)
        await asyncio.sleep(0)
        for entry in range(1, 8):
            grouped.add(entry)
            await asyncio.sleep(0)
        assert list(batches) == [[0]]
        answered.set()
        await grouped.drained()
        assert list(batches) == [[0], [1, 2, 3, 4, 5, 6, 7]]

    asyncio.run(story())

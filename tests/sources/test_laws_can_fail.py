"""Laws that cannot fail prove nothing: sources with a bug each, and the law that must catch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sources.places import Queue, folder_harness

from semel.ports import Delivery
from semel.sources.sqs_queue import SqsSource
from semel.sources.sqs_queue.answers import SqsAnswers
from semel.sources.sqs_queue.in_flight import SqsInFlight, SqsMessage
from semel.testing.folder_source import FolderDelivery, FolderSource
from semel.testing.laws import source_harness
from semel.testing.source_laws import OrderedSourceLaws, SourceHarness, SourceLaws

pytestmark = pytest.mark.long  # planted bugs

LAWS, ORDER = SourceLaws(), OrderedSourceLaws()
SOON_S = 1.5


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never happens need not be waited for so long."""
    monkeypatch.setattr(source_harness.SourceConsumer.until, "__defaults__", (SOON_S,))
    monkeypatch.setattr(source_harness.SourceConsumer.until_all_is_answered, "__defaults__", (SOON_S,))


class Eager(FolderSource):
    """Acknowledges when it hands over."""

    async def receive(self, limit: int) -> list[Delivery]:
        deliveries = await super().receive(limit)
        for delivery in deliveries:
            await delivery.ack()
        return deliveries


class Hasty(FolderSource):
    """Does not wait before it delivers again."""

    def _hide(self, name: str, after_s: float) -> None:
        super()._hide(name, 0.0)


class Silent(FolderSource):
    """Throws away what is rejected."""

    def _reject(self, name: str, reason: str) -> None:
        self._remove(name)


class Endless(FolderSource):
    """Delivers what was rejected again and again."""

    def _reject(self, name: str, reason: str) -> None:
        self._hide(name, 0.0)


class Forgetful(FolderSource):
    """Takes a retry for an acknowledgement."""

    def _hide(self, name: str, after_s: float) -> None:
        self._remove(name)


class Greedy(FolderSource):
    """Hands over more than was asked for."""

    async def receive(self, limit: int) -> list[Delivery]:
        return await super().receive(100)


class Burying(FolderSource):
    """An acknowledgement counts for everything before it, as a careless commit of a position does."""

    def _remove(self, name: str) -> None:
        for earlier in self._names():
            if earlier <= name:
                super()._remove(earlier)


class Mangling(FolderSource):
    """Changes bodies on the way."""

    async def receive(self, limit: int) -> list[Delivery]:
        deliveries: Sequence[Delivery] = await super().receive(limit)
        return [FolderDelivery(self, d.name, d.body.strip()) for d in deliveries if isinstance(d, FolderDelivery)]


BUGS: list[tuple[type[FolderSource], Callable[[SourceHarness], None]]] = [
    (Eager, LAWS.test_an_acknowledged_message_is_gone_and_was_settled_before),
    (Eager, LAWS.test_unanswered_messages_are_returned_at_the_end),
    (Hasty, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (Silent, LAWS.test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once),
    (Silent, LAWS.test_another_payload_under_a_known_key_becomes_a_dead_letter),
    (Endless, LAWS.test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once),
    (Forgetful, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (Forgetful, LAWS.test_poison_is_dead_after_its_attempts_and_acknowledged_when_the_dead_letter_is_kept),
    (Greedy, LAWS.test_a_receive_hands_over_no_more_than_was_asked_for),
    (Burying, LAWS.test_an_answer_to_a_later_delivery_does_not_bury_an_earlier_one),
    (Mangling, LAWS.test_a_body_arrives_as_it_was_sent),
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("broken", "law"), BUGS, ids=[f"{bug.__name__}-{law.__name__}" for bug, law in BUGS])
def test_a_source_with_a_bug_breaks_its_law(
    broken: type[FolderSource], law: Callable[[SourceHarness], None], tmp_path: Path
) -> None:
    harness = folder_harness(tmp_path)
    harness.open = lambda: broken(tmp_path / "source", patience_s=0.2)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law(harness)


def _overtaken(self: SqsInFlight, held: SqsMessage) -> list[SqsMessage]:
    """The group goes on although one of it failed."""
    self.release_next(held)
    return []


def test_a_group_that_is_not_stopped_breaks_the_law(
    new_queue: Callable[..., Queue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqsInFlight, "remove_group", _overtaken)
    with pytest.raises(AssertionError, match="no event overtakes a failed one"):
        ORDER.test_a_group_is_stopped_by_a_failure_and_goes_on_after_it(new_queue(fifo=True).harness(tmp_path))


def test_delivering_a_whole_group_at_once_breaks_the_law(
    new_queue: Callable[..., Queue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqsInFlight.__init__
    monkeypatch.setattr(SqsInFlight, "__init__", lambda self, most, *, fifo: made(self, most, fifo=False))
    with pytest.raises(AssertionError):
        ORDER.test_the_events_of_a_group_run_one_after_the_other_in_order(new_queue(fifo=True).harness(tmp_path))


def test_a_source_that_returns_nothing_breaks_the_law(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqsAnswers, "return_unused", lambda self, unused: None)
    harness = queue.harness(tmp_path)
    harness.hold_s = 3
    harness.open = lambda: queue.source(visibility=3)
    with pytest.raises(AssertionError, match="it was not returned"):
        LAWS.test_unanswered_messages_are_returned_at_the_end(harness)


async def _closed_at_once(self: SqsSource) -> None:
    """Without telling the queue what was answered."""
    self.stop()
    for task in self._polls:
        task.cancel()
    self._answers.cancel()
    await asyncio.wait([*self._polls, *[task for task in [self._extending] if task is not None and task.cancel()]])
    await self._client.close()


def test_a_source_that_closes_without_its_answers_breaks_the_law(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqsSource, "close", _closed_at_once)
    harness: Any = queue.harness(tmp_path)
    with pytest.raises(AssertionError, match="has all answers"):
        LAWS.test_a_receive_hands_over_no_more_than_was_asked_for(harness)

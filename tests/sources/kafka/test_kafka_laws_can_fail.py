"""Laws that cannot fail prove nothing: a Kafka source with a bug each, and the law or the test that must catch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.sources.kafka.test_kafka_answers import settled_only_when_durable
from tests.sources.kafka.test_kafka_groups import partitions_move
from tests.sources.kafka.topics import Topics
from tests.support.servers.kafka import KafkaServer

from semel.sources.kafka_topic import KafkaSource
from semel.sources.kafka_topic.dead_letters import DeadLetterTopic
from semel.sources.kafka_topic.in_flight import KafkaInFlight, KafkaMessage, PartitionLane
from semel.sources.kafka_topic.poller import Poller
from semel.sources.lifecycle import QueueDelivery
from semel.testing.laws import source_harness
from semel.testing.source_laws import OrderedSourceLaws, SourceHarness, SourceLaws

pytestmark = pytest.mark.long  # planted bugs

LAWS, ORDER = SourceLaws(), OrderedSourceLaws()
SOON_S = 4.0  # a group needs a moment, and what never happens need not be waited for longer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_harness.SourceConsumer.until, "__defaults__", (SOON_S,))
    monkeypatch.setattr(source_harness.SourceConsumer.until_all_is_answered, "__defaults__", (SOON_S,))


def _commit_the_highest(self: PartitionLane, held: KafkaMessage) -> None:
    """An answer counts for everything before it."""
    held.settled = True
    self.position = max(self.position, held.offset + 1)


_receive = KafkaSource.receive


async def _ack_at_once(self: KafkaSource, limit: int) -> Sequence[QueueDelivery[KafkaMessage]]:
    """Settled when it is handed over, before anybody has acted on it."""
    deliveries = await _receive(self, limit)
    for delivery in deliveries:
        assert delivery._message is not None
        self._in_flight.settle(delivery._message)
    return deliveries


def _forget(self: KafkaInFlight, held: KafkaMessage, after_s: float) -> None:
    """Takes a retry for an acknowledgement."""
    self.settle(held)


def _hurry(self: KafkaInFlight, held: KafkaMessage, after_s: float) -> None:
    """Does not wait before it hands over again."""
    self.put([held])


def _throw_away(self: DeadLetterTopic, held: KafkaMessage, reason: str) -> None:
    """A message that nobody can act on is settled, and kept nowhere."""
    self._settle(held)


_send = DeadLetterTopic.send


def _do_not_wait(self: DeadLetterTopic, held: KafkaMessage, reason: str) -> None:
    """Settled when the letter is on its way."""
    _send(self, held, reason)
    self._settle(held)


def _without_order(self: KafkaInFlight, held: KafkaMessage) -> None:
    self._ready.append(held)


def _leave_without_commit(self: Poller, lanes: list[PartitionLane]) -> bool:
    """What was answered last is not told when the source is closed."""
    return True


BUGS: list[tuple[type, str, Any, Callable[[SourceHarness], None]]] = [
    (
        PartitionLane,
        "settle",
        _commit_the_highest,
        LAWS.test_an_answer_to_a_later_delivery_does_not_bury_an_earlier_one,
    ),
    (KafkaSource, "receive", _ack_at_once, LAWS.test_unanswered_messages_are_returned_at_the_end),
    (KafkaInFlight, "wait", _forget, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (KafkaInFlight, "wait", _hurry, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (DeadLetterTopic, "send", _throw_away, LAWS.test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once),
    (KafkaInFlight, "_queue_by_key", _without_order, ORDER.test_the_events_of_a_group_run_one_after_the_other_in_order),
    (
        Poller,
        "_commit_and_wait",
        _leave_without_commit,
        LAWS.test_a_receive_hands_over_no_more_than_was_asked_for,
    ),
]


@pytest.mark.parametrize(("place", "name", "bug", "law"), BUGS, ids=[bug.__name__ for _, _, bug, _ in BUGS])
def test_a_source_with_a_bug_breaks_its_law(
    place: type,
    name: str,
    bug: Any,
    law: Callable[[SourceHarness], None],
    topics: Topics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, bug)
    if bug is _leave_without_commit:
        monkeypatch.setattr("semel.sources.kafka_topic.poller.COMMIT_EVERY_S", 60.0)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law(topics.harness(tmp_path, in_order=bug is _without_order))


def test_settling_before_the_dead_letter_is_durable_is_noticed(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadLetterTopic, "send", _do_not_wait)
    with pytest.raises(AssertionError, match="its letter is nowhere"):
        settled_only_when_durable(own_kafka)


def test_a_commit_of_the_highest_offset_is_noticed_when_partitions_move(
    new_topics: Callable[..., Topics], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionLane, "settle", _commit_the_highest)
    with pytest.raises(AssertionError, match="what is unsettled is buried"):
        partitions_move(new_topics(partitions=4))

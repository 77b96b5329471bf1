"""Laws that cannot fail prove nothing: the source with a bug each, and the law that must catch it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sources.rabbitmq import test_rabbitmq_answers as answers
from tests.sources.rabbitmq import test_rabbitmq_publishing as publishing
from tests.sources.rabbitmq.places import Place

from semel.sources.rabbitmq_queue import RabbitSource, messages
from semel.sources.rabbitmq_queue import answers as answering
from semel.sources.rabbitmq_queue.answers import RabbitAnswers
from semel.sources.rabbitmq_queue.messages import RabbitMessage
from semel.sources.rabbitmq_queue.publisher import ConfirmedSender
from semel.sources.rabbitmq_queue.session import AckBatcher
from semel.testing.laws import source_harness
from semel.testing.source_laws import SourceHarness, SourceLaws

pytestmark = pytest.mark.long  # planted bugs

LAWS = SourceLaws()
SOON_S = 3.0
Patch = Callable[[pytest.MonkeyPatch], None]
Law = Callable[[SourceHarness], None]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never happens need not be waited for so long."""
    monkeypatch.setattr(source_harness.SourceConsumer.until, "__defaults__", (SOON_S,))
    monkeypatch.setattr(source_harness.SourceConsumer.until_all_is_answered, "__defaults__", (SOON_S,))


def acknowledges_when_it_hands_over(patch: pytest.MonkeyPatch) -> None:
    deliveries = RabbitSource._deliveries

    def eager(self: RabbitSource, taken: Any) -> Any:
        for held in taken:
            held.session.acks.ack(held.tag)
        return deliveries(self, taken)

    patch.setattr(RabbitSource, "_deliveries", eager)


def acknowledges_a_retry(patch: pytest.MonkeyPatch) -> None:
    """And makes no copy."""
    patch.setattr(RabbitAnswers, "retry", lambda self, held, after_s: self.ack(held))


def retries_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answering, "next_wait", lambda after_s: (0, 0.0))


def rounds_a_retry_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answering, "next_wait", lambda after_s: messages.next_wait(int(after_s)))


def throws_away_what_is_rejected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RabbitAnswers, "reject", lambda self, held, reason: self.ack(held))


def returns_what_is_rejected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RabbitAnswers, "reject", lambda self, held, reason: self.return_message(held))


def acknowledges_everything_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AckBatcher, "_frames", lambda self, acked: [(max(acked), True)] if acked else [])


def closes_without_its_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AckBatcher, "_send_soon", lambda self: None)


BUGS: list[tuple[Patch, Law]] = [
    (acknowledges_when_it_hands_over, LAWS.test_unanswered_messages_are_returned_at_the_end),
    (acknowledges_when_it_hands_over, LAWS.test_an_acknowledged_message_is_gone_and_was_settled_before),
    (acknowledges_a_retry, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (retries_at_once, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (rounds_a_retry_down, LAWS.test_a_retry_comes_again_and_not_before_its_time),
    (throws_away_what_is_rejected, LAWS.test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once),
    (returns_what_is_rejected, LAWS.test_a_malformed_message_becomes_a_dead_letter_with_its_reason_once),
    (acknowledges_everything_before, LAWS.test_an_answer_to_a_later_delivery_does_not_bury_an_earlier_one),
    (closes_without_its_answers, LAWS.test_a_receive_hands_over_no_more_than_was_asked_for),
]


@pytest.mark.parametrize(("bug", "law"), BUGS, ids=[f"{bug.__name__}-{law.__name__}" for bug, law in BUGS])
def test_a_source_with_a_bug_breaks_its_law(
    bug: Patch, law: Law, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law(place.harness(tmp_path))


async def _sent_and_not_confirmed(self: RabbitAnswers, held: RabbitMessage, queue: str, properties: Any) -> str:
    await self._sender.send("", queue, held.body, properties, 15.0)
    return ""


def test_an_unconfirmed_dead_letter_breaks_the_law(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RabbitAnswers, "_publish_copy", _sent_and_not_confirmed)
    monkeypatch.setattr(answers, "SOON_S", SOON_S)
    with pytest.raises((AssertionError, TimeoutError)):
        answers.test_an_unroutable_dead_letter_does_not_count_as_kept(place, monkeypatch, caplog)


def test_ids_that_are_mixed_up_break_the_law(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ConfirmedSender.__init__

    class Forgetful(dict[str, Any]):
        """Two of the same id at a time."""

        def get(self, key: str, default: Any = None) -> Any:
            return None

        def pop(self, key: str, *default: Any) -> Any:
            return super().pop(key) if key in self else self

        def set(self) -> None: ...

    def init(self: ConfirmedSender, *arguments: Any) -> None:
        made(self, *arguments)
        self._ids_in_flight = Forgetful()

    monkeypatch.setattr(ConfirmedSender, "__init__", init)
    with pytest.raises(AssertionError):
        publishing.test_two_parcels_that_look_the_same_are_each_answered_for_themselves(place)

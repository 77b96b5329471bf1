"""Laws of an outbox's `backlog` and `purge`: what waits, and what is forgotten in time."""

from __future__ import annotations

import pytest

from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import REFUSED, decide, people, shown, status
from semel.testing.sender import Sender, notification, provider
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, Suppressed, Witness
from semel.values.sending import Accepted, Answer, Refused, Unknown

NEVER_MS = 10**12
ACCEPTED = Accepted("r-1")


def purge(sender: Sender, content_ms: int, identity_ms: int = NEVER_MS) -> int:
    """All of it, in steps."""
    total = 0
    while count := sender.run(people(sender).purge(content_ms, identity_ms, 1_000)):
        total += count
    return total


def sent(harness: Harness, sender: Sender, *said: Notification, answer: Answer = ACCEPTED) -> None:
    sender.add(*said)
    taken = {one.id: one for one in sender.take(harness)}
    for one in said:
        sender.send(harness, taken[one.id], answer)


class BacklogLaws(OutboxBinding):
    def test_what_is_not_over_is_counted_by_provider_and_state(self, harness: Harness, ledger: Sender) -> None:
        first = notification(harness, "n-0")
        ledger.add(first)
        harness.advance(harness.unit_ms)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(1, 6)])
        ledger.add(notification(harness, "elsewhere", provider=provider(harness, "two")))
        over, doubtful, leaving = ledger.take(harness, room=3)
        ledger.send(harness, over, Accepted())
        ledger.send(harness, doubtful, Unknown("timeout"))
        ledger.cross(leaving)
        told = ledger.run(people(ledger).backlog())
        ours = {(one.provider, one.state): one.count for one in told if one.provider.endswith(harness.namespace)}
        one, two = provider(harness), provider(harness, "two")
        counts = {(one, "uncertain"): 1, (one, "sending"): 1, (one, "pending"): 3, (two, "pending"): 1}
        assert ours == counts, "what is over waits for nothing"

    def test_the_oldest_tells_when_it_was_added(self, harness: Harness, ledger: Sender) -> None:
        first = notification(harness, "n-0")
        ledger.add(first)
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "n-1"))
        (waiting,) = [one for one in ledger.run(people(ledger).backlog()) if one.provider == provider(harness)]
        assert waiting.oldest_ms == shown(ledger, first).added_ms

    def test_what_names_no_provider_waits_at_its_channel(self, harness: Harness, ledger: Sender) -> None:
        def waiting() -> int:
            told = ledger.run(people(ledger).backlog())
            return sum(one.count for one in told if (one.provider, one.state) == ("@voice", "pending"))

        before = waiting()
        ledger.add(notification(harness, provider="", channel="voice"))
        assert waiting() == before + 1


class PurgeLaws(OutboxBinding):
    def test_what_is_over_says_nothing_after_its_time_and_is_still_known(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness, body="secret words", recipient="+49 secret", guard=Guard(window_s=3600))
        sent(harness, ledger, said, answer=Accepted("r-1", "to +49 secret"))
        harness.advance(6 * harness.unit_ms)
        purge(ledger, 600 * harness.unit_ms)
        assert not shown(ledger, said).erased, "not before its time"
        assert purge(ledger, 6 * harness.unit_ms) >= 1
        found = shown(other, said)
        assert found.erased
        assert "secret" not in repr(found)
        assert [one.outcome for one in found.attempts] == ["accepted"]
        changed = notification(harness, body="other words", recipient="+49 secret", guard=Guard(window_s=3600))
        assert [(one.status, one.state) for one in other.add(said, changed)] == [("known", "accepted")] * 2
        assert (status(other, said).told, status(other, said).reference) == ("sent", "r-1")

    @pytest.mark.parametrize("answer", [REFUSED, Accepted()], ids=["failed", "accepted"])
    def test_every_end_is_forgotten(self, harness: Harness, ledger: Sender, answer: Answer) -> None:
        said = notification(harness)
        sent(harness, ledger, said, answer=answer)
        harness.advance(harness.unit_ms)
        purge(ledger, harness.unit_ms)
        assert shown(ledger, said).erased

    def test_what_is_not_over_stays_however_old_it_is(self, harness: Harness, ledger: Sender) -> None:
        said = {key: notification(harness, key) for key in ("uncertain", "refused", "leaving", "waiting")}
        ledger.add(*said.values())
        taken = {one.notification.key: one for one in ledger.take(harness)}
        ledger.send(harness, taken["uncertain"], Unknown("timeout"))
        ledger.send(harness, taken["refused"], Refused("busy"))
        ledger.cross(taken["leaving"])
        harness.advance(30 * harness.unit_ms)
        purge(ledger, 0, 0)
        states = {key: shown(ledger, one).state for key, one in said.items()}
        assert states == {"uncertain": "uncertain", "refused": "pending", "leaving": "sending", "waiting": "pending"}
        assert not any(shown(ledger, one).erased for one in said.values())
        assert len(shown(ledger, said["refused"]).attempts) == 1, "and so does its evidence"

    def test_the_time_runs_from_its_end_and_not_from_its_beginning(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        harness.advance(40 * harness.unit_ms)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        purge(ledger, 39 * harness.unit_ms, 39 * harness.unit_ms)
        assert not shown(ledger, said).erased

    def test_an_identity_is_forgotten_after_its_time_with_all_that_was_known(
        self, harness: Harness, ledger: Sender
    ) -> None:
        said = notification(harness)
        sent(harness, ledger, said, answer=Accepted(f"r-{harness.namespace}"))
        harness.advance(10 * harness.unit_ms)
        purge(ledger, harness.unit_ms, 600 * harness.unit_ms)
        assert [one.status for one in ledger.add(said)] == ["known"]
        purge(ledger, harness.unit_ms, 10 * harness.unit_ms)
        assert ledger.run(people(ledger).show(said.id)) is None
        by_reference = Witness("delivered", None, provider(harness), f"r-{harness.namespace}")
        assert ledger.witness(by_reference, Witness("delivered", said.id)) == [None, None]
        assert [one.status for one in ledger.add(said)] == ["added"]
        assert shown(ledger, said).attempts == ()

    def test_no_step_forgets_more_than_it_was_asked_to(self, harness: Harness, ledger: Sender) -> None:
        said = [notification(harness, f"n-{number}") for number in range(5)]
        sent(harness, ledger, *said)
        harness.advance(harness.unit_ms)
        gone = 0
        while count := ledger.run(people(ledger).purge(harness.unit_ms, NEVER_MS, 2)):
            assert count <= 2
            now = sum(shown(ledger, one).erased for one in said)
            assert now - gone <= 2
            gone = now
        assert gone == 5

    def test_a_guard_holds_though_the_content_of_who_passed_it_is_forgotten(
        self, harness: Harness, ledger: Sender
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0)
        assert shown(ledger, first).erased
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_guard_holds_though_nobody_knows_who_passed_it_any_more(self, harness: Harness, ledger: Sender) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0, 0)
        assert ledger.run(people(ledger).show(first.id)) is None
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]
        assert [one.status for one in ledger.add(first)] == ["added"], "it is another one, of the same name"
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)], "which has passed nothing"

    def test_who_has_the_name_of_a_forgotten_one_does_not_free_its_guard(
        self, harness: Harness, ledger: Sender
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0, 0)
        ledger.add(first)
        assert decide(ledger, first, "cancelled") == "cancelled"
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_window_that_is_longer_than_that_of_who_passed_is_kept_too(
        self, harness: Harness, ledger: Sender
    ) -> None:
        short, long = (Guard(window_s=units * harness.unit_ms / 1000, key="g") for units in (2, 300))
        first, second = notification(harness, "n-1", guard=short), notification(harness, "n-2", guard=long)
        sent(harness, ledger, first)
        harness.advance(5 * harness.unit_ms)
        purge(ledger, 0, 200 * harness.unit_ms)
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_guard_whose_window_is_over_is_forgotten_and_lets_through(self, harness: Harness, ledger: Sender) -> None:
        window = Guard(window_s=2 * harness.unit_ms / 1000)
        sent(harness, ledger, notification(harness, "n-1", guard=window))
        harness.advance(3 * harness.unit_ms)
        purge(ledger, 0, 0)
        ledger.add(notification(harness, "n-2", guard=window))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    def test_what_a_provider_says_of_a_forgotten_content_counts_without_its_words(
        self, harness: Harness, ledger: Sender
    ) -> None:
        said = notification(harness)
        reference = f"r-{harness.namespace}"
        sent(harness, ledger, said, answer=Accepted(reference))
        harness.advance(harness.unit_ms)
        purge(ledger, 0)
        word = Witness("delivered", None, provider(harness), reference, evidence="to +49 secret")
        assert ledger.witness(word) == ["delivered"]
        found = shown(ledger, said)
        assert (found.state, [one.outcome for one in found.attempts]) == ("delivered", ["accepted", "delivered"])
        assert "secret" not in repr(found)

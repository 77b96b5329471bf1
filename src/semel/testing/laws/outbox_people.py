"""Laws of the people's side of an outbox: what they are told, and what they may decide."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from semel.ports import Notifications
from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.sender import Sender, contract, notification, provider
from semel.values import sending
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, Decision, Record, Shown, Sought, Status, Suppressed, Witness
from semel.values.sending import Accepted, Refused, State, Unknown

REFUSED = Refused("no such number", final=True)


def people(sender: Sender) -> Notifications:
    return cast(Notifications, sender.outbox)


def status(sender: Sender, said: Notification) -> Status:
    asked = people(sender).status(said.tenant, recipient=said.recipient, kind=said.kind)
    return sender.run(asked)


def shown(sender: Sender, said: Notification) -> Shown:
    found = sender.run(people(sender).show(said.id))
    assert found is not None
    return found


def decide(sender: Sender, said: Notification, says: str) -> State | None:
    return sender.run(people(sender).decide(Decision(said.id, says, "because", "ada")))  # type: ignore[arg-type]


def overdue(harness: Harness, sender: Sender) -> None:
    """What is due is sent, nobody knows what came of it, and its policy is followed."""
    sender.send(harness, sender.take_one(harness), Unknown("timeout"), policy_after_s=harness.unit_ms / 1000)
    harness.advance(harness.unit_ms)
    late = sender.take_one(harness)
    after = sending.overdue(late.standing, late.taken_ms)
    assert sender.record(Record(late, after, "policy", after.reason)) == [True]


class StatusLaws(OutboxBinding):
    def test_nobody_knows_of_what_was_never_added(self, harness: Harness, ledger: Sender) -> None:
        assert status(ledger, notification(harness)) == Status("never")

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (Accepted("r-1"), "sent"),
            (Unknown("timeout"), "unknown"),
            (Refused("busy"), "pending"),
            (REFUSED, "not_sent"),
        ],
    )
    def test_it_is_told_what_is_known(
        self, harness: Harness, ledger: Sender, other: Sender, answer: Accepted | Unknown | Refused, told: str
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        assert status(other, said).told == "pending"
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert status(other, said).told == "unknown", "it is leaving"
        ledger.answer(harness, dispatch, answer)
        now = status(other, said)
        assert now.told == told
        if told == "sent":
            assert (now.id, now.state, now.reference) == (said.id.hex(), "accepted", "r-1")
            assert now.provider == provider(harness)

    def test_what_was_given_up_in_doubt_may_have_been_sent(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        assert decide(ledger, said, "given_up") == "failed"
        assert (status(ledger, said).told, status(ledger, said).state) == ("unknown", "failed")
        by_key = ledger.run(people(ledger).status(said.tenant, key=said.key))
        alone = ledger.run(people(ledger).status(said.tenant, recipient=said.recipient))
        assert (by_key.told, alone.told) == ("unknown", "unknown")
        assert ledger.run(people(ledger).erase(said.tenant, said.recipient, "asked to", "ada")) == 1
        assert status(ledger, said).told == "unknown", "nobody knows any better now"
        assert ledger.witness(Witness("delivered", said.id)) == ["delivered"]
        assert status(ledger, said).told == "sent"

    def test_what_was_given_up_by_policy_may_have_been_sent(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness, policy="give_up")
        ledger.add(said)
        overdue(harness, ledger)
        assert (status(ledger, said).told, status(ledger, said).state) == ("unknown", "failed")

    def test_what_was_given_up_before_anything_was_accepted_was_never_sent(
        self, harness: Harness, ledger: Sender
    ) -> None:
        refused, untried = notification(harness, "refused"), notification(harness, "untried", recipient="+492")
        ledger.add(refused)
        ledger.send(harness, ledger.take_one(harness), Refused("busy", after_s=1000))
        ledger.add(untried)
        for said in (refused, untried):
            assert decide(ledger, said, "given_up") == "failed"
            assert status(ledger, said).told == "not_sent"

    def test_what_failed_is_told_with_its_reason_and_counted(self, harness: Harness, ledger: Sender) -> None:
        first, second = notification(harness, "n-1"), notification(harness, "n-2")
        bystander = notification(harness, "n-3", recipient="+4915100000001")
        ledger.add(bystander)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1"))
        for said in (first, second):
            ledger.add(said)
            ledger.send(harness, ledger.take_one(harness), REFUSED)
            harness.advance(harness.unit_ms)
        found = status(ledger, first)
        assert (found.told, found.unsent, found.id) == ("not_sent", 2, second.id.hex())
        assert (found.state, found.evidence) == ("failed", REFUSED.reason)
        assert status(ledger, bystander).unsent == 0

    def test_another_spelling_of_the_recipient_finds_the_same(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness, recipient="+49 (170) 123-4567")
        other = notification(harness, "other", recipient="+491701234568")
        ledger.add(said, other)
        for spelling in ("+491701234567", "0049 170 1234567", "tel:+49170/1234567"):
            asked = people(ledger).status(said.tenant, recipient=spelling, kind=said.kind)
            alone = people(ledger).status(said.tenant, recipient=spelling)
            listed = people(ledger).find(Sought(tenant=said.tenant, recipient=spelling))
            assert ledger.run(asked).id == ledger.run(alone).id == said.id.hex()
            assert [one.id for one in ledger.run(listed)] == [said.id.hex()]
        before = shown(ledger, other)
        assert ledger.run(people(ledger).erase(said.tenant, "0049 170 1234567", "asked to", "ada")) == 1
        assert shown(ledger, said).erased
        assert shown(ledger, other) == before

    def test_what_was_sent_says_more_than_what_came_later(self, harness: Harness, ledger: Sender) -> None:
        first = notification(harness, "n-1")
        ledger.add(first)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "n-2"))
        assert status(ledger, first).id == first.id.hex()

    def test_a_suppressed_one_names_what_suppressed_it(self, harness: Harness, ledger: Sender) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        ledger.add(first, second)
        one, two = ledger.take(harness)
        ledger.send(harness, one, Accepted())
        ledger.cross(two)
        found = shown(ledger, two.notification)
        assert (found.state, found.suppressed_by) == ("suppressed", one.id.hex())

    def test_a_business_key_can_be_asked_for(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        ask = people(ledger).status
        assert ledger.run(ask(harness.namespace, key="order-1")).told == "sent"
        assert ledger.run(ask(harness.namespace, key="order-2")).told == "never"
        assert ledger.run(ask("another tenant", key="order-1")).told == "never"


class ListLaws(OutboxBinding):
    def test_the_newest_come_first_and_only_those_that_were_asked_for(self, harness: Harness, ledger: Sender) -> None:
        for number in range(4):
            ledger.add(notification(harness, f"n-{number}", kind=("a", "b")[number % 2], recipient=f"+49{number}"))
            harness.advance(harness.unit_ms)

        def keys(**sought: object) -> list[str]:
            asked = Sought(tenant=harness.namespace, **sought)  # type: ignore[arg-type]
            return [one.notification.key for one in ledger.run(people(ledger).find(asked))]

        assert keys() == ["n-3", "n-2", "n-1", "n-0"]
        assert keys(limit=2) == ["n-3", "n-2"]
        assert keys(kind="a") == ["n-2", "n-0"]
        assert keys(recipient="+491") == ["n-1"]
        assert keys(key="n-3") == ["n-3"]
        assert keys(state="pending") == ["n-3", "n-2", "n-1", "n-0"]
        (dispatch,) = ledger.take(harness, room=1)
        ledger.send(harness, dispatch, REFUSED)
        assert keys(state="failed") == ["n-0"]
        assert keys(state="pending") == ["n-3", "n-2", "n-1"]
        assert keys(provider=provider(harness), state="failed") == ["n-0"]
        second = shown(ledger, notification(harness, "n-1", kind="b", recipient="+491"))
        assert keys(since_ms=second.added_ms) == ["n-3", "n-2", "n-1"]
        assert keys(until_ms=second.added_ms) == ["n-0"]

    @pytest.mark.parametrize("bytes_max", [None, 0, 5_000])
    def test_pages_hold_each_notification_once(self, harness: Harness, ledger: Sender, bytes_max: int | None) -> None:
        """Also where many were added at one time, and whatever their contents weigh."""
        sizes = {f"n-{number}": (number % 4) * 1_000 + 10 for number in range(11)}
        ledger.add(*(notification(harness, key, body="x" * size) for key, size in sizes.items()))
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "newest", body="x"), notification(harness, "other", tenant="another"))
        sought = Sought(tenant=harness.namespace, limit=4, bytes_max=bytes_max)
        found: list[Shown] = []
        while page := ledger.run(people(ledger).find(sought)):
            weights = [len(one.notification.content) for one in page]
            assert len(page) <= 4
            assert bytes_max is None or sum(weights[:-1]) <= bytes_max, "only the last one exceeds it"
            found += page
            sought = replace(sought, until_ms=page[-1].added_ms, after_id=bytes.fromhex(page[-1].id))
        keys = [one.notification.key for one in found]
        assert keys[0] == "newest"
        assert sorted(keys) == sorted([*sizes, "newest"])
        assert [(-one.added_ms, one.id) for one in found] == sorted((-one.added_ms, one.id) for one in found)

    def test_every_attempt_is_shown_with_its_evidence(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        under_way = shown(ledger, said).attempts
        assert [(one.number, one.outcome, one.evidence) for one in under_way] == [(1, "refused", "busy"), (2, "", "")]
        ledger.answer(harness, dispatch, Accepted("r-1", "202"))
        ledger.witness(Witness("delivered", said.id, evidence="callback"), Witness("delivered", said.id))
        attempts = shown(ledger, said).attempts
        assert [(one.outcome, one.evidence) for one in attempts] == [
            ("refused", "busy"),
            ("accepted", "202"),
            ("delivered", "callback"),
        ]
        assert [one.crossed_ms > 0 for one in attempts] == [True, True, False]

    def test_a_crossing_that_was_taken_back_is_shown(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert ledger.record(Record(dispatch, dispatch.standing, "released", "not answered")) == [True]
        told = [(one.outcome, one.evidence, one.crossed_ms) for one in shown(ledger, said).attempts]
        assert told == [("released", "not answered", 0)]

    def test_what_may_have_been_sent_twice_is_listed(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness, policy="resend"))
        overdue(harness, ledger)
        ledger.add(notification(harness, "another"))
        sought = Sought(tenant=harness.namespace, possible_duplicates=True)
        assert [one.notification.key for one in ledger.run(people(ledger).find(sought))] == ["order-1"]


class DecideLaws(OutboxBinding):
    def uncertain(self, harness: Harness, ledger: Sender, **said: object) -> Notification:
        notified = notification(harness, **said)  # type: ignore[arg-type]
        ledger.add(notified)
        dispatch = next(one for one in ledger.take(harness) if one.id == notified.id)
        ledger.send(harness, dispatch, Unknown("timeout"))
        return notified

    @pytest.mark.parametrize(("says", "state"), [("sent", "accepted"), ("not_sent", "pending"), ("given_up", "failed")])
    def test_a_person_decides_what_is_uncertain(
        self, harness: Harness, ledger: Sender, other: Sender, says: str, state: str
    ) -> None:
        said = self.uncertain(harness, ledger)
        assert decide(other, said, says) == state
        found = shown(ledger, said)
        assert found.state == state
        assert ("because", "ada") in [(one.evidence, one.by) for one in found.attempts]
        assert len(ledger.take(harness)) == (1 if says == "not_sent" else 0)

    def test_what_is_uncertain_cannot_be_cancelled(self, harness: Harness, ledger: Sender) -> None:
        said = self.uncertain(harness, ledger)
        assert decide(ledger, said, "cancelled") is None
        assert shown(ledger, said).state == "uncertain"

    def test_what_is_pending_can_be_cancelled_unless_somebody_has_it(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        assert decide(other, said, "cancelled") is None, "it may leave at any moment"
        harness.advance(harness.lease_ms)
        assert decide(other, said, "cancelled") == "cancelled"
        assert type(ledger.cross(dispatch)[0]).__name__ == "Lost"
        assert [one.state for one in ledger.add(said)] == ["cancelled"]

    def test_a_doubt_outlives_a_cancellation(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        crossed = sending.crossed(dispatch.standing, dispatch.taken_ms)
        keyed = contract(harness, key=sending.Key(header="Idempotency-Key"))
        doubt = sending.doubtful(crossed, "timeout", keyed, dispatch.taken_ms, lambda: 0.0)
        assert ledger.record(Record(dispatch, sending.replayed(doubt), "unknown", "timeout")) == [True]
        assert shown(ledger, said).state == "pending", "the same key is about to be sent again"
        assert decide(ledger, said, "cancelled") == "uncertain", "the first attempt may have been accepted"

    @pytest.mark.parametrize("says", ["sent", "not_sent", "given_up", "cancelled"])
    def test_what_is_over_is_over(self, harness: Harness, ledger: Sender, says: str) -> None:
        said = notification(harness)
        ledger.add(said)
        assert decide(ledger, notification(harness, "unknown"), says) is None
        ledger.send(harness, ledger.take_one(harness), Accepted())
        assert decide(ledger, said, says) is None
        assert shown(ledger, said).state == "accepted"

    def test_a_cancelled_one_lets_the_next_one_of_its_guard_through(self, harness: Harness, ledger: Sender) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        ledger.add(first)
        ledger.send(harness, ledger.take_one(harness), Refused("busy", after_s=1000))
        assert decide(ledger, first, "cancelled") == "cancelled"
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    def test_a_word_that_comes_while_a_relay_looks_counts(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("?"), looks_up=True, settle_s=harness.unit_ms / 1000)
        harness.advance(harness.unit_ms)
        looking = ledger.take_one(harness)
        assert decide(other, said, "sent") == "accepted"
        absent = sending.absent(looking.standing, looking.taken_ms)
        assert ledger.record(Record(looking, absent, "absent")) == [False]
        assert shown(ledger, said).state == "accepted"


class EraseLaws(OutboxBinding):
    def test_what_was_said_and_to_whom_is_gone_and_is_still_known(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness, body="secret words", recipient="+49 secret", guard=Guard(window_s=3600))
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1", "to +49 secret"))
        assert ledger.run(people(ledger).erase(said.tenant, said.recipient, "asked to", "ada")) == 1
        found = shown(other, said)
        assert found.erased
        assert "secret" not in repr(found)
        assert [(one.status, one.state) for one in other.add(said)] == [("known", "accepted")]
        again = notification(
            harness, recipient="+49 secret", body="secret words", key="n-2", guard=Guard(window_s=3600)
        )
        ledger.add(again)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(said.id)], "the guard holds"
        assert status(ledger, said).told == "sent"

    def test_what_has_not_left_is_cancelled_and_what_is_uncertain_waits(self, harness: Harness, ledger: Sender) -> None:
        waiting, doubtful = notification(harness, "waiting"), notification(harness, "doubtful")
        ledger.add(doubtful)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        ledger.add(waiting, notification(harness, "of another", recipient="+492"))
        assert ledger.run(people(ledger).erase(waiting.tenant, waiting.recipient, "asked to", "ada")) == 1
        assert (shown(ledger, waiting).state, shown(ledger, waiting).erased) == ("cancelled", True)
        assert (shown(ledger, doubtful).state, shown(ledger, doubtful).erased) == ("uncertain", False)
        assert [one.notification.key for one in ledger.take(harness)] == ["of another"]

    def test_what_is_leaving_is_not_touched_and_can_be_erased_when_it_is_over(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness, guard=Guard(window_s=3600))
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        erase = people(other).erase
        assert other.run(erase(said.tenant, said.recipient, "asked to", "ada")) == 0, "it may leave at any moment"
        assert ledger.cross(dispatch) == [Crossed()]
        assert other.run(erase(said.tenant, said.recipient, "asked to", "ada")) == 0
        assert decide(other, said, "cancelled") is None
        assert ledger.answer(harness, dispatch, Accepted("r-1"))
        assert other.run(erase(said.tenant, said.recipient, "asked to", "ada")) == 1
        assert (shown(ledger, said).state, shown(ledger, said).erased) == ("accepted", True)

    def test_what_may_have_left_and_is_to_be_sent_again_waits(self, harness: Harness, ledger: Sender) -> None:
        """Were its content gone, a person who says that it was not sent would have nothing to send."""
        said = notification(harness, policy="resend")
        ledger.add(said)
        overdue(harness, ledger)
        assert shown(ledger, said).state == "pending"
        assert ledger.run(people(ledger).erase(said.tenant, said.recipient, "asked to", "ada")) == 0
        assert (shown(ledger, said).state, shown(ledger, said).erased) == ("pending", False)
        assert decide(ledger, said, "cancelled") == "uncertain"
        assert decide(ledger, said, "not_sent") == "pending"
        assert ledger.take_one(harness).notification.body == said.body

    def test_an_answer_that_comes_after_a_person_gave_up_counts(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("timeout"))
        assert decide(other, said, "given_up") == "failed"
        assert ledger.witness(Witness("delivered", said.id)) == ["delivered"], "the provider knows better"
        assert ledger.take(harness) == []

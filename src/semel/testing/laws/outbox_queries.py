"""Laws of the operator's side of an outbox: status, lists, decisions, erasure, backlog and purge."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.testing.harness import (
    Harness,
    OutboxCaller,
    contract,
    decide,
    notification,
    overdue,
    people,
    provider,
    shown,
    status,
)
from semel.testing.laws.outbox import OutboxBinding
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Refused, Unknown
from semel.values.notification import Guard, Notification
from semel.values.outbox import (
    Crossed,
    DeliveryReport,
    NotificationQuery,
    NotificationView,
    Record,
    Status,
    Suppressed,
)

REFUSED = Refused("no such number", final=True)


class StatusLaws(OutboxBinding):
    def test_a_notification_that_was_never_added_has_no_status(self, harness: Harness, ledger: OutboxCaller) -> None:
        assert status(ledger, notification(harness)) == Status("never")

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (Accepted("r-1"), "sent"),
            (Unknown("timeout"), "unknown"),
            (Refused("busy"), "pending"),
            (REFUSED, "not_sent"),
        ],
    )
    def test_the_status_follows_the_answer_of_the_provider(
        self,
        harness: Harness,
        ledger: OutboxCaller,
        other: OutboxCaller,
        answer: Accepted | Unknown | Refused,
        expected: str,
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        assert status(other, message).answer == "pending"
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert status(other, message).answer == "unknown", "it is leaving"
        ledger.answer(harness, dispatch, answer)
        now = status(other, message)
        assert now.answer == expected
        if expected == "sent":
            assert (now.id, now.state, now.reference) == (message.id.hex(), "accepted", "r-1")
            assert now.provider == provider(harness)

    def test_a_notification_given_up_in_doubt_may_have_been_sent(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        assert decide(ledger, message, "given_up") == "failed"
        assert (status(ledger, message).answer, status(ledger, message).state) == ("unknown", "failed")
        by_key = ledger.run(people(ledger).status(message.tenant, key=message.key))
        alone = ledger.run(people(ledger).status(message.tenant, recipient=message.recipient))
        assert (by_key.answer, alone.answer) == ("unknown", "unknown")
        assert ledger.run(people(ledger).erase(message.tenant, message.recipient, "asked to", "ada")) == 1
        assert status(ledger, message).answer == "unknown", "the outcome is still unknown"
        assert ledger.apply_reports(DeliveryReport("delivered", message.id)) == ["delivered"]
        assert status(ledger, message).answer == "sent"

    def test_a_notification_given_up_by_policy_may_have_been_sent(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness, policy="give_up")
        ledger.add(message)
        overdue(harness, ledger)
        assert (status(ledger, message).answer, status(ledger, message).state) == ("unknown", "failed")

    def test_a_notification_given_up_before_an_accepted_attempt_was_never_sent(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        refused, untried = notification(harness, "refused"), notification(harness, "untried", recipient="+492")
        ledger.add(refused)
        ledger.send(harness, ledger.take_one(harness), Refused("busy", after_s=1000))
        ledger.add(untried)
        for message in (refused, untried):
            assert decide(ledger, message, "given_up") == "failed"
            assert status(ledger, message).answer == "not_sent"

    def test_a_failed_notification_is_reported_with_its_reason_and_counted(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = notification(harness, "n-1"), notification(harness, "n-2")
        bystander = notification(harness, "n-3", recipient="+4915100000001")
        ledger.add(bystander)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1"))
        for message in (first, second):
            ledger.add(message)
            ledger.send(harness, ledger.take_one(harness), REFUSED)
            harness.advance(harness.unit_ms)
        found = status(ledger, first)
        assert (found.answer, found.unsent, found.id) == ("not_sent", 2, second.id.hex())
        assert (found.state, found.evidence) == ("failed", REFUSED.reason)
        assert status(ledger, bystander).unsent == 0

    def test_another_spelling_of_the_recipient_finds_the_same(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness, recipient="+49 (170) 123-4567")
        other = notification(harness, "other", recipient="+491701234568")
        ledger.add(message, other)
        for spelling in ("+491701234567", "0049 170 1234567", "tel:+49170/1234567"):
            asked = people(ledger).status(message.tenant, recipient=spelling, kind=message.kind)
            alone = people(ledger).status(message.tenant, recipient=spelling)
            listed = people(ledger).find(NotificationQuery(tenant=message.tenant, recipient=spelling))
            assert ledger.run(asked).id == ledger.run(alone).id == message.id.hex()
            assert [one.id for one in ledger.run(listed)] == [message.id.hex()]
        before = shown(ledger, other)
        assert ledger.run(people(ledger).erase(message.tenant, "0049 170 1234567", "asked to", "ada")) == 1
        assert shown(ledger, message).erased
        assert shown(ledger, other) == before

    def test_a_sent_notification_takes_precedence_over_a_later_pending_one(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first = notification(harness, "n-1")
        ledger.add(first)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "n-2"))
        assert status(ledger, first).id == first.id.hex()

    def test_a_suppressed_notification_names_the_one_that_suppressed_it(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        ledger.add(first, second)
        one, two = ledger.take(harness)
        ledger.send(harness, one, Accepted())
        ledger.cross(two)
        found = shown(ledger, two.notification)
        assert (found.state, found.suppressed_by) == ("suppressed", one.id.hex())

    def test_a_business_key_can_be_asked_for(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        ask = people(ledger).status
        assert ledger.run(ask(harness.namespace, key="order-1")).answer == "sent"
        assert ledger.run(ask(harness.namespace, key="order-2")).answer == "never"
        assert ledger.run(ask("another tenant", key="order-1")).answer == "never"


class ListLaws(OutboxBinding):
    def test_the_newest_come_first_and_only_those_that_were_asked_for(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        for number in range(4):
            ledger.add(notification(harness, f"n-{number}", kind=("a", "b")[number % 2], recipient=f"+49{number}"))
            harness.advance(harness.unit_ms)

        def keys(**criteria: object) -> list[str]:
            query = NotificationQuery(tenant=harness.namespace, **criteria)  # type: ignore[arg-type]
            return [one.notification.key for one in ledger.run(people(ledger).find(query))]

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
    def test_pages_hold_each_notification_once(
        self, harness: Harness, ledger: OutboxCaller, bytes_max: int | None
    ) -> None:
        """This holds for notifications with the same time and for contents of any size."""
        sizes = {f"n-{number}": (number % 4) * 1_000 + 10 for number in range(11)}
        ledger.add(*(notification(harness, key, body="x" * size) for key, size in sizes.items()))
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "newest", body="x"), notification(harness, "other", tenant="another"))
        query = NotificationQuery(tenant=harness.namespace, limit=4, bytes_max=bytes_max)
        found: list[NotificationView] = []
        while page := ledger.run(people(ledger).find(query)):
            weights = [len(one.notification.content) for one in page]
            assert len(page) <= 4
            assert bytes_max is None or sum(weights[:-1]) <= bytes_max, "only the last one exceeds it"
            found += page
            query = replace(query, until_ms=page[-1].added_ms, after_id=bytes.fromhex(page[-1].id))
        keys = [one.notification.key for one in found]
        assert keys[0] == "newest"
        assert sorted(keys) == sorted([*sizes, "newest"])
        assert [(-one.added_ms, one.id) for one in found] == sorted((-one.added_ms, one.id) for one in found)

    def test_every_attempt_is_shown_with_its_evidence(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        under_way = shown(ledger, message).attempts
        assert [(one.number, one.outcome, one.evidence) for one in under_way] == [(1, "refused", "busy"), (2, "", "")]
        ledger.answer(harness, dispatch, Accepted("r-1", "202"))
        ledger.apply_reports(
            DeliveryReport("delivered", message.id, evidence="callback"), DeliveryReport("delivered", message.id)
        )
        attempts = shown(ledger, message).attempts
        assert [(one.outcome, one.evidence) for one in attempts] == [
            ("refused", "busy"),
            ("accepted", "202"),
            ("delivered", "callback"),
        ]
        assert [one.crossed_ms > 0 for one in attempts] == [True, True, False]

    def test_a_crossing_that_was_taken_back_is_shown(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert ledger.record(Record(dispatch, dispatch.delivery_state, "released", "not answered")) == [True]
        attempts = [(one.outcome, one.evidence, one.crossed_ms) for one in shown(ledger, message).attempts]
        assert attempts == [("released", "not answered", 0)]

    def test_a_possible_duplicate_is_listed(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness, policy="resend"))
        overdue(harness, ledger)
        ledger.add(notification(harness, "another"))
        query = NotificationQuery(tenant=harness.namespace, possible_duplicates=True)
        assert [one.notification.key for one in ledger.run(people(ledger).find(query))] == ["order-1"]


class DecideLaws(OutboxBinding):
    def uncertain(self, harness: Harness, ledger: OutboxCaller, **fields: object) -> Notification:
        notified = notification(harness, **fields)  # type: ignore[arg-type]
        ledger.add(notified)
        dispatch = next(one for one in ledger.take(harness) if one.id == notified.id)
        ledger.send(harness, dispatch, Unknown("timeout"))
        return notified

    @pytest.mark.parametrize(
        ("resolution", "state"), [("sent", "accepted"), ("not_sent", "pending"), ("given_up", "failed")]
    )
    def test_a_person_decides_about_an_uncertain_notification(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller, resolution: str, state: str
    ) -> None:
        message = self.uncertain(harness, ledger)
        assert decide(other, message, resolution) == state
        found = shown(ledger, message)
        assert found.state == state
        assert ("because", "ada") in [(one.evidence, one.by) for one in found.attempts]
        assert len(ledger.take(harness)) == (1 if resolution == "not_sent" else 0)

    def test_an_uncertain_notification_cannot_be_cancelled(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = self.uncertain(harness, ledger)
        assert decide(ledger, message, "cancelled") is None
        assert shown(ledger, message).state == "uncertain"

    def test_a_pending_notification_can_be_cancelled_unless_it_is_taken(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        assert decide(other, message, "cancelled") is None, "it may leave at any moment"
        harness.advance(harness.lease_ms)
        assert decide(other, message, "cancelled") == "cancelled"
        assert type(ledger.cross(dispatch)[0]).__name__ == "Lost"
        assert [one.state for one in ledger.add(message)] == ["cancelled"]

    def test_a_doubt_outlives_a_cancellation(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        crossed = states.crossed(dispatch.delivery_state, dispatch.taken_ms)
        keyed = contract(harness, key=states.Key(header="Idempotency-Key"))
        doubt = states.doubtful(crossed, "timeout", keyed, dispatch.taken_ms, lambda: 0.0)
        assert ledger.record(Record(dispatch, states.replayed(doubt), "unknown", "timeout")) == [True]
        assert shown(ledger, message).state == "pending", "the same key is about to be sent again"
        assert decide(ledger, message, "cancelled") == "uncertain", "the first attempt may have been accepted"

    @pytest.mark.parametrize("resolution", ["sent", "not_sent", "given_up", "cancelled"])
    def test_a_finished_notification_cannot_be_decided_again(
        self, harness: Harness, ledger: OutboxCaller, resolution: str
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        assert decide(ledger, notification(harness, "unknown"), resolution) is None
        ledger.send(harness, ledger.take_one(harness), Accepted())
        assert decide(ledger, message, resolution) is None
        assert shown(ledger, message).state == "accepted"

    def test_a_cancelled_one_lets_the_next_one_of_its_guard_through(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        ledger.add(first)
        ledger.send(harness, ledger.take_one(harness), Refused("busy", after_s=1000))
        assert decide(ledger, first, "cancelled") == "cancelled"
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    def test_a_word_that_comes_while_a_relay_looks_counts(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("?"), looks_up=True, settle_s=harness.unit_ms / 1000)
        harness.advance(harness.unit_ms)
        looking = ledger.take_one(harness)
        assert decide(other, message, "sent") == "accepted"
        absent = states.absent(looking.delivery_state, looking.taken_ms)
        assert ledger.record(Record(looking, absent, "absent")) == [False]
        assert shown(ledger, message).state == "accepted"


class EraseLaws(OutboxBinding):
    def test_erased_content_and_recipient_are_gone_and_the_notification_is_still_known(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness, body="secret words", recipient="+49 secret", guard=Guard(window_s=3600))
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1", "to +49 secret"))
        assert ledger.run(people(ledger).erase(message.tenant, message.recipient, "asked to", "ada")) == 1
        found = shown(other, message)
        assert found.erased
        assert "secret" not in repr(found)
        assert [(one.status, one.state) for one in other.add(message)] == [("known", "accepted")]
        again = notification(
            harness, recipient="+49 secret", body="secret words", key="n-2", guard=Guard(window_s=3600)
        )
        ledger.add(again)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(message.id)], "the guard holds"
        assert status(ledger, message).answer == "sent"

    def test_erase_cancels_pending_notifications_and_keeps_uncertain_ones(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        waiting, doubtful = notification(harness, "waiting"), notification(harness, "doubtful")
        ledger.add(doubtful)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        ledger.add(waiting, notification(harness, "of another", recipient="+492"))
        assert ledger.run(people(ledger).erase(waiting.tenant, waiting.recipient, "asked to", "ada")) == 1
        assert (shown(ledger, waiting).state, shown(ledger, waiting).erased) == ("cancelled", True)
        assert (shown(ledger, doubtful).state, shown(ledger, doubtful).erased) == ("uncertain", False)
        assert [one.notification.key for one in ledger.take(harness)] == ["of another"]

    def test_a_taken_notification_is_erased_only_after_it_is_finished(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness, guard=Guard(window_s=3600))
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        erase = people(other).erase
        assert other.run(erase(message.tenant, message.recipient, "asked to", "ada")) == 0, "it may leave at any moment"
        assert ledger.cross(dispatch) == [Crossed()]
        assert other.run(erase(message.tenant, message.recipient, "asked to", "ada")) == 0
        assert decide(other, message, "cancelled") is None
        assert ledger.answer(harness, dispatch, Accepted("r-1"))
        assert other.run(erase(message.tenant, message.recipient, "asked to", "ada")) == 1
        assert (shown(ledger, message).state, shown(ledger, message).erased) == ("accepted", True)

    def test_what_may_have_left_and_is_to_be_sent_again_waits(self, harness: Harness, ledger: OutboxCaller) -> None:
        """After the decision `not_sent` the relay still needs the content."""
        message = notification(harness, policy="resend")
        ledger.add(message)
        overdue(harness, ledger)
        assert shown(ledger, message).state == "pending"
        assert ledger.run(people(ledger).erase(message.tenant, message.recipient, "asked to", "ada")) == 0
        assert (shown(ledger, message).state, shown(ledger, message).erased) == ("pending", False)
        assert decide(ledger, message, "cancelled") == "uncertain"
        assert decide(ledger, message, "not_sent") == "pending"
        assert ledger.take_one(harness).notification.body == message.body

    def test_an_answer_that_comes_after_a_person_gave_up_counts(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("timeout"))
        assert decide(other, message, "given_up") == "failed"
        assert ledger.apply_reports(DeliveryReport("delivered", message.id)) == ["delivered"], (
            "a delivery report outweighs a decision"
        )
        assert ledger.take(harness) == []


# Laws of `backlog` and `purge`: the waiting messages are counted, and finished ones are deleted in time.

NEVER_MS = 10**12
ACCEPTED = Accepted("r-1")


def purge(sender: OutboxCaller, content_ms: int, identity_ms: int = NEVER_MS) -> int:
    """Purge in steps until nothing is left to purge."""
    total = 0
    while count := sender.run(people(sender).purge(content_ms, identity_ms, 1_000)):
        total += count
    return total


def sent(harness: Harness, sender: OutboxCaller, *messages: Notification, answer: Answer = ACCEPTED) -> None:
    sender.add(*messages)
    taken = {one.id: one for one in sender.take(harness)}
    for one in messages:
        sender.send(harness, taken[one.id], answer)


class BacklogLaws(OutboxBinding):
    def test_unfinished_notifications_are_counted_by_provider_and_state(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first = notification(harness, "n-0")
        ledger.add(first)
        harness.advance(harness.unit_ms)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(1, 6)])
        ledger.add(notification(harness, "elsewhere", provider=provider(harness, "two")))
        over, doubtful, leaving = ledger.take(harness, room=3)
        ledger.send(harness, over, Accepted())
        ledger.send(harness, doubtful, Unknown("timeout"))
        ledger.cross(leaving)
        backlog = ledger.run(people(ledger).backlog())
        ours = {(one.provider, one.state): one.count for one in backlog if one.provider.endswith(harness.namespace)}
        one, two = provider(harness), provider(harness, "two")
        counts = {(one, "uncertain"): 1, (one, "sending"): 1, (one, "pending"): 3, (two, "pending"): 1}
        assert ours == counts, "finished notifications are not in the backlog"

    def test_the_backlog_has_the_time_of_its_oldest_notification(self, harness: Harness, ledger: OutboxCaller) -> None:
        first = notification(harness, "n-0")
        ledger.add(first)
        harness.advance(harness.unit_ms)
        ledger.add(notification(harness, "n-1"))
        (waiting,) = [one for one in ledger.run(people(ledger).backlog()) if one.provider == provider(harness)]
        assert waiting.oldest_ms == shown(ledger, first).added_ms

    def test_a_notification_without_a_provider_waits_at_its_channel(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        def waiting() -> int:
            backlog = ledger.run(people(ledger).backlog())
            return sum(one.count for one in backlog if (one.provider, one.state) == ("@voice", "pending"))

        before = waiting()
        ledger.add(notification(harness, provider="", channel="voice"))
        assert waiting() == before + 1


class PurgeLaws(OutboxBinding):
    def test_a_finished_notification_loses_its_content_after_its_time_and_is_still_known(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness, body="secret words", recipient="+49 secret", guard=Guard(window_s=3600))
        sent(harness, ledger, message, answer=Accepted("r-1", "to +49 secret"))
        harness.advance(6 * harness.unit_ms)
        purge(ledger, 600 * harness.unit_ms)
        assert not shown(ledger, message).erased, "not before its time"
        assert purge(ledger, 6 * harness.unit_ms) >= 1
        found = shown(other, message)
        assert found.erased
        assert "secret" not in repr(found)
        assert [one.outcome for one in found.attempts] == ["accepted"]
        changed = notification(harness, body="other words", recipient="+49 secret", guard=Guard(window_s=3600))
        assert [(one.status, one.state) for one in other.add(message, changed)] == [("known", "accepted")] * 2
        assert (status(other, message).answer, status(other, message).reference) == ("sent", "r-1")

    @pytest.mark.parametrize("answer", [REFUSED, Accepted()], ids=["failed", "accepted"])
    def test_every_end_is_forgotten(self, harness: Harness, ledger: OutboxCaller, answer: Answer) -> None:
        message = notification(harness)
        sent(harness, ledger, message, answer=answer)
        harness.advance(harness.unit_ms)
        purge(ledger, harness.unit_ms)
        assert shown(ledger, message).erased

    def test_an_unfinished_notification_stays_however_old_it_is(self, harness: Harness, ledger: OutboxCaller) -> None:
        by_key = {key: notification(harness, key) for key in ("uncertain", "refused", "leaving", "waiting")}
        ledger.add(*by_key.values())
        taken = {one.notification.key: one for one in ledger.take(harness)}
        ledger.send(harness, taken["uncertain"], Unknown("timeout"))
        ledger.send(harness, taken["refused"], Refused("busy"))
        ledger.cross(taken["leaving"])
        harness.advance(30 * harness.unit_ms)
        purge(ledger, 0, 0)
        found = {key: shown(ledger, one).state for key, one in by_key.items()}
        assert found == {
            "uncertain": "uncertain",
            "refused": "pending",
            "leaving": "sending",
            "waiting": "pending",
        }
        assert not any(shown(ledger, one).erased for one in by_key.values())
        assert len(shown(ledger, by_key["refused"]).attempts) == 1, "its evidence stays too"

    def test_the_time_runs_from_its_end_and_not_from_its_beginning(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        harness.advance(40 * harness.unit_ms)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        purge(ledger, 39 * harness.unit_ms, 39 * harness.unit_ms)
        assert not shown(ledger, message).erased

    def test_a_notification_is_purged_after_its_time_with_all_its_records(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness)
        sent(harness, ledger, message, answer=Accepted(f"r-{harness.namespace}"))
        harness.advance(10 * harness.unit_ms)
        purge(ledger, harness.unit_ms, 600 * harness.unit_ms)
        assert [one.status for one in ledger.add(message)] == ["known"]
        purge(ledger, harness.unit_ms, 10 * harness.unit_ms)
        assert ledger.run(people(ledger).show(message.id)) is None
        by_reference = DeliveryReport("delivered", None, provider(harness), f"r-{harness.namespace}")
        assert ledger.apply_reports(by_reference, DeliveryReport("delivered", message.id)) == [None, None]
        assert [one.status for one in ledger.add(message)] == ["added"]
        assert shown(ledger, message).attempts == ()

    def test_no_purge_step_exceeds_its_limit(self, harness: Harness, ledger: OutboxCaller) -> None:
        messages = [notification(harness, f"n-{number}") for number in range(5)]
        sent(harness, ledger, *messages)
        harness.advance(harness.unit_ms)
        gone = 0
        while count := ledger.run(people(ledger).purge(harness.unit_ms, NEVER_MS, 2)):
            assert count <= 2
            now = sum(shown(ledger, one).erased for one in messages)
            assert now - gone <= 2
            gone = now
        assert gone == 5

    def test_a_guard_holds_after_the_content_of_the_notification_that_passed_it_is_purged(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0)
        assert shown(ledger, first).erased
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_guard_holds_after_the_notification_that_passed_it_is_purged(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0, 0)
        assert ledger.run(people(ledger).show(first.id)) is None
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]
        assert [one.status for one in ledger.add(first)] == ["added"], "it is another notification with the same key"
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)], "it has not passed the guard itself"

    def test_a_notification_with_the_key_of_a_purged_one_does_not_free_its_guard(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        first, second = (notification(harness, key, guard=Guard(window_s=3600)) for key in ("n-1", "n-2"))
        sent(harness, ledger, first)
        harness.advance(harness.unit_ms)
        purge(ledger, 0, 0)
        ledger.add(first)
        assert decide(ledger, first, "cancelled") == "cancelled"
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_window_longer_than_that_of_the_sent_notification_is_kept_too(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        short, long = (Guard(window_s=units * harness.unit_ms / 1000, key="g") for units in (2, 300))
        first, second = notification(harness, "n-1", guard=short), notification(harness, "n-2", guard=long)
        sent(harness, ledger, first)
        harness.advance(5 * harness.unit_ms)
        purge(ledger, 0, 200 * harness.unit_ms)
        ledger.add(second)
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first.id)]

    def test_a_guard_whose_window_is_over_is_forgotten_and_lets_through(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        window = Guard(window_s=2 * harness.unit_ms / 1000)
        sent(harness, ledger, notification(harness, "n-1", guard=window))
        harness.advance(3 * harness.unit_ms)
        purge(ledger, 0, 0)
        ledger.add(notification(harness, "n-2", guard=window))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    def test_a_report_about_purged_content_counts_without_its_evidence(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness)
        reference = f"r-{harness.namespace}"
        sent(harness, ledger, message, answer=Accepted(reference))
        harness.advance(harness.unit_ms)
        purge(ledger, 0)
        report = DeliveryReport("delivered", None, provider(harness), reference, evidence="to +49 secret")
        assert ledger.apply_reports(report) == ["delivered"]
        found = shown(ledger, message)
        assert (found.state, [one.outcome for one in found.attempts]) == ("delivered", ["accepted", "delivered"])
        assert "secret" not in repr(found)

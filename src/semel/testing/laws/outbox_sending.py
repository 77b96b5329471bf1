"""Laws of an outbox's `cross`, `record` and `witness`: what may leave, and what is known of it afterwards."""

from __future__ import annotations

import pytest

from semel.testing.clerk import altered
from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import overdue
from semel.testing.sender import Sender, answered, notification, provider, released, with_standing
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, Held, Lost, Suppressed, Witness
from semel.values.sending import Accepted, Refused, Reported, Unknown

REFUSED = Refused("no such number", final=True)


class CrossLaws(OutboxBinding):
    def test_whoever_holds_an_old_token_may_send_nothing(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert ledger.cross(first) == [Lost()]
        assert other.cross(second) == [Crossed()]
        assert ledger.cross(first) == [Lost()]

    def test_a_token_crosses_once(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(notification(harness, guard=Guard(window_s=3600)))
        dispatch = ledger.take_one(harness)
        assert ledger.cross(dispatch, dispatch) == [Crossed(), Lost()], "who asks again may have sent"
        assert ledger.cross(dispatch) == [Lost()]
        harness.advance(harness.lease_ms)
        assert other.cross(other.take_one(harness)) == [Lost()], "what came of the first is to be recorded before"

    def test_a_dispatch_that_was_given_back_may_not_cross(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness))
        dispatch = ledger.take_one(harness)
        ledger.record(released(dispatch))
        assert ledger.cross(dispatch) == [Lost()]

    def test_a_retry_sends_the_bytes_of_the_first_try(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"first")
        ledger.answer(harness, first, Refused("busy"))
        harness.advance(2_000)
        second = ledger.take_one(harness)
        assert (second.request, second.standing.attempts) == (b"first", 1)
        ledger.cross(second, request=b"second")
        ledger.answer(harness, second, Refused("busy"))
        harness.advance(4_000)
        assert ledger.take_one(harness).request == b"first"

    def test_another_provider_has_a_request_of_its_own(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        two = provider(harness, "two")
        ledger.record(released(first, others=(two,)))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"for one")
        ledger.answer(harness, first, REFUSED)
        second = ledger.take_one(harness, "two")
        assert (second.standing.provider, second.request) == (two, None)
        assert second.content == first.content

    # ------------------------------------------------------------------------------------------------------- guards

    def test_in_one_window_one_notification_crosses(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        first, second = _guarded(harness, "n-1"), _guarded(harness, "n-2")
        ledger.add(first, second)
        one, two = sorted(ledger.take(harness), key=lambda dispatch: dispatch.notification.key)
        assert ledger.cross(one) == [Crossed()]
        assert other.cross(two) == [Held(one.id)], "nobody knows yet what comes of the first"
        ledger.answer(harness, one, Accepted())
        assert other.cross(two) == [Suppressed(one.id)]
        assert [added.state for added in ledger.add(second)] == ["suppressed"]
        assert ledger.take(harness) == []

    def test_two_of_one_guard_in_one_batch_are_decided_in_order(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        assert ledger.cross(one, two) == [Crossed(), Held(one.id)]

    def test_what_is_uncertain_suppresses_too(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, Unknown("timeout"))
        assert ledger.cross(two) == [Suppressed(one.id)], "it may have been sent"

    def test_what_was_refused_for_good_lets_the_next_one_through(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, REFUSED)
        assert ledger.cross(two) == [Crossed()]

    def test_the_window_slides(self, harness: Harness, ledger: Sender) -> None:
        window_s = 20 * harness.unit_ms / 1000
        ledger.add(_guarded(harness, "n-1", window_s))
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(12 * harness.unit_ms)
        ledger.add(_guarded(harness, "n-2", window_s))
        (gate,) = ledger.cross(ledger.take_one(harness))
        assert isinstance(gate, Suppressed)
        harness.advance(8 * harness.unit_ms)
        ledger.add(_guarded(harness, "n-3", window_s))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()], "the suppressed one does not count"

    def test_a_guard_lets_its_own_notification_through_again(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(_guarded(harness, "n-1"))
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    @pytest.mark.parametrize("other_than", [{"recipient": "+492"}, {"kind": "reminder"}, {"tenant": "another"}])
    def test_a_guard_watches_nothing_else(self, harness: Harness, ledger: Sender, other_than: dict[str, str]) -> None:
        window = Guard(window_s=3600)
        ledger.add(notification(harness, "n-1", guard=window), notification(harness, "n-2", guard=window, **other_than))
        one, two = ledger.take(harness)
        assert ledger.cross(one, two) == [Crossed(), Crossed()]


class RecordLaws(OutboxBinding):
    def test_whoever_holds_an_old_token_can_record_nothing(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        first = ledger.take_one(harness)
        ledger.cross(first)
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert not ledger.answer(harness, first, Accepted())
        assert [one.state for one in ledger.add(said)] == ["sending"]
        assert other.record(released(second, state="uncertain", exit="", due_ms=0)) == [True]
        assert not ledger.answer(harness, first, REFUSED)
        assert [one.state for one in ledger.add(said)] == ["uncertain"]

    def test_the_same_record_twice_is_written_once(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        record = answered(harness, dispatch, Accepted("r-1"))
        assert [ledger.record(record), other.record(record)] == [[True], [True]]
        assert [one.state for one in ledger.add(said)] == ["accepted"]

    @pytest.mark.parametrize(
        ("answer", "state"),
        [(Accepted("r"), "accepted"), (REFUSED, "failed"), (Unknown("?"), "uncertain"), (Refused("busy"), "pending")],
    )
    def test_a_state_is_what_the_relay_concluded(
        self, harness: Harness, ledger: Sender, answer: Accepted | Refused | Unknown, state: str
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), answer)
        assert [one.state for one in ledger.add(said)] == [state]

    def test_what_is_held_is_never_due_and_what_has_an_exit_is_when_it_comes(
        self, harness: Harness, ledger: Sender
    ) -> None:
        ledger.add(notification(harness, "held"), notification(harness, "looked up"))
        for dispatch in ledger.take(harness):
            looks_up = dispatch.notification.key == "looked up"
            ledger.send(harness, dispatch, Unknown("?"), looks_up=looks_up, settle_s=harness.unit_ms / 1000)
        assert ledger.take(harness) == []
        harness.advance(harness.unit_ms)
        again = ledger.take_one(harness)
        assert (again.notification.key, again.standing.exit, again.vanished) == ("looked up", "look_up", False)

    def test_what_is_over_is_never_taken_again(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(2)])
        one, two = ledger.take(harness)
        ledger.send(harness, one, Accepted())
        ledger.send(harness, two, REFUSED)
        harness.advance(10 * harness.lease_ms)
        assert ledger.take(harness) == other.take(harness) == []

    def test_what_is_over_without_an_attempt_is_known_to_have_been_said(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness))
        record = released(ledger.take_one(harness), state="expired", reason="too late")
        assert [ledger.record(record), ledger.record(record)] == [[True], [True]]

    def test_of_two_records_of_one_token_in_a_batch_the_first_counts(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        both = [answered(harness, dispatch, answer) for answer in (Unknown("timeout"), Accepted("r-1"))]
        assert ledger.record(*both) == [True, True]
        assert [one.state for one in ledger.add(said)] == ["uncertain"]

    def test_a_batch_with_one_old_token_writes_the_others(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.cross(one, two)
        harness.advance(harness.lease_ms)
        (taken,) = other.take(harness, room=1)
        mine = [answered(harness, dispatch, Accepted()) for dispatch in (one, two)]
        assert ledger.record(*mine) == [dispatch.id != taken.id for dispatch in (one, two)]


class WitnessLaws(OutboxBinding):
    def test_a_word_moves_a_state_up_or_not_at_all(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1"))
        order: list[Reported] = ["undelivered", "accepted", "delivered", "undelivered", "accepted"]
        states = [other.witness(Witness(says, said.id))[0] for says in order]
        assert states == ["undelivered", "undelivered", "delivered", "delivered", "delivered"]

    def test_a_message_is_known_by_its_providers_own_id(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        reference = f"r-{harness.namespace}"
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        mine = provider(harness)
        assert ledger.witness(Witness("delivered", None, mine, reference)) == ["delivered"]
        assert ledger.witness(Witness("delivered", None, "another provider", reference)) == [None]
        assert ledger.witness(Witness("delivered", None, mine, "")) == [None]
        assert ledger.witness(Witness("delivered", b"\0" * 16)) == [None]

    @pytest.mark.parametrize("says", ["accepted", "delivered", "undelivered"])
    def test_it_resolves_what_is_uncertain(self, harness: Harness, ledger: Sender, says: Reported) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("timeout"), looks_up=True, settle_s=harness.unit_ms / 1000)
        assert ledger.witness(Witness(says, said.id, evidence="callback")) == [says]
        harness.advance(harness.lease_ms)
        assert ledger.take(harness) == [], "there is nothing to look up any more"

    def test_it_counts_while_somebody_is_still_waiting_for_the_answer(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert other.witness(Witness("delivered", said.id)) == ["delivered"]
        ledger.answer(harness, dispatch, Unknown("timeout"))
        assert [one.state for one in ledger.add(said)] == ["delivered"], "what the provider says is more than a doubt"

    def test_a_refusal_lets_the_next_one_of_its_guard_through(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, Unknown("timeout"))
        assert ledger.witness(Witness("refused", one.id)) == ["failed"]
        assert ledger.cross(two) == [Crossed()]

    def test_a_refusal_by_one_provider_says_nothing_of_what_another_has(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness, guard=Guard(window_s=3600))
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        fallback = with_standing(dispatch, altered(dispatch.standing, others=(provider(harness, "two"),)))
        ledger.send(harness, fallback, Refused("no such number", final=True))
        second = ledger.take_one(harness, "two")
        ledger.cross(second)
        assert ledger.witness(Witness("refused", said.id, provider(harness))) == ["sending"]
        assert ledger.answer(harness, second, Unknown("timeout"), name="two")
        assert ledger.witness(Witness("refused", said.id, provider(harness))) == ["uncertain"]
        assert ledger.witness(Witness("refused", said.id, provider(harness, "two"))) == ["failed"]

    def test_a_refusal_of_what_was_sent_again_says_nothing_of_the_first_time(
        self, harness: Harness, ledger: Sender
    ) -> None:
        said = notification(harness, policy="resend")
        ledger.add(said)
        overdue(harness, ledger)
        ledger.cross(ledger.take_one(harness))
        assert ledger.witness(Witness("refused", said.id, provider(harness))) == ["sending"]

    def test_it_stops_what_would_be_sent_again(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        again = ledger.take_one(harness)
        assert other.witness(Witness("accepted", said.id)) == ["accepted"]
        assert ledger.cross(again) == [Lost()]


def _guarded(harness: Harness, key: str, window_s: float = 3_600.0) -> Notification:
    return notification(harness, key, guard=Guard(window_s=window_s))

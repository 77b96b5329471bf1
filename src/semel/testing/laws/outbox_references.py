"""Laws of the ids that providers give: whose message a reference is, and when it says nothing."""

from __future__ import annotations

from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import people, shown
from semel.testing.sender import Sender, contract, notification, provider
from semel.values import sending
from semel.values.outbox import Dispatch, Record, Sought, Witness
from semel.values.sending import Accepted, Refused, Reported, Unknown


def found(harness: Harness, dispatch: Dispatch, reference: str, name: str = "one") -> Record:
    """As the relay records what a look-up has found."""
    terms = contract(harness, name, looks_up=True, settle_s=harness.unit_ms / 1000)
    otherwise = sending.unclear(dispatch.standing, "another's message", terms, dispatch.taken_ms, lambda: 0.0)
    standing = sending.found(dispatch.standing, reference)
    return Record(dispatch, standing, "accepted", "look-up", reference, otherwise)


def looking(harness: Harness, sender: Sender, *keys: str, name: str = "one") -> list[Dispatch]:
    """Notifications whose outcome nobody knows, in the hands of a relay that looks them up."""
    whose = provider(harness, name)
    sender.add(*[notification(harness, key, provider=whose) for key in keys])
    settle_s = harness.unit_ms / 1000
    for dispatch in sender.take(harness, name):
        sender.send(harness, dispatch, Unknown("timeout"), looks_up=True, settle_s=settle_s)
    harness.advance(harness.unit_ms)
    taken = {one.notification.key: one for one in sender.take(harness, name)}
    return [taken[key] for key in keys]


class ReferenceLaws(OutboxBinding):
    def test_what_a_look_up_finds_is_accepted(self, harness: Harness, ledger: Sender) -> None:
        (doubtful,) = looking(harness, ledger, "n-1")
        assert ledger.record(found(harness, doubtful, f"r-{harness.namespace}")) == [True]
        after = shown(ledger, doubtful.notification)
        assert (after.state, after.attempts[-1].reference) == ("accepted", f"r-{harness.namespace}")

    def test_a_look_up_that_finds_the_message_of_another_proves_nothing(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "sent"))
        theirs = ledger.take_one(harness)
        ledger.send(harness, theirs, Accepted(reference))
        (doubtful,) = looking(harness, other, "n-1")
        assert other.record(found(harness, doubtful, reference)) == [True]
        after = shown(ledger, doubtful.notification)
        assert after.state == "uncertain"
        assert (after.attempts[-1].outcome, after.attempts[-1].reference) == ("unclear", "")
        assert theirs.id.hex() in after.attempts[-1].evidence
        assert reference in after.attempts[-1].evidence
        assert other.record(found(harness, doubtful, reference)) == [True], "it was said before"
        harness.advance(harness.lease_ms)
        (again,) = other.take(harness)
        assert (again.standing.exit, again.standing.looks) == ("look_up", 1)
        assert ledger.witness(Witness("delivered", None, provider(harness), reference)) == ["delivered"]
        assert shown(ledger, theirs.notification).state == "delivered"

    def test_of_two_look_ups_that_find_one_message_the_first_has_it(self, harness: Harness, ledger: Sender) -> None:
        one, two = looking(harness, ledger, "n-1", "n-2")
        reference = f"r-{harness.namespace}"
        assert ledger.record(*[found(harness, each, reference) for each in (one, two)]) == [True, True]
        states = [shown(ledger, each.notification).state for each in (one, two)]
        assert states == ["accepted", "uncertain"]
        assert one.id.hex() in shown(ledger, two.notification).attempts[-1].evidence

    def test_in_one_batch_what_was_sent_comes_before_what_was_found(self, harness: Harness, ledger: Sender) -> None:
        (doubtful,) = looking(harness, ledger, "n-1")
        ledger.add(notification(harness, "n-2"))
        sent = ledger.take_one(harness)
        ledger.cross(sent)
        reference = f"r-{harness.namespace}"
        crossed = sending.crossed(sent.standing, sent.taken_ms)
        after = sending.answered(crossed, Accepted(reference), contract(harness), sent.taken_ms, lambda: 0.0)
        ledger.record(found(harness, doubtful, reference), Record(sent, after, "accepted", "202", reference))
        states = [shown(ledger, each.notification).state for each in (doubtful, sent)]
        assert states == ["uncertain", "accepted"]

    def test_a_look_up_that_finds_its_own_message_is_believed(self, harness: Harness, ledger: Sender) -> None:
        said, reference = notification(harness, "n-1"), f"r-{harness.namespace}"
        ledger.add(said)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        assert ledger.witness(Witness("refused", said.id, provider(harness), reference)) == ["pending"]
        harness.advance(2_000)
        (doubtful,) = looking(harness, ledger, "n-1")
        assert ledger.record(found(harness, doubtful, reference)) == [True]
        assert shown(ledger, said).state == "accepted", "nobody else has it"

    def test_another_provider_may_give_the_same_id(self, harness: Harness, ledger: Sender) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "sent"))
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        (doubtful,) = looking(harness, ledger, "n-1", name="two")
        ledger.record(found(harness, doubtful, reference, "two"))
        assert shown(ledger, doubtful.notification).state == "accepted"

    def test_an_answer_with_the_id_of_another_is_an_answer(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        for dispatch in ledger.take(harness):
            ledger.send(harness, dispatch, Accepted(f"r-{harness.namespace}"))
            assert shown(ledger, dispatch.notification).state == "accepted", "a provider says so of what it was sent"

    # ------------------------------------------------------------------------------------------------- their own word

    def test_a_word_about_an_id_that_two_share_moves_neither(self, harness: Harness, ledger: Sender) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        one, two = ledger.take(harness)
        for dispatch in (one, two):
            ledger.send(harness, dispatch, Accepted(reference))
        assert ledger.witness(Witness("delivered", None, provider(harness), reference)) == [None]
        assert [shown(ledger, each.notification).state for each in (one, two)] == ["accepted", "accepted"]
        ours = Witness("delivered", two.id, provider(harness), reference)
        assert ledger.witness(ours) == ["delivered"], "our own id says who is meant"
        assert [shown(ledger, each.notification).state for each in (one, two)] == ["accepted", "delivered"]

    def test_our_own_id_counts_for_more_than_a_reference(self, harness: Harness, ledger: Sender) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"))
        one = ledger.take_one(harness)
        ledger.send(harness, one, Accepted(reference))
        (two,) = looking(harness, ledger, "n-2")
        assert ledger.witness(Witness("delivered", two.id, provider(harness), reference)) == ["delivered"]
        assert shown(ledger, one.notification).state == "accepted"
        assert ledger.witness(Witness("delivered", b"\0" * 16, provider(harness), reference)) == [None]

    def test_many_words_about_one_message_are_about_one(self, harness: Harness, ledger: Sender) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"))
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        words: list[Reported] = ["accepted", "undelivered", "delivered"]
        for says in words:
            word = Witness(says, None, provider(harness), reference)
            assert ledger.witness(word) == [says]

    def test_a_word_about_another_message_of_the_same_notification_tells_of_a_second_one(
        self, harness: Harness, ledger: Sender
    ) -> None:
        """Its first attempt was called absent, and was only late; or another relay has sent it too."""
        said, once = notification(harness, "twice"), notification(harness, "once")
        ledger.add(said, once)
        for number, dispatch in enumerate(ledger.take(harness)):
            ledger.send(harness, dispatch, Accepted(f"r-{number} {harness.namespace}"))
        sought = Sought(tenant=harness.namespace, possible_duplicates=True)
        for one in (said, once):
            reference = shown(ledger, one).attempts[0].reference
            ledger.witness(Witness("accepted", one.id, provider(harness), reference))
            ledger.witness(Witness("delivered", one.id, provider(harness), reference))
            ledger.witness(Witness("delivered", one.id, provider(harness)))
        assert ledger.run(people(ledger).find(sought)) == [], "all of it is about the message that is known"
        for _ in range(2):  # callbacks come twice
            ledger.witness(Witness("delivered", said.id, provider(harness), f"another {harness.namespace}"))
        (found,) = ledger.run(people(ledger).find(sought))
        assert (found.notification.key, found.possible_duplicates, found.state) == ("twice", 1, "delivered")

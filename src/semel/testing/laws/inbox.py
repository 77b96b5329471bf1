"""Laws of `accept` and `depths`: what is kept until it is handled, and what is known already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from semel.ports import Ledger
from semel.testing.bystanders import InboxBystanders, watch
from semel.testing.clerk import Clerk, arrival, lane, of_handler
from semel.testing.harness import Harness
from semel.testing.laws.binding import Binding
from semel.values.claim import Granted
from semel.values.inbox import Arrival, Finished, GivenUp, Postponed, Taken
from semel.values.outcome import Done, Final, Reject, Release, Retry, Uncertain
from semel.values.reading import Reading

WAITS = "duplicate: waits in the inbox"
SETTLED: dict[str, Final] = {
    "duplicate: done": Done(b"1"),
    "duplicate: dead: no": Reject("no"),
    "duplicate: uncertain: ?": Uncertain("?"),
}


class InboxBinding(Binding):
    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        return watch(InboxBystanders(harness), partial(Clerk, open_ledger))

    @pytest.fixture
    def ledger(self, harness: Harness) -> Iterator[Clerk]:
        with Clerk(harness.open) as clerk:
            yield clerk

    @pytest.fixture
    def other(self, harness: Harness) -> Iterator[Clerk]:
        """Another process on the same store."""
        with Clerk(harness.open) as clerk:
            yield clerk


class AcceptLaws(InboxBinding):
    def test_what_is_accepted_can_be_taken_as_it_came(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        came = arrival(
            harness, "a", event=b'{"id":"\\u00e4"}', reading=Reading("org", "data.id", None), trace="00-1-2-01"
        )
        began_ms = harness.clock() if harness.clock else 0
        ledger.put(came)
        taken = other.take_one(harness)
        assert (taken.lane, taken.event, taken.tenant) == (came.lane, came.event, came.tenant)
        assert (taken.reading, taken.trace) == (came.reading, came.trace)
        assert (taken.only, taken.lapses) == ("", 0)
        assert taken.token > 0
        assert not began_ms or taken.accepted_ms == began_ms

    def test_what_is_accepted_outlives_whoever_accepted_it(self, harness: Harness, other: Clerk) -> None:
        with Clerk(harness.open) as short_lived:
            short_lived.put(arrival(harness, "a", event=b"1"))
        assert other.take_one(harness).event == b"1"

    def test_one_that_waits_already_is_a_duplicate(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        again = arrival(harness, "a", event=b"2", to="another lane")
        assert [ledger.accept(again), other.accept(again)] == [WAITS, WAITS]
        taken = ledger.take_one(harness)
        assert other.accept(again) == WAITS, "in someone's hands"
        ledger.finish(Postponed(taken, harness.unit_ms))
        assert other.accept(again) == WAITS, "for later"
        harness.advance(harness.unit_ms)
        assert other.take_one(harness).event == b"1"
        harness.advance(harness.lease_ms)
        assert other.accept(again) == WAITS, "left behind"
        assert other.take(harness, "another lane") == []

    @pytest.mark.parametrize("answer", list(SETTLED))
    def test_an_arrival_whose_claims_are_all_settled_is_a_duplicate(
        self, harness: Harness, ledger: Clerk, other: Clerk, answer: str
    ) -> None:
        ledger.die(harness.claim("a"), SETTLED[answer])
        assert [ledger.accept(arrival(harness, "a")), other.accept(arrival(harness, "a"))] == [answer, answer]
        assert ledger.depth(harness) == (0, 0)

    @pytest.mark.parametrize("answer", list(SETTLED))
    def test_what_is_settled_is_known_to_the_last_moment_of_its_retention(
        self, harness: Harness, ledger: Clerk, answer: str
    ) -> None:
        ledger.die(harness.claim("a"), SETTLED[answer])
        if harness.clock:
            harness.advance(harness.retention_ms - 1)
            assert ledger.accept(arrival(harness, "a")) == answer
            harness.advance(1)
        else:
            harness.advance(harness.retention_ms)
        ledger.put(arrival(harness, "a"))

    def test_a_letter_or_a_record_is_there_at_every_moment(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        claim, came = harness.claim("a"), arrival(harness, "a")
        ledger.put(came)
        taken = ledger.take_one(harness)
        granted = ledger.grant(claim)
        assert other.accept(came) == WAITS
        ledger.settle(granted, Done())
        assert other.accept(came) == "duplicate: done", "settled, and not finished yet"
        assert ledger.finish(Finished(taken)) is True
        assert other.accept(came) == "duplicate: done"
        harness.advance(harness.lease_ms)
        assert other.take(harness) == []

    def test_what_is_being_handled_elsewhere_is_accepted(self, harness: Harness, ledger: Clerk) -> None:
        leased, waiting, lapsed = harness.claims(3)
        ledger.grant(lapsed)
        harness.advance(harness.lease_ms)
        ledger.grant(leased)
        ledger.settle(ledger.grant(waiting), Retry(20 * harness.unit_ms / 1000))
        for claim in (leased, waiting, lapsed):
            ledger.put(arrival(harness, claim))

    def test_what_was_finished_without_a_record_is_accepted_again(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        ledger.settle(ledger.grant(harness.claim("a")), Release())
        ledger.finish(Finished(taken))
        ledger.put(arrival(harness, "a"))

    def test_an_arrival_for_nobody_is_an_error(self, harness: Harness, ledger: Clerk) -> None:
        nobodys = Arrival((), lane(harness), b"{}", harness.namespace)
        with pytest.raises(ValueError, match="without claims"):
            ledger.accept_all([arrival(harness, "a"), nobodys])
        assert ledger.depth(harness) == (0, 0)

    # -------------------------------------------------------------------------------------------- several claims

    def test_one_unsettled_claim_of_several_is_enough(self, harness: Harness, ledger: Clerk) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.do(one)
        ledger.put(arrival(harness, one, two))
        assert ledger.accept(arrival(harness, two, one)) == WAITS
        ledger.do(two)
        assert ledger.accept(arrival(harness, one, two)) == "duplicate: done"

    def test_an_event_of_two_handlers_waits_for_both(self, harness: Harness, ledger: Clerk) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        came = arrival(harness, one, two)
        ledger.put(came)
        taken = ledger.take_one(harness)
        ledger.do(one)
        ledger.settle(ledger.grant(two), Retry(harness.unit_ms / 1000))
        ledger.finish(Postponed(taken, harness.unit_ms))
        assert ledger.accept(came) == WAITS
        harness.advance(harness.unit_ms)
        taken = ledger.take_one(harness)
        ledger.die(two)
        ledger.finish(Finished(taken))
        assert ledger.accept(came) == "duplicate: dead: no", "of several ends, what needs a person is told"

    def test_claims_that_wait_in_different_letters_wait(self, harness: Harness, ledger: Clerk) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.put(arrival(harness, one))
        ledger.put(arrival(harness, two))
        assert ledger.accept(arrival(harness, one, two)) == WAITS
        ledger.put(arrival(harness, one, of_handler(harness, "three", "a")))

    @pytest.mark.parametrize("settled", [True, False], ids=["settled", "waits"])
    def test_a_key_known_under_an_alias_is_a_duplicate(self, harness: Harness, ledger: Clerk, settled: bool) -> None:
        first = harness.claim("a", aliases=["x"])
        if settled:
            ledger.do(first)
        else:
            ledger.put(arrival(harness, first))
        for known in (harness.claim("b", aliases=["x"]), harness.claim("b", aliases=["y", "x"]), first):
            assert ledger.accept(arrival(harness, known)) == ("duplicate: done" if settled else WAITS)
        ledger.put(arrival(harness, harness.claim("b", aliases=["y"])))

    def test_the_same_key_at_another_place_in_the_order_is_not_swallowed(self, harness: Harness, ledger: Clerk) -> None:
        """The one that waits may turn out to be stale, and then the newer one must be there."""
        old, new = (harness.claim("a", subject="s", position=position) for position in (1, 2))
        ledger.put(arrival(harness, old))
        assert ledger.accept(arrival(harness, old)) == WAITS
        ledger.put(arrival(harness, new))
        assert ledger.accept(arrival(harness, new)) == WAITS
        ledger.do(new)
        assert ledger.accept(arrival(harness, old)) == ledger.accept(arrival(harness, new)) == "duplicate: done"

    # ---------------------------------------------------------------------------------------------------- conflicts

    @pytest.mark.parametrize("where", ["waits", "taken", "leased", "done", "dead", "given up"])
    def test_another_payload_is_a_conflict(self, harness: Harness, ledger: Clerk, other: Clerk, where: str) -> None:
        claim = harness.claim("a", fingerprint="1")
        if where in ("waits", "taken", "given up"):
            ledger.put(arrival(harness, claim, event=b"1"))
        if where == "taken":
            ledger.take(harness)
        if where == "given up":
            ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        if where == "leased":
            ledger.grant(claim)
        if where in ("done", "dead"):
            ledger.die(claim, Done() if where == "done" else Reject("no"))
        for clerk in (ledger, other):
            assert clerk.accept(arrival(harness, "a", event=b"2", fingerprint="2")).startswith("conflict: ")
        if where != "leased":
            assert ledger.accept(arrival(harness, claim)).startswith("duplicate: ")
            assert ledger.accept(arrival(harness, "a")).startswith("duplicate: "), "payloads are not compared"
        if where == "waits":
            assert ledger.take_one(harness).event == b"1"

    def test_one_conflict_among_several_claims_is_a_conflict(self, harness: Harness, ledger: Clerk) -> None:
        one, two = (of_handler(harness, name, "a", "1") for name in ("one", "two"))
        for name in ("one", "two"):
            ledger.do(of_handler(harness, name, "b", "1"))
            mixed = arrival(harness, of_handler(harness, name, "b", "2"), one, two)
            assert ledger.accept(mixed).startswith("conflict: ")
        ledger.put(arrival(harness, one))
        assert ledger.accept(arrival(harness, two, of_handler(harness, "one", "a", "2"))).startswith("conflict: ")

    def test_the_ledger_has_the_first_word_about_a_payload(self, harness: Harness, ledger: Clerk) -> None:
        """A letter with another payload came to nothing: the right one is still what was done."""
        right, wrong = (arrival(harness, "a", fingerprint=text) for text in ("right", "wrong"))
        ledger.put(wrong)
        ledger.do(right.claims[0])
        ledger.finish(GivenUp(ledger.take_one(harness), "conflict"))
        assert ledger.accept(right) == "duplicate: done"
        assert ledger.accept(wrong).startswith("conflict: ")

    def test_duplicates_and_conflicts_leave_nothing_behind(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a", fingerprint="1"))
        ledger.do(of_handler(harness, "one", "done"))
        unknown = of_handler(harness, "two", "unknown")
        refused = [
            arrival(harness, "a", fingerprint="1", to="x"),
            arrival(harness, "a", fingerprint="2", to="x"),
            arrival(harness, of_handler(harness, "one", "done"), to="x"),
            arrival(harness, harness.claim("a", fingerprint="2"), unknown, to="x"),
        ]
        statuses = [answer.status for answer in ledger.accept_all(refused)]
        assert statuses == ["duplicate", "conflict", "duplicate", "conflict"]
        assert ledger.depths(harness, "x") == []
        assert ledger.depth(harness) == (1, 0)
        ledger.put(arrival(harness, unknown))

    # ------------------------------------------------------------------------------------------------------ batches

    def test_copies_inside_one_batch_are_decided_in_order(self, harness: Harness, ledger: Clerk) -> None:
        one, two = of_handler(harness, "one", "c"), of_handler(harness, "two", "c")
        answers = ledger.accept_all(
            [
                arrival(harness, "a", event=b"1", fingerprint="1"),
                arrival(harness, "a", event=b"2", fingerprint="1"),
                arrival(harness, "a", event=b"3", fingerprint="2"),
                arrival(harness, "b", event=b"4"),
                arrival(harness, one, event=b"5"),
                arrival(harness, one, two, event=b"6"),
                arrival(harness, two, event=b"7"),
            ]
        )
        expected = ["accepted", "duplicate", "conflict", "accepted", "accepted", "accepted", "duplicate"]
        assert [answer.status for answer in answers] == expected
        assert [taken.event for taken in ledger.take(harness)] == [b"1", b"4", b"5", b"6"]

    def test_batches_of_every_size_come_out_as_they_went_in(self, harness: Harness, ledger: Clerk) -> None:
        for count in harness.batches:
            came = [arrival(harness, f"one of {count}, {at}", event=b"%d" % at) for at in range(count)]
            assert {answer.status for answer in ledger.accept_all(came)} <= {"accepted"}
            assert {answer.status for answer in ledger.accept_all(came)} <= {"duplicate"}
            taken = ledger.take(harness)
            assert [one.event for one in taken] == [one.event for one in came]
            assert len({one.token for one in taken}) == len({one.id for one in taken}) == count
            assert ledger.finish_all([Finished(one) for one in taken]) == [True] * count
            assert ledger.depth(harness) == (0, 0)

    # ------------------------------------------------------------------------------------------------------- depths

    def test_depths_tell_what_waits_and_what_is_taken(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        assert ledger.depths(harness) == []
        ledger.accept_all([arrival(harness, f"key {at}") for at in range(3)])
        harness.advance(harness.unit_ms)
        ledger.put(arrival(harness, "later"))
        ledger.put(arrival(harness, "elsewhere", to="x"))
        taken = ledger.take(harness, count=2)
        assert other.depth(harness) == (2, 2)
        (depth,) = other.depths(harness)
        assert not harness.clock or depth.oldest_ms == harness.clock() - harness.unit_ms
        ledger.finish(Postponed(taken[0], 20 * harness.unit_ms))
        ledger.finish(Finished(taken[1]))
        assert other.depth(harness) == (3, 0), "what is not due waits too"
        assert other.depth(harness, "x") == (1, 0)

    def test_what_was_left_behind_waits(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a"))
        ledger.take(harness)
        assert ledger.depth(harness) == (0, 1)
        harness.advance(harness.lease_ms)
        assert ledger.depth(harness) == (1, 0)

    def test_reading_depths_changes_nothing(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        assert ledger.depths(harness) == ledger.depths(harness)
        assert ledger.finish(Finished(taken)) is True

    # ------------------------------------------------------------------------------------------------- catalog

    def test_letters_that_wait_are_listed_as_accepted(self, harness: Harness, ledger: Clerk) -> None:
        one, two = harness.claim("a"), harness.claim("b")
        ledger.put(arrival(harness, one))
        harness.advance(harness.unit_ms)
        ledger.put(arrival(harness, two))
        listed = ledger.run(ledger.store.entries("accepted", 10, tenant=harness.namespace))
        assert [(entry.key, entry.text) for entry in listed] == [(two.digest.hex(), "b"), (one.digest.hex(), "a")]
        assert {(entry.handler, entry.state, entry.event) for entry in listed} == {(lane(harness), "accepted", None)}
        assert ledger.told(one) == [("accepted", 1)]
        before = ledger.run(ledger.store.counts())["accepted"]
        _finish(ledger, ledger.take(harness))
        assert ledger.run(ledger.store.entries("accepted", 10, tenant=harness.namespace)) == []
        assert ledger.run(ledger.store.counts())["accepted"] == before - 2

    def test_a_postponed_item_keeps_the_reason_of_the_last_time_and_lapses_leave_it(
        self, harness: Harness, ledger: Clerk, other: Clerk
    ) -> None:
        claim, bystander = harness.claim("a"), harness.claim("b")
        ledger.put(arrival(harness, claim))
        ledger.put(arrival(harness, bystander))
        for reason in ("first", "second"):
            taken = {one.key: one for one in ledger.take(harness)}
            assert ledger.finish(Postponed(taken[claim.digest], 0, reason)) is True
            assert ledger.finish(Postponed(taken[bystander.digest], 0)) is True
            assert [entry.reason for entry in other.history(claim)] == [reason]
            assert [entry.reason for entry in other.history(bystander)] == [""]
        ledger.take(harness)
        assert [entry.reason for entry in other.history(claim)] == ["second"], "also while it is taken"
        harness.advance(harness.lease_ms)
        ledger.take(harness)
        assert [entry.reason for entry in other.history(claim)] == ["second"]

    def test_a_letter_of_several_claims_is_one_entry_and_in_the_history_of_each(
        self, harness: Harness, ledger: Clerk
    ) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.put(arrival(harness, one, two))
        (entry,) = ledger.run(ledger.store.entries("accepted", 10, tenant=harness.namespace))
        assert ledger.history(one) == ledger.history(two) == ledger.run(ledger.store.history(entry.key)) == [entry]
        assert isinstance(ledger.claim(one), Granted)


def _finish(ledger: Clerk, taken: list[Taken]) -> None:
    assert all(ledger.finish_all([Finished(one) for one in taken]))

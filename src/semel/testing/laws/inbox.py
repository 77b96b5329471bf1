"""Laws of an inbox: accepted events, duplicates, conflicts, depths, and taking and finishing items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from semel.ports import EntryQuery, Ledger
from semel.testing.bystanders import InboxBystanders, watch
from semel.testing.harness import Harness, InboxCaller, altered, arrival, lane, of_handler
from semel.testing.laws.binding import Binding
from semel.values import inbox
from semel.values.claim import Granted, Settlement
from semel.values.event import DecodeOptions
from semel.values.inbox import Arrival, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.outcome import Done, Final, Reject, Release, Retry, Uncertain

WAITS = f"{inbox.WAITS.status}: {inbox.WAITS.reason}"
SETTLED: dict[str, Final] = {
    "duplicate: done": Done(b"1"),
    "duplicate: dead: no": Reject("no"),
    "duplicate: uncertain: ?": Uncertain("?"),
}


class InboxBinding(Binding):
    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        return watch(InboxBystanders(harness), partial(InboxCaller, open_ledger))

    @pytest.fixture
    def ledger(self, harness: Harness) -> Iterator[InboxCaller]:
        with InboxCaller(harness.open) as clerk:
            yield clerk

    @pytest.fixture
    def other(self, harness: Harness) -> Iterator[InboxCaller]:
        """Another process on the same store."""
        with InboxCaller(harness.open) as clerk:
            yield clerk


class AcceptLaws(InboxBinding):
    def test_an_accepted_event_is_taken_unchanged(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        came = arrival(
            harness,
            "a",
            event=b'{"id":"\\u00e4"}',
            decode_options=DecodeOptions("org", "data.id", None),
            trace="00-1-2-01",
        )
        began_ms = harness.clock() if harness.clock else 0
        ledger.put(came)
        taken = other.take_one(harness)
        assert (taken.lane, taken.event, taken.tenant) == (came.lane, came.event, came.tenant)
        assert (taken.decode_options, taken.trace) == (came.decode_options, came.trace)
        assert (taken.only, taken.lapses) == ("", 0)
        assert taken.token > 0
        assert not began_ms or taken.accepted_ms == began_ms

    def test_an_accepted_event_outlives_the_process_that_accepted_it(
        self, harness: Harness, other: InboxCaller
    ) -> None:
        with InboxCaller(harness.open) as short_lived:
            short_lived.put(arrival(harness, "a", event=b"1"))
        assert other.take_one(harness).event == b"1"

    def test_one_that_waits_already_is_a_duplicate(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        again = arrival(harness, "a", event=b"2", to="another lane")
        assert [ledger.accept(again), other.accept(again)] == [WAITS, WAITS]
        taken = ledger.take_one(harness)
        assert other.accept(again) == WAITS, "another worker has taken it"
        ledger.finish(Postponed(taken, harness.unit_ms))
        assert other.accept(again) == WAITS, "it is postponed"
        harness.advance(harness.unit_ms)
        assert other.take_one(harness).event == b"1"
        harness.advance(harness.lease_ms)
        assert other.accept(again) == WAITS, "its lease has lapsed"
        assert other.take(harness, "another lane") == []

    @pytest.mark.parametrize("answer", list(SETTLED))
    def test_an_arrival_whose_claims_are_all_settled_is_a_duplicate(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, answer: str
    ) -> None:
        ledger.die(harness.claim("a"), SETTLED[answer])
        assert [ledger.accept(arrival(harness, "a")), other.accept(arrival(harness, "a"))] == [answer, answer]
        assert ledger.depth(harness) == (0, 0)

    @pytest.mark.parametrize("answer", list(SETTLED))
    def test_a_settled_key_is_known_to_the_last_moment_of_its_retention(
        self, harness: Harness, ledger: InboxCaller, answer: str
    ) -> None:
        ledger.die(harness.claim("a"), SETTLED[answer])
        if harness.clock:
            harness.advance(harness.retention_ms - 1)
            assert ledger.accept(arrival(harness, "a")) == answer
            harness.advance(1)
        else:
            harness.advance(harness.retention_ms)
        ledger.put(arrival(harness, "a"))

    def test_an_item_or_a_record_is_there_at_every_moment(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
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

    def test_what_is_being_handled_elsewhere_is_accepted(self, harness: Harness, ledger: InboxCaller) -> None:
        leased, waiting, lapsed = harness.claims(3)
        ledger.grant(lapsed)
        harness.advance(harness.lease_ms)
        ledger.grant(leased)
        ledger.settle(ledger.grant(waiting), Retry(20 * harness.unit_ms / 1000))
        for claim in (leased, waiting, lapsed):
            ledger.put(arrival(harness, claim))

    def test_what_was_finished_without_a_record_is_accepted_again(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        ledger.settle(ledger.grant(harness.claim("a")), Release())
        ledger.finish(Finished(taken))
        ledger.put(arrival(harness, "a"))

    def test_an_arrival_without_claims_is_an_error(self, harness: Harness, ledger: InboxCaller) -> None:
        without_claims = Arrival((), lane(harness), b"{}", harness.namespace)
        with pytest.raises(ValueError, match="claims"):
            ledger.accept_all([arrival(harness, "a"), without_claims])
        assert ledger.depth(harness) == (0, 0)

    # -------------------------------------------------------------------------------------------- several claims

    def test_one_unsettled_claim_of_several_is_enough(self, harness: Harness, ledger: InboxCaller) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.do(one)
        ledger.put(arrival(harness, one, two))
        assert ledger.accept(arrival(harness, two, one)) == WAITS
        ledger.do(two)
        assert ledger.accept(arrival(harness, one, two)) == "duplicate: done"

    def test_an_event_of_two_handlers_waits_for_both(self, harness: Harness, ledger: InboxCaller) -> None:
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
        assert ledger.accept(came) == "duplicate: dead: no", "the end that needs attention is reported"

    def test_claims_that_wait_in_different_items_wait(self, harness: Harness, ledger: InboxCaller) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.put(arrival(harness, one))
        ledger.put(arrival(harness, two))
        assert ledger.accept(arrival(harness, one, two)) == WAITS
        ledger.put(arrival(harness, one, of_handler(harness, "three", "a")))

    @pytest.mark.parametrize("settled", [True, False], ids=["settled", "waits"])
    def test_a_key_known_under_an_alias_is_a_duplicate(
        self, harness: Harness, ledger: InboxCaller, settled: bool
    ) -> None:
        first = harness.claim("a", aliases=["x"])
        if settled:
            ledger.do(first)
        else:
            ledger.put(arrival(harness, first))
        for known in (harness.claim("b", aliases=["x"]), harness.claim("b", aliases=["y", "x"]), first):
            assert ledger.accept(arrival(harness, known)) == ("duplicate: done" if settled else WAITS)
        ledger.put(arrival(harness, harness.claim("b", aliases=["y"])))

    def test_the_same_key_at_another_place_in_the_order_is_not_swallowed(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        """The waiting one may turn out to be stale, so the newer one must be accepted too."""
        old, new = (harness.claim("a", subject="s", position=position) for position in (1, 2))
        ledger.put(arrival(harness, old))
        assert ledger.accept(arrival(harness, old)) == WAITS
        ledger.put(arrival(harness, new))
        assert ledger.accept(arrival(harness, new)) == WAITS
        ledger.do(new)
        assert ledger.accept(arrival(harness, old)) == ledger.accept(arrival(harness, new)) == "duplicate: done"

    # ---------------------------------------------------------------------------------------------------- conflicts

    @pytest.mark.parametrize("where", ["waits", "taken", "leased", "done", "dead", "given up"])
    def test_another_payload_is_a_conflict(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, where: str
    ) -> None:
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

    def test_one_conflict_among_several_claims_is_a_conflict(self, harness: Harness, ledger: InboxCaller) -> None:
        one, two = (of_handler(harness, name, "a", "1") for name in ("one", "two"))
        for name in ("one", "two"):
            ledger.do(of_handler(harness, name, "b", "1"))
            mixed = arrival(harness, of_handler(harness, name, "b", "2"), one, two)
            assert ledger.accept(mixed).startswith("conflict: ")
        ledger.put(arrival(harness, one))
        assert ledger.accept(arrival(harness, two, of_handler(harness, "one", "a", "2"))).startswith("conflict: ")

    def test_the_ledger_has_the_first_word_about_a_payload(self, harness: Harness, ledger: InboxCaller) -> None:
        """An item with another payload was given up. The stored result still belongs to the payload of the ledger."""
        right, wrong = (arrival(harness, "a", fingerprint=text) for text in ("right", "wrong"))
        ledger.put(wrong)
        ledger.do(right.claims[0])
        ledger.finish(GivenUp(ledger.take_one(harness), "conflict"))
        assert ledger.accept(right) == "duplicate: done"
        assert ledger.accept(wrong).startswith("conflict: ")

    def test_duplicates_and_conflicts_leave_nothing_behind(self, harness: Harness, ledger: InboxCaller) -> None:
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

    def test_copies_inside_one_batch_are_decided_in_order(self, harness: Harness, ledger: InboxCaller) -> None:
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

    def test_batches_of_every_size_come_out_as_they_went_in(self, harness: Harness, ledger: InboxCaller) -> None:
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

    def test_depths_count_waiting_and_taken_items(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
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
        assert other.depth(harness) == (3, 0), "an item that is not due counts as waiting"
        assert other.depth(harness, "x") == (1, 0)

    def test_what_was_left_behind_waits(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        ledger.take(harness)
        assert ledger.depth(harness) == (0, 1)
        harness.advance(harness.lease_ms)
        assert ledger.depth(harness) == (1, 0)

    def test_reading_depths_changes_nothing(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        assert ledger.depths(harness) == ledger.depths(harness)
        assert ledger.finish(Finished(taken)) is True

    # ------------------------------------------------------------------------------------------------- catalog

    def test_waiting_items_are_listed_as_accepted(self, harness: Harness, ledger: InboxCaller) -> None:
        one, two = harness.claim("a"), harness.claim("b")
        ledger.put(arrival(harness, one))
        harness.advance(harness.unit_ms)
        ledger.put(arrival(harness, two))
        listed = ledger.run(ledger.store.entries(EntryQuery("accepted", 10, tenant=harness.namespace)))
        assert [(entry.key, entry.text) for entry in listed] == [(two.digest.hex(), "b"), (one.digest.hex(), "a")]
        assert {(entry.handler, entry.state, entry.event) for entry in listed} == {(lane(harness), "accepted", None)}
        assert ledger.states_of(one) == [("accepted", 1)]
        before = ledger.run(ledger.store.counts())["accepted"]
        _finish(ledger, ledger.take(harness))
        assert ledger.run(ledger.store.entries(EntryQuery("accepted", 10, tenant=harness.namespace))) == []
        assert ledger.run(ledger.store.counts())["accepted"] == before - 2

    def test_an_inbox_item_that_was_begun_is_counted_once(self, harness: Harness, ledger: InboxCaller) -> None:
        """It is listed under the state of its key. Accepted means that no handler has started yet."""
        began = ledger.run(ledger.store.counts())
        for text in ("untouched", "running", "postponed"):
            ledger.put(arrival(harness, text))
        ledger.grant(harness.claim("running"))
        postponed = ledger.grant(harness.claim("postponed"))
        assert ledger.settle_all([Settlement(postponed.lease, Retry(harness.unit_ms / 1000))]) == [True]
        counts = ledger.run(ledger.store.counts())
        states = {state: count - began[state] for state, count in counts.items() if count != began[state]}
        assert states == {"accepted": 1, "leased": 1, "waiting": 1}

    def test_a_postponed_item_keeps_the_reason_of_the_last_time_and_lapses_leave_it(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
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

    def test_an_item_of_several_claims_is_one_entry_and_in_the_history_of_each(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.put(arrival(harness, one, two))
        (entry,) = ledger.run(ledger.store.entries(EntryQuery("accepted", 10, tenant=harness.namespace)))
        assert ledger.history(one) == ledger.history(two) == ledger.run(ledger.store.history(entry.key)) == [entry]
        assert isinstance(ledger.claim(one), Granted)


def _finish(ledger: InboxCaller, taken: list[Taken]) -> None:
    assert all(ledger.finish_all([Finished(one) for one in taken]))


# Laws of `take` and `finish`: which worker has an inbox item, and how the item ends.

ENDINGS: dict[str, Callable[[Taken], InboxEnding]] = {
    "finished": Finished,
    "postponed": lambda taken: Postponed(taken, 3_600_000),
    "given up": lambda taken: GivenUp(taken, "late"),
}


class InboxTakeLaws(InboxBinding):
    @pytest.fixture(params=list(ENDINGS))
    def ending(self, request: pytest.FixtureRequest) -> Callable[[Taken], InboxEnding]:
        return ENDINGS[request.param]

    # --------------------------------------------------------------------------------------------------------- take

    def test_no_more_are_taken_than_asked_for_and_the_longest_due_come_first(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        for at in range(6):
            ledger.put(arrival(harness, f"key {at}", event=b"%d" % at))
            harness.advance(1)
        assert [taken.event for taken in ledger.take(harness, count=4)] == [b"0", b"1", b"2", b"3"]
        assert [taken.event for taken in ledger.take(harness, count=4)] == [b"4", b"5"]
        assert ledger.take(harness) == []

    def test_what_has_waited_longest_since_it_was_due_comes_first(self, harness: Harness, ledger: InboxCaller) -> None:
        """This includes items that waited for a retry, for the end of a lease, or for their first worker."""
        unit_ms = harness.unit_ms
        ledger.accept_all([arrival(harness, name, event=name.encode()) for name in ("lapses", "retries", "later")])
        lapses, retries, later = ledger.take(harness, lease_ms=2 * unit_ms)
        assert lapses.event == b"lapses"
        ledger.finish_all([Postponed(retries, 4 * unit_ms), Postponed(later, 8 * unit_ms)])
        harness.advance(6 * unit_ms)
        ledger.put(arrival(harness, "new", event=b"new"))
        harness.advance(4 * unit_ms)
        assert [taken.event for taken in ledger.take(harness)] == [b"lapses", b"retries", b"new", b"later"]

    def test_lanes_are_taken_from_as_they_are_asked_for(self, harness: Harness, ledger: InboxCaller) -> None:
        for at in range(3):
            for to in "xyz":
                ledger.put(arrival(harness, f"{to} {at}", event=f"{to}{at}".encode(), to=to))
                harness.advance(1)
        x, y, z = (lane(harness, to) for to in "xyz")
        taken = ledger.take_all({x: 2, y: 1, lane(harness, "empty"): 5}, harness.lease_ms)
        assert [one.event for one in taken] == [b"x0", b"y0", b"x1"]
        assert ledger.take_all({}, harness.lease_ms) == ledger.take_all({x: 0, y: -1}, harness.lease_ms) == []
        assert [ledger.depth(harness, to) for to in "xyz"] == [(1, 2), (2, 1), (3, 0)]
        assert len(ledger.take_all({z: 10}, harness.lease_ms)) == 3

    def test_a_taken_item_is_not_taken_twice_during_its_lease(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        assert ledger.take(harness) == other.take(harness) == []
        if harness.clock:
            harness.advance(harness.lease_ms - 1)
            assert ledger.take(harness) == other.take(harness) == []
        assert ledger.finish(Finished(taken)) is True

    def test_a_lapsed_item_is_due_again_with_a_higher_token_and_a_lapse(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        first = ledger.take_one(harness)
        for lapses in (1, 2, 3):
            harness.advance(harness.lease_ms)
            again = other.take_one(harness)
            assert (again.id, again.event, again.lapses) == (first.id, b"1", lapses)
            assert again.token > first.token
            first = again

    def test_every_take_has_a_higher_token(self, harness: Harness, ledger: InboxCaller, other: InboxCaller) -> None:
        tokens: list[int] = []
        for at in range(4):
            ledger.accept_all([arrival(harness, f"key {at} {copy}") for copy in range(3)])
            tokens += [taken.token for taken in (ledger, other)[at % 2].take(harness)]
            tokens.append(ledger.grant(harness.claim(f"claim {at}")).lease.token)
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("how", ["accepted", "postponed", "lapsed", "in another lane"])
    def test_an_item_is_found_when_it_falls_due_after_an_empty_take(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, how: str
    ) -> None:
        if how in ("postponed", "lapsed"):
            other.put(arrival(harness, "a"))
            taken = other.take_one(harness)
            if how == "postponed":
                other.finish(Postponed(taken, harness.unit_ms))
        assert [ledger.take(harness) for _ in range(3)] == [[], [], []]
        if how == "postponed":
            harness.advance(harness.unit_ms)
        elif how == "lapsed":
            harness.advance(harness.lease_ms)
        else:
            other.put(arrival(harness, "a", to="lane" if how == "accepted" else "another"))
        wanted = {lane(harness, "another"): 1, lane(harness): 1}
        assert len(ledger.take_all(wanted, harness.lease_ms)) == 1

    # ------------------------------------------------------------------------------------------------------- finish

    def test_a_finished_item_is_removed(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        assert ledger.finish(Finished(ledger.take_one(harness))) is True
        harness.advance(2 * harness.lease_ms)
        assert ledger.take(harness) == []
        assert ledger.depths(harness) == []
        ledger.put(arrival(harness, "a"))

    def test_a_postponed_item_is_due_after_its_delay(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        taken = ledger.take_one(harness)
        assert ledger.finish(Postponed(taken, 2 * harness.unit_ms)) is True
        assert other.take(harness) == []
        if harness.clock:
            harness.advance(2 * harness.unit_ms - 1)
            assert other.take(harness) == []
        harness.advance(2 * harness.unit_ms)
        again = other.take_one(harness)
        assert (again.event, again.lapses, again.accepted_ms) == (b"1", 0, taken.accepted_ms)
        assert again.token > taken.token
        ledger.finish(Postponed(again, 0))
        assert other.finish(Postponed(again, -5)) is False
        assert ledger.take_one(harness).lapses == 0

    def test_an_item_that_is_given_up_becomes_a_dead_letter(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        claim = harness.claim("a")
        ledger.put(arrival(harness, claim, event=b"1"))
        ledger.take(harness)
        harness.advance(harness.lease_ms)
        assert ledger.finish(GivenUp(ledger.take_one(harness), "it is not readable")) is True
        harness.advance(harness.lease_ms)
        assert other.take(harness) == []
        assert other.depths(harness) == []
        (entry,) = other.entries(claim, "dead")
        assert (entry.reason, entry.event, entry.text, entry.tenant) == (
            "it is not readable",
            b"1",
            "a",
            harness.namespace,
        )
        assert (entry.handler, entry.attempts, entry.generation) == (lane(harness), 1, 1)
        assert other.accept(arrival(harness, claim)) == "duplicate: dead: it is not readable"

    def test_an_item_that_is_given_up_is_known_until_its_retention_ends_and_stays_listed(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.put(arrival(harness, claim))
        ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        if harness.clock:
            harness.advance(harness.retention_ms - 1)
            ledger.purge()
            for known in (claim, harness.claim("b", aliases=["x"])):
                assert ledger.accept(arrival(harness, known)) == "duplicate: dead: no"
        harness.advance(harness.retention_ms)
        ledger.purge()
        ledger.put(arrival(harness, claim))
        assert len(ledger.entries(claim, "dead")) == 1

    def test_half_a_character_in_a_reason_keeps_nothing_from_being_written(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        a, b = ledger.take(harness)
        assert ledger.finish_all([Postponed(a, 0, "half \udcff"), GivenUp(b, "half \udcff")]) == [True, True]
        for ending in (Retry(0, "half \udcff"), Reject("half \udcff"), Uncertain("half \udcff")):
            ledger.die(harness.claim(type(ending).__name__), ending)

    def test_the_inbox_decides_nothing_about_effects(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        assert isinstance(ledger.claim(harness.claim("a")), Granted)

    def test_an_old_token_can_change_nothing(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        stale = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        current = other.take_one(harness)
        assert ledger.finish(ending(stale)) is False
        assert ledger.depth(harness) == (0, 1)
        assert other.finish(Postponed(current, 0)) is True
        assert ledger.finish(ending(stale)) is False
        assert ledger.finish(ending(current)) is False, "it is no longer taken"
        assert ledger.depth(harness) == (1, 0)
        assert ledger.accept(arrival(harness, "a")) == WAITS
        assert ledger.entries(harness.claim("a"), "dead") == []
        last = other.take_one(harness)
        assert last.event == b"1"
        assert other.finish(Finished(last)) is True
        assert [ledger.finish(ending(one)) for one in (stale, current, last)] == [False] * 3

    def test_the_token_of_another_item_can_change_nothing(
        self, harness: Harness, ledger: InboxCaller, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        one, two = ledger.take(harness)
        crossed = [ending(altered(one, token=two.token)), ending(altered(two, token=one.token))]
        assert ledger.finish_all(crossed) == [False, False]
        assert ledger.depth(harness) == (0, 2)
        assert ledger.finish_all([Finished(one), Finished(two)]) == [True, True]

    def test_without_claims_token_can_change_nothing(
        self, harness: Harness, ledger: InboxCaller, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        taken = ledger.take(harness, count=1)[0]
        for token in (0, -1, taken.token + 1000):
            assert ledger.finish_all([ending(altered(taken, id=taken.id + 1, token=token))]) == [False]
            assert ledger.finish_all([ending(altered(taken, token=token))]) == [False]
        assert ledger.depth(harness) == (1, 1)

    def test_finishing_after_the_lease_lapsed_but_before_another_take_still_counts(
        self, harness: Harness, ledger: InboxCaller, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        harness.advance(2 * harness.lease_ms)
        assert ledger.finish(ending(taken)) is True
        assert ledger.take(harness) == []

    def test_a_taken_item_belongs_to_its_token_not_to_the_object(self, harness: Harness, other: InboxCaller) -> None:
        with InboxCaller(harness.open) as short_lived:
            short_lived.put(arrival(harness, "a"))
            taken = short_lived.take_one(harness)
        assert other.take(harness) == []
        assert other.finish(Finished(taken)) is True

    def test_of_several_endings_of_one_token_the_first_counts(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.accept_all([arrival(harness, name) for name in "abcd"])
        a, b, c, d = ledger.take(harness)
        endings: list[InboxEnding] = [
            *(Postponed(a, 0), Finished(a)),
            *(Finished(b), Postponed(b, 0)),
            *(GivenUp(c, "no"), Finished(c)),
            *[Finished(d)] * 2,
        ]
        assert ledger.finish_all(endings) == [True, False] * 4
        assert [taken.id for taken in ledger.take(harness)] == [a.id]
        assert len(ledger.entries(harness.claim("c"), "dead")) == 1

    def test_lost_items_in_a_batch_do_not_hold_up_the_others(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        ledger.accept_all([arrival(harness, f"key {at}") for at in range(6)])
        stale = ledger.take(harness)
        harness.advance(harness.lease_ms)
        taken = other.take(harness, count=3)
        kinds = list(ENDINGS.values())
        mixed = [kinds[at % 3](one) for at, one in enumerate(stale)] + [Finished(one) for one in taken]
        assert ledger.finish_all(mixed) == [False] * 3 + [True] * 6
        assert ledger.depth(harness) == (1, 0)

    def test_an_old_item_cannot_end_a_new_one_of_the_same_key(
        self, harness: Harness, ledger: InboxCaller, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.put(arrival(harness, "a"))
        old = ledger.take_one(harness)
        ledger.finish(Finished(old))
        ledger.put(arrival(harness, "a"))
        assert ledger.finish(ending(old)) is False
        new = ledger.take_one(harness)
        assert ledger.finish(ending(old)) is False
        assert (new.id, new.token) > (old.id, old.token)
        assert ledger.finish(Finished(new)) is True

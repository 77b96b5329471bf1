"""Laws of `take` and `finish`: in whose hands a letter is, and how it leaves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.testing.clerk import Clerk, altered, arrival, lane
from semel.testing.harness import Harness
from semel.testing.laws.inbox import WAITS, InboxBinding
from semel.values.claim import Granted
from semel.values.inbox import Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.outcome import Reject, Retry, Uncertain

ENDINGS: dict[str, Callable[[Taken], InboxEnding]] = {
    "finished": Finished,
    "postponed": lambda taken: Postponed(taken, 3_600_000),
    "given up": lambda taken: GivenUp(taken, "late"),
}


class TakeLaws(InboxBinding):
    @pytest.fixture(params=list(ENDINGS))
    def ending(self, request: pytest.FixtureRequest) -> Callable[[Taken], InboxEnding]:
        return ENDINGS[request.param]

    # --------------------------------------------------------------------------------------------------------- take

    def test_no_more_are_taken_than_asked_for_and_the_longest_due_come_first(
        self, harness: Harness, ledger: Clerk
    ) -> None:
        for at in range(6):
            ledger.put(arrival(harness, f"key {at}", event=b"%d" % at))
            harness.advance(1)
        assert [taken.event for taken in ledger.take(harness, count=4)] == [b"0", b"1", b"2", b"3"]
        assert [taken.event for taken in ledger.take(harness, count=4)] == [b"4", b"5"]
        assert ledger.take(harness) == []

    def test_what_has_waited_longest_since_it_was_due_comes_first(self, harness: Harness, ledger: Clerk) -> None:
        """Whatever it waited for: a retry, a lapsed lease, or its first taker."""
        unit_ms = harness.unit_ms
        ledger.accept_all([arrival(harness, name, event=name.encode()) for name in ("lapses", "retries", "later")])
        lapses, retries, later = ledger.take(harness, lease_ms=2 * unit_ms)
        assert lapses.event == b"lapses"
        ledger.finish_all([Postponed(retries, 4 * unit_ms), Postponed(later, 8 * unit_ms)])
        harness.advance(6 * unit_ms)
        ledger.put(arrival(harness, "new", event=b"new"))
        harness.advance(4 * unit_ms)
        assert [taken.event for taken in ledger.take(harness)] == [b"lapses", b"retries", b"new", b"later"]

    def test_lanes_are_taken_from_as_they_are_asked_for(self, harness: Harness, ledger: Clerk) -> None:
        for at in range(3):
            for to in "xyz":
                ledger.put(arrival(harness, f"{to} {at}", event=f"{to}{at}".encode(), to=to))
                harness.advance(1)
        x, y, z = (lane(harness, to) for to in "xyz")
        taken = ledger.take_all({x: 2, y: 1, lane(harness, "nobody"): 5}, harness.lease_ms)
        assert [one.event for one in taken] == [b"x0", b"y0", b"x1"]
        assert ledger.take_all({}, harness.lease_ms) == ledger.take_all({x: 0, y: -1}, harness.lease_ms) == []
        assert [ledger.depth(harness, to) for to in "xyz"] == [(1, 2), (2, 1), (3, 0)]
        assert len(ledger.take_all({z: 10}, harness.lease_ms)) == 3

    def test_what_is_taken_is_in_nobody_elses_hands_for_the_lease(
        self, harness: Harness, ledger: Clerk, other: Clerk
    ) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        assert ledger.take(harness) == other.take(harness) == []
        if harness.clock:
            harness.advance(harness.lease_ms - 1)
            assert ledger.take(harness) == other.take(harness) == []
        assert ledger.finish(Finished(taken)) is True

    def test_a_lapsed_letter_is_due_again_with_a_higher_token_and_a_lapse(
        self, harness: Harness, ledger: Clerk, other: Clerk
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        first = ledger.take_one(harness)
        for lapses in (1, 2, 3):
            harness.advance(harness.lease_ms)
            again = other.take_one(harness)
            assert (again.id, again.event, again.lapses) == (first.id, b"1", lapses)
            assert again.token > first.token
            first = again

    def test_every_take_has_a_higher_token(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        tokens: list[int] = []
        for at in range(4):
            ledger.accept_all([arrival(harness, f"key {at} {copy}") for copy in range(3)])
            tokens += [taken.token for taken in (ledger, other)[at % 2].take(harness)]
            tokens.append(ledger.grant(harness.claim(f"claim {at}")).lease.token)
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("how", ["accepted", "postponed", "lapsed", "in another lane"])
    def test_whoever_found_nothing_finds_what_falls_due(
        self, harness: Harness, ledger: Clerk, other: Clerk, how: str
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

    def test_what_is_finished_is_forgotten(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a"))
        assert ledger.finish(Finished(ledger.take_one(harness))) is True
        harness.advance(2 * harness.lease_ms)
        assert ledger.take(harness) == []
        assert ledger.depths(harness) == []
        ledger.put(arrival(harness, "a"))

    def test_what_is_postponed_comes_again_after_its_time(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
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

    def test_what_is_given_up_is_kept_for_a_person(self, harness: Harness, ledger: Clerk, other: Clerk) -> None:
        claim = harness.claim("a")
        ledger.put(arrival(harness, claim, event=b"1"))
        ledger.take(harness)
        harness.advance(harness.lease_ms)
        assert ledger.finish(GivenUp(ledger.take_one(harness), "nobody can read it")) is True
        harness.advance(harness.lease_ms)
        assert other.take(harness) == []
        assert other.depths(harness) == []
        (entry,) = other.entries(claim, "dead")
        assert (entry.reason, entry.event, entry.text, entry.tenant) == (
            "nobody can read it",
            b"1",
            "a",
            harness.namespace,
        )
        assert (entry.handler, entry.attempts, entry.generation) == (lane(harness), 1, 1)
        assert other.accept(arrival(harness, claim)) == "duplicate: dead: nobody can read it"

    def test_what_is_given_up_is_known_until_its_retention_ends_and_stays_listed(
        self, harness: Harness, ledger: Clerk
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
        self, harness: Harness, ledger: Clerk
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        a, b = ledger.take(harness)
        assert ledger.finish_all([Postponed(a, 0, "half \udcff"), GivenUp(b, "half \udcff")]) == [True, True]
        for ending in (Retry(0, "half \udcff"), Reject("half \udcff"), Uncertain("half \udcff")):
            ledger.die(harness.claim(type(ending).__name__), ending)

    def test_the_inbox_decides_nothing_about_effects(self, harness: Harness, ledger: Clerk) -> None:
        ledger.put(arrival(harness, "a"))
        ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        assert isinstance(ledger.claim(harness.claim("a")), Granted)

    def test_an_old_token_can_change_nothing(
        self, harness: Harness, ledger: Clerk, other: Clerk, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.put(arrival(harness, "a", event=b"1"))
        stale = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        current = other.take_one(harness)
        assert ledger.finish(ending(stale)) is False
        assert ledger.depth(harness) == (0, 1)
        assert other.finish(Postponed(current, 0)) is True
        assert ledger.finish(ending(stale)) is False
        assert ledger.finish(ending(current)) is False, "it is in nobody's hands"
        assert ledger.depth(harness) == (1, 0)
        assert ledger.accept(arrival(harness, "a")) == WAITS
        assert ledger.entries(harness.claim("a"), "dead") == []
        last = other.take_one(harness)
        assert last.event == b"1"
        assert other.finish(Finished(last)) is True
        assert [ledger.finish(ending(one)) for one in (stale, current, last)] == [False] * 3

    def test_the_token_of_another_letter_can_change_nothing(
        self, harness: Harness, ledger: Clerk, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        one, two = ledger.take(harness)
        crossed = [ending(altered(one, token=two.token)), ending(altered(two, token=one.token))]
        assert ledger.finish_all(crossed) == [False, False]
        assert ledger.depth(harness) == (0, 2)
        assert ledger.finish_all([Finished(one), Finished(two)]) == [True, True]

    def test_nobodys_token_can_change_nothing(
        self, harness: Harness, ledger: Clerk, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.accept_all([arrival(harness, name) for name in "ab"])
        taken = ledger.take(harness, count=1)[0]
        for token in (0, -1, taken.token + 1000):
            assert ledger.finish_all([ending(altered(taken, id=taken.id + 1, token=token))]) == [False]
            assert ledger.finish_all([ending(altered(taken, token=token))]) == [False]
        assert ledger.depth(harness) == (1, 1)

    def test_finishing_after_the_lease_lapsed_but_before_another_take_still_counts(
        self, harness: Harness, ledger: Clerk, ending: Callable[[Taken], InboxEnding]
    ) -> None:
        ledger.put(arrival(harness, "a"))
        taken = ledger.take_one(harness)
        harness.advance(2 * harness.lease_ms)
        assert ledger.finish(ending(taken)) is True
        assert ledger.take(harness) == []

    def test_a_letter_belongs_to_its_token_not_to_the_object(self, harness: Harness, other: Clerk) -> None:
        with Clerk(harness.open) as short_lived:
            short_lived.put(arrival(harness, "a"))
            taken = short_lived.take_one(harness)
        assert other.take(harness) == []
        assert other.finish(Finished(taken)) is True

    def test_of_several_endings_of_one_token_the_first_counts(self, harness: Harness, ledger: Clerk) -> None:
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

    def test_lost_letters_in_a_batch_do_not_keep_the_others_back(
        self, harness: Harness, ledger: Clerk, other: Clerk
    ) -> None:
        ledger.accept_all([arrival(harness, f"key {at}") for at in range(6)])
        stale = ledger.take(harness)
        harness.advance(harness.lease_ms)
        taken = other.take(harness, count=3)
        kinds = list(ENDINGS.values())
        mixed = [kinds[at % 3](one) for at, one in enumerate(stale)] + [Finished(one) for one in taken]
        assert ledger.finish_all(mixed) == [False] * 3 + [True] * 6
        assert ledger.depth(harness) == (1, 0)

    def test_an_old_letter_cannot_end_a_new_one_of_the_same_key(
        self, harness: Harness, ledger: Clerk, ending: Callable[[Taken], InboxEnding]
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

"""Laws of `claim`: grants, duplicates, conflicts, takeovers, aliases, order and races."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from semel.ports import Ledger
from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import PROCESSES, Binding, RaceBinding
from semel.testing.race import Race, Ran, Round, race_processes, race_threads
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Settlement, Stale
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain


class ClaimLaws(Binding):
    def test_the_first_claim_of_a_key_is_granted(self, harness: Harness, ledger: Caller) -> None:
        granted = ledger.grant(harness.claim("a"))
        assert (granted.attempt, granted.takeover) == (1, False)
        assert harness.is_near(granted.age_ms, 0)

    def test_a_held_key_is_busy_until_its_lease_ends(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        harness.advance(harness.unit_ms)
        busy = other.claim(claim)
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, harness.lease_ms - harness.unit_ms)
        assert busy.after_ms > 0

    def test_a_lease_holds_to_its_last_millisecond(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        harness.advance(harness.lease_ms - (1 if harness.clock else 4 * harness.unit_ms))
        assert isinstance(ledger.claim(claim), Busy)
        harness.advance(1 if harness.clock else 4 * harness.unit_ms)
        assert isinstance(ledger.claim(claim), Granted)

    def test_the_time_that_busy_names_is_enough(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        busy = other.claim(claim)
        assert isinstance(busy, Busy)
        harness.advance(busy.after_ms)
        other.grant(claim)

    def test_keys_do_not_disturb_each_other(self, harness: Harness, ledger: Caller) -> None:
        first, second = ledger.grant(harness.claim("a")), ledger.grant(harness.claim("b"))
        assert ledger.settle(first, Done(b"1")) is True
        assert isinstance(ledger.claim(harness.claim("b")), Busy)
        assert ledger.settle(second, Done(b"2")) is True
        assert ledger.is_done(harness.claim("a"), b"1")
        assert ledger.is_done(harness.claim("b"), b"2")

    def test_an_empty_batch_is_answered(self, ledger: Caller) -> None:
        assert ledger.claim_all([]) == []
        assert ledger.settle_all([]) == []
        assert ledger.renew() == []

    # ------------------------------------------------------------------------------------------------ duplicates

    @pytest.mark.parametrize(
        "outcome",
        [
            Done(),
            Done(b""),
            Done(b'{"\xc3\xa4":[1,2.50,"\\u0000"]}'),
            Done(bytes(range(256)) * 256),
            Reject("no such customer – ümlaut"),
            Reject(""),
            Uncertain("read timeout\nafter the first byte"),
        ],
        ids=["null", "empty", "json", "64 KiB", "reject", "reject without reason", "uncertain"],
    )
    def test_a_settled_key_answers_with_what_it_was_settled_with(
        self, harness: Harness, ledger: Caller, other: Caller, outcome: Done | Reject | Uncertain
    ) -> None:
        claim = harness.claim("a")
        assert ledger.settle(ledger.grant(claim), outcome) is True
        assert [ledger.claim(claim), other.claim(claim), other.claim(claim)] == [Settled(outcome)] * 3

    @pytest.mark.parametrize("outcome", [Done(b"1"), Reject("no"), Uncertain("?")], ids=["done", "reject", "uncertain"])
    def test_retention_is_checked_on_read(
        self, harness: Harness, ledger: Caller, outcome: Done | Reject | Uncertain
    ) -> None:
        claim = harness.claim("a", fingerprint="1")
        first = ledger.grant(claim)
        ledger.settle(first, outcome)
        harness.advance(harness.retention_ms - (1 if harness.clock else 8 * harness.unit_ms))
        assert ledger.claim(claim) == Settled(outcome)
        harness.advance(1 if harness.clock else 8 * harness.unit_ms)
        again = ledger.grant(harness.claim("a", fingerprint="2"))
        assert (again.attempt, again.takeover) == (1, False)
        assert harness.is_near(again.age_ms, 0)
        assert again.lease.token > first.lease.token
        assert isinstance(ledger.claim(harness.claim("a", fingerprint="2")), Busy)

    def test_a_key_lives_again_after_its_retention(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.do(claim, b"1")
        harness.advance(harness.retention_ms)
        ledger.do(claim, b"2")
        assert ledger.is_done(claim, b"2")
        ledger.purge()
        assert ledger.is_done(claim, b"2")

    def test_retention_counts_from_the_settle(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", lease_ms=2 * harness.retention_ms)
        granted = ledger.grant(claim)
        harness.advance(harness.retention_ms)
        assert ledger.settle(granted, Done()) is True
        harness.advance(harness.retention_ms // 2)
        assert ledger.is_done(claim)

    # ------------------------------------------------------------------------------------------------- conflicts

    def test_another_payload_is_a_conflict_while_the_lease_lasts_and_after(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim, forged = harness.claim("a", fingerprint="1"), harness.claim("a", fingerprint="2")
        granted = ledger.grant(claim)
        assert ledger.claim(forged) == Conflict()
        harness.advance(harness.lease_ms)
        assert ledger.claim(forged) == Conflict()
        ledger.settle(granted, Retry(0))
        assert ledger.claim(forged) == Conflict()

    def test_a_conflict_leaves_the_first_record_untouched(self, harness: Harness, ledger: Caller) -> None:
        claim, forged = harness.claim("a", fingerprint="1"), harness.claim("a", fingerprint="2")
        granted = ledger.grant(claim)
        assert ledger.claim(forged) == Conflict()
        assert ledger.settle(granted, Done(b"1")) is True
        assert ledger.claim(forged) == Conflict()
        assert ledger.is_done(claim, b"1")
        assert isinstance(ledger.claim(forged), Conflict)

    def test_payloads_are_compared_only_where_both_are_known(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(harness.claim("a", fingerprint="1"))
        assert ledger.is_done(harness.claim("a"))
        ledger.do(harness.claim("b"))
        assert ledger.is_done(harness.claim("b", fingerprint="1"))

    def test_the_first_payload_is_remembered_over_a_takeover(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("a", fingerprint="1"))
        harness.advance(harness.lease_ms)
        ledger.do(harness.claim("a"))
        assert ledger.claim(harness.claim("a", fingerprint="2")) == Conflict()
        assert ledger.is_done(harness.claim("a", fingerprint="1"))

    # ------------------------------------------------------------------------------------ takeovers and attempts

    def test_an_expired_lease_is_granted_again_with_a_higher_token(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        claim = harness.claim("a")
        first = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        second = other.grant(claim)
        assert second.lease.token > first.lease.token
        assert (second.attempt, second.takeover) == (2, True)
        assert harness.is_near(second.age_ms, harness.lease_ms)

    def test_a_crash_counts_as_an_attempt(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", lease_ms=4 * harness.unit_ms)
        for attempt in range(1, 6):
            granted = ledger.grant(claim)
            assert (granted.attempt, granted.takeover) == (attempt, attempt > 1)
            harness.advance(4 * harness.unit_ms)

    def test_age_counts_from_the_first_grant(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Retry(harness.unit_ms / 1000))
        harness.advance(2 * harness.unit_ms)
        second = ledger.grant(claim)
        assert harness.is_near(second.age_ms, 2 * harness.unit_ms)
        harness.advance(harness.lease_ms)
        third = ledger.grant(claim)
        assert harness.is_near(third.age_ms, 2 * harness.unit_ms + harness.lease_ms)

    def test_tokens_of_a_key_grow_across_workers(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim, tokens = harness.claim("a"), []
        for at in range(20):
            caller = (ledger, other)[at % 2]
            granted = caller.grant(claim)
            tokens.append(granted.lease.token)
            ending = (Retry(0), Release(), Release(), None, Done())[at % 5]
            if ending is None:
                harness.advance(harness.lease_ms)
            else:
                assert caller.settle(granted, ending) is True
            if isinstance(ending, Done):
                harness.advance(harness.retention_ms)
            harness.advance(1)
        assert tokens == sorted(set(tokens))

    # --------------------------------------------------------------------------------------------------- batches

    def test_batches_of_every_size_are_answered_in_order(self, harness: Harness, ledger: Caller) -> None:
        for count in harness.batches:
            claims = harness.claims(count, f"one of {count},")
            verdicts = ledger.claim_all(claims)
            granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
            assert [verdict.lease.claim for verdict in granted] == claims
            assert all(isinstance(verdict, Busy) for verdict in ledger.claim_all(claims))
            assert all(ledger.renew(*[verdict.lease for verdict in granted]))

    def test_duplicates_inside_one_batch_are_decided_in_order(self, harness: Harness, ledger: Caller) -> None:
        a, b = harness.claim("a", fingerprint="1"), harness.claim("b")
        forged = harness.claim("a", fingerprint="2")
        verdicts = ledger.claim_all([a, b, a, forged, b, a])
        assert [type(verdict) for verdict in verdicts] == [Granted, Granted, Busy, Conflict, Busy, Busy]
        assert [verdict.lease.claim for verdict in verdicts if isinstance(verdict, Granted)] == [a, b]

    def test_copies_of_a_lapsed_key_inside_one_batch_are_one_takeover(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        verdicts = ledger.claim_all([claim] * 3)
        assert [type(verdict) for verdict in verdicts] == [Granted, Busy, Busy]

    def test_one_batch_may_get_every_verdict(self, harness: Harness, ledger: Caller) -> None:
        done, held = harness.claim("done", fingerprint="1"), harness.claim("held")
        lapsed, waiting, dead = harness.claim("lapsed"), harness.claim("waiting"), harness.claim("dead")
        ledger.grant(lapsed)
        harness.advance(harness.lease_ms)
        ledger.do(done, b"1")
        ledger.do(harness.claim("newest", subject="s", position=5))
        ledger.grant(held)
        ledger.settle(ledger.grant(waiting), Retry(harness.lease_ms / 1000))
        ledger.settle(ledger.grant(dead), Reject("no"))
        older = harness.claim("older", subject="s", position=4)
        forged = harness.claim("done", fingerprint="2")
        new = harness.claim("new")
        verdicts = ledger.claim_all([done, held, lapsed, waiting, dead, older, forged, new])
        kinds = [type(verdict).__name__ for verdict in verdicts]
        assert kinds == ["Settled", "Busy", "Granted", "Busy", "Settled", "Stale", "Conflict", "Granted"]
        assert (verdicts[0], verdicts[4]) == (Settled(Done(b"1")), Settled(Reject("no")))

    # --------------------------------------------------------------------------------------------------- aliases

    def test_a_key_known_under_an_alias_is_a_duplicate(self, harness: Harness, ledger: Caller) -> None:
        first = harness.claim("a", aliases=["x", "y"])
        granted = ledger.grant(first)
        assert isinstance(ledger.claim(harness.claim("b", aliases=["z", "y"])), Busy)
        ledger.settle(granted, Done(b"1"))
        assert ledger.is_done(harness.claim("b", aliases=["z", "y"]), b"1")
        assert ledger.is_done(harness.claim("c", aliases=["x"]), b"1")
        assert ledger.is_done(harness.claim("a"), b"1")
        assert ledger.is_done(harness.claim("a", aliases=["new"]), b"1")
        ledger.grant(harness.claim("b", aliases=["z"]))

    def test_a_key_and_its_alias_in_one_batch_are_one_effect(self, harness: Harness, ledger: Caller) -> None:
        claims = [harness.claim("a", aliases=["x"]), harness.claim("b", aliases=["x"]), harness.claim("b")]
        assert [type(verdict) for verdict in ledger.claim_all(claims)] == [Granted, Busy, Granted]

    def test_an_alias_has_its_own_retention(self, harness: Harness, ledger: Caller) -> None:
        unit_ms = harness.unit_ms
        ledger.do(harness.claim("a", aliases=["short"], alias_retention_ms=15 * unit_ms))
        ledger.do(harness.claim("b", aliases=["long"], alias_retention_ms=60 * unit_ms))
        harness.advance(15 * unit_ms)
        ledger.grant(harness.claim("c", aliases=["short"]))
        assert ledger.is_done(harness.claim("a"))
        harness.advance(15 * unit_ms)
        harness.advance(unit_ms)
        assert ledger.is_done(harness.claim("d", aliases=["long"]))
        ledger.grant(harness.claim("b"))

    def test_a_waiting_or_released_key_waits_or_is_free_under_its_alias_too(
        self, harness: Harness, ledger: Caller
    ) -> None:
        granted = ledger.grant(harness.claim("a", aliases=["x"]))
        ledger.settle(granted, Retry(harness.lease_ms / 1000))
        assert isinstance(ledger.claim(harness.claim("b", aliases=["x"])), Busy)
        released = ledger.grant(harness.claim("c", aliases=["y"]))
        ledger.settle(released, Release())
        ledger.grant(harness.claim("d", aliases=["y"]))

    def test_another_payload_under_an_alias_is_a_conflict(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(harness.claim("a", fingerprint="1", aliases=["x"]))
        assert ledger.claim(harness.claim("b", fingerprint="2", aliases=["x"])) == Conflict()

    def test_the_loser_of_an_alias_can_change_nothing(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        """An alias identifies the same effect, and another worker holds it now."""
        lost = ledger.grant(harness.claim("a", aliases=["x"]))
        harness.advance(harness.lease_ms)
        taken = other.grant(harness.claim("b", aliases=["x"]))
        assert ledger.renew(lost.lease) == [False]
        for outcome in (Done(b"late"), Reject("late"), Uncertain("late"), Retry(60), Release()):
            assert ledger.settle(lost, outcome) is False
        assert isinstance(other.claim(harness.claim("c", aliases=["x"])), Busy)
        assert other.settle(taken, Done(b"1")) is True
        assert ledger.settle(lost, Done(b"late")) is False
        assert ledger.is_done(harness.claim("a", aliases=["x"]), b"1")

    def test_taking_over_under_an_alias_is_a_takeover(self, harness: Harness, ledger: Caller) -> None:
        """The alias identifies an effect whose holder vanished, so the effect may have happened."""
        ledger.grant(harness.claim("a", aliases=["x"]))
        harness.advance(harness.lease_ms)
        second = ledger.grant(harness.claim("b", aliases=["x"]))
        assert (second.attempt, second.takeover) == (2, True)


# Laws of the ordering guard: `Claim.order`.


class EventOrderLaws(Binding):
    def test_an_event_older_than_the_newest_applied_one_is_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        assert ledger.claim(_at(harness, 4)) == Stale(5)
        ledger.do(_at(harness, 7))
        assert ledger.claim(_at(harness, 6)) == Stale(7)

    def test_an_equal_position_is_not_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        ledger.do(harness.claim("twin", subject="s", position=5))

    @pytest.mark.parametrize("position", [-(2**63), -1, 0, 2**63 - 1])
    def test_positions_have_64_bits(self, harness: Harness, ledger: Caller, position: int) -> None:
        ledger.do(_at(harness, position))
        below = harness.claim("below", subject="s", position=max(position - 1, -(2**63)))
        assert ledger.claim(below) == Stale(position) or position == -(2**63)

    def test_subjects_do_not_disturb_each_other(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        ledger.grant(harness.claim("other", subject="other", position=1))

    def test_two_events_of_one_subject_are_not_granted_at_the_same_time(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        first = ledger.grant(_at(harness, 1))
        busy = other.claim(_at(harness, 2))
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, harness.lease_ms)
        assert isinstance(other.claim(_at(harness, 0)), Busy)
        ledger.settle(first, Done())
        other.grant(_at(harness, 2))

    def test_two_events_of_one_subject_in_one_batch_are_decided_in_order(
        self, harness: Harness, ledger: Caller
    ) -> None:
        verdicts = ledger.claim_all([_at(harness, 2), _at(harness, 1), _at(harness, 2)])
        assert [type(verdict) for verdict in verdicts] == [Granted, Busy, Busy]

    def test_a_settled_event_is_a_duplicate_though_it_is_older(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 1), b"1")
        ledger.do(_at(harness, 2), b"2")
        assert ledger.claim(_at(harness, 1)) == Settled(Done(b"1"))

    @pytest.mark.parametrize(
        "ending", [Retry(0), Reject("no"), Uncertain("?"), Release()], ids=lambda e: type(e).__name__
    )
    def test_a_position_is_applied_only_when_done(self, harness: Harness, ledger: Caller, ending: Ending) -> None:
        assert ledger.settle(ledger.grant(_at(harness, 5)), ending) is True
        ledger.do(_at(harness, 4))
        assert ledger.claim(_at(harness, 3)) == Stale(4)

    def test_a_late_settle_does_not_turn_the_subject_back(self, harness: Harness, ledger: Caller) -> None:
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        ledger.do(_at(harness, 5))
        ledger.settle(slow, Done())
        assert ledger.claim(_at(harness, 4)) == Stale(5)

    def test_a_late_settle_does_not_free_a_subject_that_another_acts_on(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        other.grant(_at(harness, 5))
        ledger.settle(slow, Done())
        assert isinstance(other.claim(_at(harness, 6)), Busy)

    def test_a_retry_that_was_overtaken_is_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.settle(ledger.grant(_at(harness, 1)), Retry(0))
        ledger.do(_at(harness, 2))
        harness.advance(1)
        assert ledger.claim(_at(harness, 1)) == Stale(2)

    def test_a_vanished_holder_frees_its_subject_when_its_lease_ends(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        second = ledger.grant(_at(harness, 2))
        assert (second.attempt, second.takeover) == (1, False)
        assert isinstance(ledger.claim(_at(harness, 1)), Busy)

    def test_a_renewed_lease_holds_its_subject_too(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        first = ledger.grant(_at(harness, 5))
        harness.advance(harness.lease_ms - 2 * harness.unit_ms)
        assert ledger.renew(first.lease) == [True]
        harness.advance(harness.lease_ms - 2 * harness.unit_ms)
        busy = other.claim(_at(harness, 6))
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, 2 * harness.unit_ms)

    def test_the_loser_of_a_subject_cannot_renew(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        """Otherwise two events of one subject would run at the same time."""
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        current = other.grant(_at(harness, 2))
        assert ledger.renew(slow.lease) == [False]
        assert other.renew(current.lease) == [True]
        other.settle(current, Done())
        assert ledger.renew(slow.lease) == [False]
        other.grant(_at(harness, 3))

    def test_the_newest_position_outlives_a_purge(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        harness.advance(harness.retention_ms // 2)
        ledger.purge()
        assert ledger.claim(_at(harness, 4)) == Stale(5)

    def test_a_late_settle_is_applied_though_its_subject_was_purged(self, harness: Harness, ledger: Caller) -> None:
        slow = ledger.grant(_at(harness, 5))
        harness.advance(harness.lease_ms)
        ledger.settle(ledger.grant(_at(harness, 6)), Reject("no"))
        harness.advance(2 * harness.retention_ms)
        ledger.purge()
        assert ledger.settle(slow, Done()) is True
        assert ledger.claim(_at(harness, 4)) == Stale(5)
        harness.advance(harness.retention_ms // 2)
        ledger.purge()
        assert ledger.claim(_at(harness, 4)) == Stale(5), "a position is kept for its retention, as any record"

    def test_a_refused_claim_does_not_take_the_subject(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("held"))
        assert isinstance(ledger.claim(harness.claim("held", subject="s", position=9)), Busy)
        ledger.grant(_at(harness, 1))

    def test_a_doubt_is_granted_although_its_event_is_stale_meanwhile(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("a", subject="s", position=1))
        harness.advance(harness.lease_ms)
        ledger.do(harness.claim("b", subject="s", position=2))
        assert ledger.claim(harness.claim("a", subject="s", position=1)) == Stale(2)
        doubtful = ledger.grant(harness.claim("a", subject="s", position=1, doubt_first=True))
        assert doubtful.takeover
        assert ledger.claim(harness.claim("c", subject="s", position=1, doubt_first=True)) == Stale(2)


def _at(harness: Harness, position: int) -> Claim:
    return harness.claim(f"event {position}", subject="s", position=position)


# Laws of races: one racer wins each key, and every racer gets a verdict.

KEYS = 20
LAPSE_MS = 100  # short, because tests cannot move the clock of other processes

Run = Callable[[Race], list[list[Ran]]]


class RaceLaws(RaceBinding):
    @pytest.fixture
    def run(self, how: str, opener: Callable[[], Ledger]) -> Run:
        return lambda race: (race_threads if how == "threads" else race_processes)(opener, race)

    def test_the_first_claim_wins_and_every_racer_gets_a_verdict(self, harness: Harness, racers: int, run: Run) -> None:
        rounds = [_long(harness.claims(KEYS, f"round {at}")) for at in range(harness.rounds)]
        race = [[Round(claims=_rotated(claims, racer)) for claims in rounds] for racer in range(racers)]
        answers = run(race)
        for at, claims in enumerate(rounds):
            _one_winner_a_key(claims, [ran[at] for ran in answers], racers)

    def test_one_racer_takes_over_an_expired_lease(
        self, harness: Harness, how: str, opener: Callable[[], Ledger], racers: int, run: Run
    ) -> None:
        leases = _lapsed(harness, how, opener, harness.rounds * KEYS)
        rounds = [_long([lease.claim for lease in leases[at :: harness.rounds]]) for at in range(harness.rounds)]
        answers = run([[Round(claims=_rotated(claims, racer)) for claims in rounds] for racer in range(racers)])
        newest = max(lease.token for lease in leases)
        for at, claims in enumerate(rounds):
            for winner in _one_winner_a_key(claims, [ran[at] for ran in answers], racers):
                assert (winner.attempt, winner.takeover) == (2, True)
                assert winner.lease.token > newest

    def test_settling_and_taking_over_at_once_has_one_winner(
        self, harness: Harness, how: str, opener: Callable[[], Ledger], racers: int, run: Run
    ) -> None:
        leases = _lapsed(harness, how, opener, harness.rounds * KEYS)
        rounds = [leases[at :: harness.rounds] for at in range(harness.rounds)]
        owner = [Round(settlements=[Settlement(lease, Done(b"1")) for lease in turn]) for turn in rounds]
        others = [Round(claims=_long([lease.claim for lease in turn])) for turn in rounds]
        answers = run([owner] + [others] * (racers - 1))
        for at, turn in enumerate(rounds):
            settled = answers[0][at].settled
            assert len(settled) == len(turn)
            for key, kept in enumerate(settled):
                verdicts = [ran[at].verdicts[key] for ran in answers[1:]]
                granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
                assert len(granted) == (0 if kept else 1), "either the late settle counts, or one takeover"
                rest = [verdict for verdict in verdicts if verdict not in granted]
                assert all(verdict == Settled(Done(b"1")) if kept else isinstance(verdict, Busy) for verdict in rest)

    def test_racers_for_one_subject_are_granted_one_at_a_time(self, harness: Harness, racers: int, run: Run) -> None:
        def claim(racer: int, at: int) -> Claim:
            (long,) = _long([harness.claim(f"racer {racer} round {at}", subject=f"round {at}", position=racer)])
            return long

        answers = run([[Round(claims=[claim(racer, at)]) for at in range(harness.rounds)] for racer in range(racers)])
        for at in range(harness.rounds):
            kinds = [type(ran[at].verdicts[0]) for ran in answers]
            assert (kinds.count(Granted), kinds.count(Busy)) == (1, racers - 1)

    def test_settlements_of_many_racers_all_stand(self, harness: Harness, racers: int, run: Run) -> None:
        with Caller(harness.open) as ledger:
            claims = _long(harness.claims(racers * KEYS))
            leases = [verdict.lease for verdict in ledger.claim_all(claims) if isinstance(verdict, Granted)]
            outcomes = [Done(b"%d" % at) for at in range(len(leases))]
            settlements = [Settlement(*pair) for pair in zip(leases, outcomes, strict=True)]
            answers = run([[Round(settlements=settlements[racer::racers])] * 2 for racer in range(racers)])
            assert all(all(turn.settled) and len(turn.settled) == KEYS for ran in answers for turn in ran)
            again = ledger.claim_all(claims) if harness.clock is None else []
        if not again:  # the fake clock and the store's own are years apart
            with Caller(harness.open) as ledger:
                known = ledger.run(ledger.ledger.settle(settlements))
                assert known == [True] * len(settlements)
        else:
            assert again == [Settled(outcome) for outcome in outcomes]


def _long(claims: Sequence[Claim]) -> list[Claim]:
    """The same claims, with leases longer than every race."""
    return [Claim(c.digest, c.handler, c.text, 60_000, 600_000, c.tenant, c.fingerprint, (), c.order) for c in claims]


def _rotated(claims: list[Claim], by: int) -> list[Claim]:
    """Give each racer another order of keys: a store that locks rows in batch order would deadlock."""
    at = by * len(claims) // PROCESSES % len(claims)
    return claims[at:] + claims[:at]


def _lapsed(harness: Harness, how: str, opener: Callable[[], Ledger], count: int) -> list[Lease]:
    """Lapsed leases of a holder that vanished."""
    lapse_ms = harness.lease_ms if how == "threads" else LAPSE_MS
    with Caller(opener) as ledger:
        claims = [harness.claim(f"lapsed {at}", lease_ms=lapse_ms) for at in range(count)]
        leases = [verdict.lease for verdict in ledger.claim_all(claims) if isinstance(verdict, Granted)]
    assert len(leases) == count
    if how == "threads":
        harness.advance(lapse_ms)
    else:
        Harness(open=opener).advance(lapse_ms)  # sleeps
    return leases


def _one_winner_a_key(claims: Sequence[Claim], answers: Sequence[Ran], racers: int) -> list[Granted]:
    assert len(answers) == racers
    granted: list[Granted] = []
    for ran in answers:
        assert len(ran.verdicts) == len(claims), "every claim of every racer has a verdict"
        assert all(isinstance(verdict, Granted | Busy) for verdict in ran.verdicts)
        granted += [verdict for verdict in ran.verdicts if isinstance(verdict, Granted)]
    winners = [one.lease.claim.digest for one in granted]
    assert sorted(winners) == sorted(claim.digest for claim in claims), "one winner for each key"
    tokens = {one.lease.token for one in granted}
    assert len(tokens) == len(granted)
    return granted

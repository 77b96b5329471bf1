"""Laws of races: one winner, and a verdict for everyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from semel.ports import Ledger
from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import PROCESSES, RaceBinding
from semel.testing.race import Race, Ran, Round, race_processes, race_threads
from semel.values.claim import Busy, Claim, Granted, Lease, Settled, Settlement
from semel.values.outcome import Done

KEYS = 20
LAPSE_MS = 100  # between processes nobody can move the clock: leases that lapse are short

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
    """The same claims, with leases that outlast every race."""
    return [Claim(c.digest, c.handler, c.text, 60_000, 600_000, c.tenant, c.fingerprint, (), c.order) for c in claims]


def _rotated(claims: list[Claim], by: int) -> list[Claim]:
    """Racers meet the keys in different orders: locks taken in the order of a batch would deadlock."""
    at = by * len(claims) // PROCESSES % len(claims)
    return claims[at:] + claims[:at]


def _lapsed(harness: Harness, how: str, opener: Callable[[], Ledger], count: int) -> list[Lease]:
    """Leases whose holder has vanished."""
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

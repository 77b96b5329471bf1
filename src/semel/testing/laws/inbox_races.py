"""Laws of races for the inbox: one winner, and an answer for everyone.

`semel.testing.race` knows racers that claim. Here each round is one question of another kind, put by a stand-in whose
`claim` asks it: what travels as claims is what the question is about, what comes back as verdicts are its answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from semel.ports import Ledger
from semel.testing.harness import Harness, InboxCaller, arrival, lane
from semel.testing.laws.binding import PROCESSES, RaceBinding
from semel.testing.laws.inbox import InboxBinding
from semel.testing.race import Round, race_processes, race_threads
from semel.values.claim import Busy, Claim, Granted, Settled
from semel.values.inbox import Acceptance, Arrival, Finished, Taken
from semel.values.outcome import Reject

ROUNDS = 8
ITEMS = 20
LEASE_MS = 600_000  # outlasts every race

Ask = Callable[[Any, Sequence[Any]], Any]
Run = Callable[[Ask, Sequence[Sequence[Sequence[Any]]]], list[list[list[Any]]]]


class Racer:
    """Sends one kind of request."""

    def __init__(self, open_ledger: Callable[[], Ledger], ask: Ask) -> None:
        self._ledger = open_ledger()
        self._ask = ask

    async def claim(self, about: Sequence[Any]) -> list[Any]:
        answers: list[Any] = await self._ask(self._ledger, about)
        return answers

    async def close(self) -> None:
        await self._ledger.close()


async def accept(ledger: Any, arrivals: Sequence[Arrival]) -> list[Acceptance]:
    answers: list[Acceptance] = await ledger.accept(arrivals)
    return answers


async def take(ledger: Any, lanes: Sequence[str]) -> list[Taken]:
    taken: list[Taken] = []
    while more := await ledger.take(dict.fromkeys(lanes, 3), LEASE_MS):
        taken += more
    return taken


async def take_and_finish(ledger: Any, lanes: Sequence[str]) -> list[Taken]:
    taken: list[Taken] = []
    while more := await ledger.take(dict.fromkeys(lanes, 3), LEASE_MS):
        assert all(await ledger.finish([Finished(one) for one in more]))
        taken += more
    return taken


async def replay(ledger: Any, keys: Sequence[str]) -> list[bool]:
    return [await ledger.replay(key, "race", "racer") for key in keys]


async def decide(ledger: Any, keys: Sequence[str]) -> list[bool]:
    """Replay every other key and discard the rest."""
    return [await (ledger.replay if at % 2 else ledger.discard)(key, "race", "racer") for at, key in enumerate(keys)]


async def replay_or_claim_or_purge(ledger: Any, about: Sequence[Any]) -> list[Any]:
    """Replay a key, make a claim, or purge up to a number of records, depending on the type of the request."""
    answers: list[Any] = []
    for one in about:
        match one:
            case str():
                answers.append(await ledger.replay(one, "race", "racer"))
            case int():
                answers.append(await ledger.purge(one))
            case _:
                answers += await ledger.claim([one])
    return answers


class InboxRaceLaws(InboxBinding, RaceBinding):
    @pytest.fixture
    def run(self, how: str, opener: Callable[[], Ledger]) -> Run:
        def run(ask: Ask, race: Sequence[Sequence[Sequence[Any]]]) -> list[list[list[Any]]]:
            open_racer: Any = partial(Racer, opener, ask)
            rounds = [[Round(claims=about) for about in own] for own in race]
            ran = (race_threads if how == "threads" else race_processes)(open_racer, rounds)
            return [[list(turn.verdicts) for turn in own] for own in ran]

        return run

    @pytest.fixture
    def on_their_clock(self, opener: Callable[[], Ledger]) -> InboxCaller:
        """A caller with the clock of the racers."""
        return InboxCaller(opener)

    def test_one_of_many_concurrent_arrivals_is_accepted_and_all_are_answered(
        self, harness: Harness, racers: int, run: Run, on_their_clock: InboxCaller
    ) -> None:
        rounds = [[arrival(harness, f"{at} {key}") for key in range(ITEMS)] for at in range(ROUNDS)]
        answers = run(accept, [[_rotated(turn, racer) for turn in rounds] for racer in range(racers)])
        for at, arrivals in enumerate(rounds):
            accepted: list[bytes] = []
            for racer in range(racers):
                replies = answers[racer][at]
                assert len(replies) == ITEMS
                assert {answer.status for answer in replies} <= {"accepted", "duplicate"}
                pairs = zip(_rotated(arrivals, racer), replies, strict=True)
                accepted += [one.claims[0].digest for one, answer in pairs if answer.status == "accepted"]
            assert sorted(accepted) == sorted(one.claims[0].digest for one in arrivals)
        with on_their_clock as clerk:
            assert clerk.depth(harness) == (ROUNDS * ITEMS, 0)

    def test_no_item_is_taken_twice(self, harness: Harness, racers: int, run: Run, on_their_clock: InboxCaller) -> None:
        with on_their_clock as clerk:
            clerk.accept_all([arrival(harness, f"key {at}", to=f"{at % 2}") for at in range(ROUNDS * ITEMS)])
            answers = run(take, [[[lane(harness, "0"), lane(harness, "1")]]] * racers)
            taken = [one for own in answers for one in own[0]]
            assert len({one.id for one in taken}) == len({one.token for one in taken}) == len(taken)
            assert len(taken) == ROUNDS * ITEMS
            assert all(clerk.finish_all([Finished(one) for one in taken]))

    def test_every_item_is_finished_by_one(
        self, harness: Harness, racers: int, run: Run, on_their_clock: InboxCaller
    ) -> None:
        with on_their_clock as clerk:
            clerk.accept_all([arrival(harness, f"key {at}") for at in range(ROUNDS * ITEMS)])
            answers = run(take_and_finish, [[[lane(harness)]]] * racers)
            times = Counter(one.id for own in answers for one in own[0])
            assert len(times) == ROUNDS * ITEMS
            assert set(times.values()) == {1}
            assert clerk.depths(harness) == []

    @pytest.mark.parametrize("ask", [replay, decide])
    def test_one_of_many_concurrent_decisions_about_a_dead_letter_counts(
        self, harness: Harness, racers: int, run: Run, on_their_clock: InboxCaller, ask: Ask
    ) -> None:
        with on_their_clock as clerk:
            claims = harness.claims(ITEMS)
            for claim in claims:
                clerk.die(claim)
            keys = [claim.digest.hex() for claim in claims]
            answers = run(ask, [[_rotated(keys, racer)] for racer in range(racers)])
            decided: list[str] = []
            for racer in range(racers):
                assert len(answers[racer][0]) == ITEMS
                pairs = zip(_rotated(keys, racer), answers[racer][0], strict=True)
                decided += [key for key, succeeded in pairs if succeeded]
            assert sorted(decided) == sorted(keys)
            replayed = [claim for claim in claims if clerk.states_of(claim)[0][0] == "accepted"]
            taken = clerk.take_all({"on_event": 1000}, LEASE_MS)
            assert len([one for one in taken if one.tenant == harness.namespace]) == len(replayed)
            assert len(replayed) == ITEMS or ask is decide
            assert all(len(clerk.states_of(claim)) == 1 + (claim in replayed) for claim in claims)

    def test_replays_claims_and_purges_at_once_grant_each_key_once(
        self, harness: Harness, racers: int, run: Run, on_their_clock: InboxCaller
    ) -> None:
        """Before the replay the record answers a claim. After it one claim is granted. A purge changes neither."""
        with on_their_clock as clerk:
            claims = [harness.claim(f"key {at}", lease_ms=LEASE_MS, retention_ms=LEASE_MS) for at in range(ITEMS)]
            for claim in claims:
                clerk.die(claim)
            keys = [claim.digest.hex() for claim in claims]
            kinds = (
                [*claims],
                [*keys],
                [key for pair in zip(claims, keys, strict=True) for key in pair],
                [5] * ITEMS,
            )
            race = [[_rotated(kinds[racer % len(kinds)], racer)] for racer in range(racers)]
            answers = run(replay_or_claim_or_purge, race)
            replayed: Counter[str] = Counter()
            granted: Counter[str] = Counter()
            for requests, replies in zip(race, answers, strict=True):
                for request, answer in zip(requests[0], replies[0], strict=True):
                    if isinstance(request, str):
                        replayed[request] += answer
                    elif isinstance(request, Claim):
                        assert isinstance(answer, Granted | Busy) or answer == Settled(Reject("no"))
                        granted[request.digest.hex()] += isinstance(answer, Granted)
            assert [replayed[key] for key in keys] == [1] * ITEMS
            assert max(granted[key] for key in keys) <= 1
            assert all(("accepted", 2) in clerk.states_of(claim) for claim in claims)


def _rotated(items: Sequence[Any], by: int) -> list[Any]:
    """Give each racer another order."""
    at = by * len(items) // PROCESSES % len(items)
    return [*items[at:], *items[:at]]

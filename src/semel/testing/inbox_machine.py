"""Random histories of any ledger with an inbox, compared with `semel.testing.inbox_model` step by step.

    TestMyInbox = inbox_machine(my_harness).TestCase

The harness needs a clock that can be moved. Two workers share the store. They process inbox items as a worker does and
may vanish at any step. They also claim and settle outside the inbox, as inline deliveries do. The histories therefore
reach every combination of inbox items and records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, multiple, rule

from semel.ports import EntryQuery
from semel.testing.harness import Harness, InboxCaller, lane
from semel.testing.inbox_model import InboxModel, ModelItem
from semel.testing.model import OPEN, Model
from semel.values.claim import Claim, DeadLetter, Granted, Lease, Settlement
from semel.values.inbox import Arrival, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.outcome import Done, Ending, Final, Reject, Release, Retry, Uncertain

UNDECIDED = ("dead", "uncertain")
KEYS = "ab"
SWEEP_LIMIT = 10_000


@dataclass(frozen=True)
class ArrivalDraft:
    """A claim without its harness."""

    key: str
    fingerprint: str | None
    aliases: tuple[str, ...]
    position: int | None

    def by(self, harness: Harness) -> Claim:
        return harness.claim(
            self.key,
            fingerprint=self.fingerprint,
            aliases=self.aliases,
            alias_retention_ms=60 * harness.unit_ms,
            subject=None if self.position is None else "s",
            position=self.position or 0,
        )


ASKED = st.builds(
    ArrivalDraft,
    key=st.sampled_from(KEYS),
    fingerprint=st.sampled_from([None, None, None, None, "1", "2"]),
    aliases=st.sampled_from([(), (), (), ("x",)]),
    position=st.sampled_from([None, None, None, None, 1, 2]),
)
# The claims of one arrival. They belong to different handlers, so they share no key.
TOGETHER = st.lists(ASKED, min_size=1, max_size=2, unique_by=(lambda asked: asked.key, lambda asked: asked.aliases))
ENDINGS: st.SearchStrategy[Ending] = st.sampled_from([Done(b"1"), Reject("no"), Uncertain("?"), Retry(5), Release()])
LEAVINGS: st.SearchStrategy[Callable[[Taken], InboxEnding]] = st.sampled_from(
    [
        Finished,
        lambda taken: Postponed(taken, 0),
        lambda taken: Postponed(taken, 5_000),
        lambda taken: GivenUp(taken, "up"),
    ]
)
VANISHES = st.sampled_from(["with the item", "with the lease", "with the record", "never", "never"])
STEPS_MS = (1, 4_999, 5_000, 9_999, 10_000, 30_000, 61_000)  # around the ends of waits, leases and retentions
WHO = st.integers(0, 1)


def inbox_machine(harness_factory: Callable[[], Harness]) -> type[RuleBasedStateMachine]:
    """A state machine over the ledgers of this harness."""

    class InboxMachine(RuleBasedStateMachine):
        leases: Bundle[Lease] = Bundle("leases")
        taken: Bundle[Taken] = Bundle("taken")

        def __init__(self) -> None:
            super().__init__()
            self.harness = harness_factory()
            assert self.harness.clock is not None, "a machine moves the clock"
            self.clock = self.harness.clock
            self.workers = (InboxCaller(self.harness.open), InboxCaller(self.harness.open))
            self.ledger = Model()
            self.model = InboxModel(self.ledger)
            self.newest_token = 0
            self.numbers = count()
            self.lanes = (lane(self.harness), "on_event")  # replays are queued for their own handler

        def teardown(self) -> None:
            for worker in self.workers:
                worker.close()
            self.harness.dispose()

        # ------------------------------------------------------------------------------------------------- the inbox

        @rule(who=WHO, batch=st.lists(TOGETHER, min_size=1, max_size=4))
        def accept(self, who: int, batch: Sequence[Sequence[ArrivalDraft]]) -> None:
            arrivals = [
                Arrival(tuple(one.by(self.harness) for one in asked), self.lanes[0], b"%d" % next(self.numbers))
                for asked in batch
            ]
            answers = self.workers[who].accept_all(arrivals)
            expected = [self.model.accept(arrival, self.clock()) for arrival in arrivals]
            assert [answer.status for answer in answers] == expected

        @rule(target=taken, who=WHO, room=st.lists(st.integers(0, 3), min_size=2, max_size=2))
        def take(self, who: int, room: Sequence[int]) -> MultipleResults[Taken]:
            return multiple(*self._take(who, room))

        def _take(self, who: int, room: Sequence[int]) -> list[Taken]:
            now, lease_ms = self.clock(), self.harness.lease_ms
            got = self.workers[who].take_all(dict(zip(self.lanes, room, strict=True)), lease_ms)
            dues = []
            for name, limit in zip(self.lanes, room, strict=True):
                due = self.model.due(name, now)[:limit]
                mine = [self._found(one) for one in got if one.lane == name]
                assert [dead_letter.due for dead_letter in mine] == [dead_letter.due for dead_letter in due], (
                    "the longest due first"
                )
                dues += [dead_letter.due for dead_letter in due]
            assert [self._found(one).due for one in got] == sorted(dues)
            for one in got:
                self._check(one)
                self.model.take(self._found(one), one.token, now + lease_ms)
            return got

        def _found(self, taken: Taken) -> ModelItem:
            (dead_letter,) = [
                one for one in self.model.dead_letters if one.event == taken.event and one.lane == taken.lane
            ]
            return dead_letter

        def _check(self, taken: Taken) -> None:
            dead_letter = self._found(taken)
            assert (taken.only, taken.lapses) == (dead_letter.only, dead_letter.lapses + dead_letter.in_hands)
            assert taken.token > self.newest_token
            self.newest_token = taken.token

        @rule(who=WHO, ends=st.lists(st.tuples(taken, LEAVINGS), min_size=1, max_size=4))
        def finish(self, who: int, ends: Sequence[tuple[Taken, Callable[[Taken], InboxEnding]]]) -> None:
            endings = [leave(one) for one, leave in ends]
            answers = self.workers[who].finish_all(endings)
            assert answers == [self.model.finish(ending, self.clock()) for ending in endings]

        @rule(target=taken, who=WHO, at=WHO, ending=ENDINGS, leave=LEAVINGS, vanishes=VANISHES)
        def work(
            self, who: int, at: int, ending: Ending, leave: Callable[[Taken], InboxEnding], vanishes: str
        ) -> MultipleResults[Taken]:
            """Take an inbox item, run its first claim, and finish it; or vanish at a step."""
            got = self._take(who, [1 - at, at])
            for one in got if vanishes != "with the item" else ():
                lease = self._claim(who, self._found(one).claims[0])
                if vanishes == "with the lease":
                    continue
                if lease is not None:
                    self.settle(who, lease, ending)
                if vanishes == "never":
                    over = lease is None or isinstance(ending, Final)
                    self.finish(who, [(one, Finished if over else leave)])
            return multiple(*got)

        # ---------------------------------------------------------------------------------------- the ledger beside it

        @rule(target=leases, who=WHO, asked=ASKED, ending=st.one_of(st.none(), ENDINGS))
        def act(self, who: int, asked: ArrivalDraft, ending: Ending | None) -> MultipleResults[Lease]:
            """An inline delivery. Without an ending, its handler is still running."""
            lease = self._claim(who, asked.by(self.harness))
            if lease is not None and ending is not None:
                self.settle(who, lease, ending)
            return multiple() if lease is None else multiple(lease)

        def _claim(self, who: int, claim: Claim) -> Lease | None:
            verdict = self.workers[who].claim(claim)
            refusal = self.ledger.refuse(claim, self.clock())
            if refusal is not None:
                assert verdict == refusal
                return None
            assert isinstance(verdict, Granted), f"{verdict} for a claim that must be granted"
            assert verdict.lease.token > self.newest_token
            self.newest_token = verdict.lease.token
            assert verdict == self.ledger.grant(claim, verdict.lease.token, self.clock())
            return verdict.lease

        @rule(who=WHO, lease=leases, ending=ENDINGS)
        def settle(self, who: int, lease: Lease, ending: Ending) -> None:
            now, event = self.clock(), b"%d" % next(self.numbers)
            dead_letter = DeadLetter(event, 1) if isinstance(ending, Reject | Uncertain) else None
            (answer,) = self.workers[who].settle_all([Settlement(lease, ending, dead_letter)])
            ended = lease.token in self.ledger.ended
            expected = self.ledger.settle(lease, ending, now)
            assert expected == OPEN or answer is expected
            if expected is True and not ended and isinstance(ending, Final):
                self.model.settled(lease, ending, event, now)

        # ---------------------------------------------------------------------------------------------------- people

        @rule(who=WHO, pick=st.integers(0, 5), replays=st.booleans(), force=st.booleans())
        def decide(self, who: int, pick: int, replays: bool, force: bool) -> None:
            """Decide about a dead letter, sometimes about another key."""
            worker = self.workers[who]
            dead = {record.key: record for record in self.model.dead()}
            known = [*dead, *[self.harness.claim(key).digest for key in KEYS]]
            key = known[pick % len(known)]
            listed_key = self._listed_key(worker, dead[key].event) if key in dead else key.hex()
            if replays:
                answer = worker.run(worker.store.replay(listed_key, "why", "who", force=force))
                assert answer is self.model.replay(key, self.clock(), force)
            else:
                answer = worker.run(worker.store.discard(listed_key, "why", "who"))
                assert answer is self.model.discard(key)
            states = [entry.state for entry in worker.run(worker.store.history(listed_key)) if entry.key == listed_key]
            open_ones = [one for one in self.model.dead() if one.key == key]
            assert sum(state in ("dead", "uncertain") for state in states) == len(open_ones)

        def _listed_key(self, worker: InboxCaller, event: bytes) -> str:
            """The key under which a dead letter is listed."""
            listed = [entry for state in UNDECIDED for entry in worker.run(worker.store.entries(EntryQuery(state)))]
            (key,) = [entry.key for entry in listed if entry.event == event]
            return key

        @rule(who=WHO)
        def look(self, who: int) -> None:
            now, worker = self.clock(), self.workers[who]
            hands = [one.in_hands and one.due > now for one in self.model.dead_letters]
            depths = worker.run(worker.store.depths())
            seen = [(sum(d.waiting for d in depths), sum(d.taken for d in depths))]
            assert seen == [(hands.count(False), hands.count(True))]
            counts = worker.run(worker.store.counts())
            dead = [type(record.ending) for record in self.model.dead()]
            assert counts["accepted"] <= len(self.model.dead_letters)
            if (
                counts["leased"] + counts["waiting"] == 0
            ):  # an item whose handler has started is counted by the state of its key
                assert counts["accepted"] == len(self.model.dead_letters)
            assert (counts["dead"], counts["uncertain"]) == (dead.count(Reject), dead.count(Uncertain))
            listed = [entry for state in UNDECIDED for entry in worker.run(worker.store.entries(EntryQuery(state)))]
            assert sorted(entry.event or b"" for entry in listed) == sorted(one.event for one in self.model.dead())

        # ------------------------------------------------------------------------------------------------------ time

        @rule(ms=st.sampled_from(STEPS_MS))
        def time_passes(self, ms: int) -> None:
            self.harness.advance(ms)

        @rule(who=WHO)
        def purge(self, who: int) -> None:
            assert 0 <= self.workers[who].purge(SWEEP_LIMIT) <= SWEEP_LIMIT
            self.ledger.purge(self.clock())

    return InboxMachine

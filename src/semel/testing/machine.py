"""Random histories of any ledger, compared with `semel.testing.model` step by step.

    TestMyLedger = ledger_machine(my_harness).TestCase

The harness needs a clock that can be moved. Two workers share the store. Every verdict must match the model, except for
tokens: each must be higher than all earlier tokens of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, multiple, rule

from semel.ports import Catalog
from semel.testing.harness import Caller, Harness
from semel.testing.model import OPEN, Model
from semel.values.claim import Claim, DeadLetter, Granted, Lease, Settlement, Verdict
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain

SWEEP_LIMIT = 10_000  # more than all expired records


@dataclass(frozen=True)
class ClaimDraft:
    """A claim without its harness."""

    key: str
    fingerprint: str | None
    aliases: tuple[str, ...]
    alias_units: int  # retention of the aliases: shorter or longer than the key's
    subject: str | None
    position: int

    def by(self, harness: Harness) -> Claim:
        return harness.claim(
            self.key,
            fingerprint=self.fingerprint,
            aliases=self.aliases,
            alias_retention_ms=self.alias_units * harness.unit_ms,
            subject=self.subject,
            position=self.position,
        )


ASKED = st.builds(
    ClaimDraft,
    key=st.sampled_from("abcd"),
    fingerprint=st.sampled_from([None, None, "1", "1", "2"]),
    aliases=st.sampled_from([(), (), (), ("x",), ("y",), ("x", "y")]),
    alias_units=st.sampled_from([15, 60]),
    subject=st.sampled_from([None, None, "s", "t"]),
    position=st.integers(1, 3),
)
ENDINGS: st.SearchStrategy[Ending] = st.sampled_from(
    [Done(), Done(b"1"), Reject("no"), Uncertain("?"), Retry(0), Retry(5, "later"), Retry(40), Release(), Release()]
)
STEPS_MS = (1, 4_999, 5_000, 10_000, 15_000, 30_000, 61_000)  # around the ends of waits, leases and retentions


def ledger_machine(harness_factory: Callable[[], Harness]) -> type[RuleBasedStateMachine]:
    """A state machine over the ledgers of this harness."""

    class LedgerMachine(RuleBasedStateMachine):
        leases: Bundle[Lease] = Bundle("leases")

        def __init__(self) -> None:
            super().__init__()
            self.harness = harness_factory()
            assert self.harness.clock is not None, "a machine moves the clock"
            self.clock = self.harness.clock
            self.workers = (Caller(self.harness.open), Caller(self.harness.open))
            self.model = Model()
            self.newest_tokens: dict[bytes, int] = {}

        def teardown(self) -> None:
            for worker in self.workers:
                worker.close()
            self.harness.dispose()

        @rule(target=leases, who=st.integers(0, 1), asked=st.lists(ASKED, min_size=1, max_size=5))
        def claim(self, who: int, asked: Sequence[ClaimDraft]) -> MultipleResults[Lease]:
            claims = [one.by(self.harness) for one in asked]
            verdicts = self.workers[who].claim_all(claims)
            for claim, verdict in zip(claims, verdicts, strict=True):
                assert verdict == self._expected(claim, verdict)
            return multiple(*[verdict.lease for verdict in verdicts if isinstance(verdict, Granted)])

        def _expected(self, claim: Claim, verdict: Verdict) -> Verdict:
            refusal = self.model.refuse(claim, self.clock())
            if refusal is not None:
                return refusal
            assert isinstance(verdict, Granted), f"{verdict} for a claim that must be granted"
            for digest in (claim.digest, *[alias.digest for alias in claim.aliases]):
                assert verdict.lease.token > self.newest_tokens.get(digest, 0)
                self.newest_tokens[digest] = verdict.lease.token
            return self.model.grant(claim, verdict.lease.token, self.clock())

        @rule(who=st.integers(0, 1), ends=st.lists(st.tuples(leases, ENDINGS), min_size=1, max_size=4))
        def settle(self, who: int, ends: Sequence[tuple[Lease, Ending]]) -> None:
            once = list({lease.token: (lease, ending) for lease, ending in ends}.values())
            dead_letter = DeadLetter(b"{}", 1)
            answers = self.workers[who].settle_all(
                [
                    Settlement(lease, ending, dead_letter if isinstance(ending, Reject | Uncertain) else None)
                    for lease, ending in once
                ]
            )
            for (lease, ending), answer in zip(once, answers, strict=True):
                expected = self.model.settle(lease, ending, self.clock())
                assert expected == OPEN or answer is expected, (lease, ending)

        @rule(who=st.integers(0, 1), lease=leases, ending=ENDINGS)
        def settle_one(self, who: int, lease: Lease, ending: Ending) -> None:
            self.settle(who, [(lease, ending)])

        @rule(who=st.integers(0, 1), some=st.lists(leases, min_size=1, max_size=4))
        def renew(self, who: int, some: Sequence[Lease]) -> None:
            answers = self.workers[who].renew(*some)
            assert answers == [self.model.renew(lease, self.clock()) for lease in some]

        @rule(ms=st.sampled_from(STEPS_MS))
        def time_passes(self, ms: int) -> None:
            self.harness.advance(ms)

        @rule(who=st.integers(0, 1))
        def purge(self, who: int) -> None:
            assert 0 <= self.workers[who].purge(SWEEP_LIMIT) <= SWEEP_LIMIT
            self.model.purge(self.clock())

        @rule(who=st.integers(0, 1))
        def look_at_the_dead_letters(self, who: int) -> None:
            seen = []
            for asked in "abcd":
                claim = self.harness.claim(asked)
                for state, kind in (("dead", Reject), ("uncertain", Uncertain)):
                    found = self.workers[who].entries(claim, state)
                    seen += [(claim.digest, kind(entry.reason), entry.attempt_log) for entry in found]
            assert sorted(map(repr, seen)) == sorted(map(repr, self.model.dead_letters))

        @rule(who=st.integers(0, 1), asked=st.sampled_from("abcd"))
        def look_at_what_was_tried(self, who: int, asked: str) -> None:
            digest, catalog = self.harness.digest(asked), cast(Catalog, self.workers[who].ledger)
            known = self.workers[who].run(catalog.history(digest.hex()))
            found = [(entry.state, entry.attempt_log) for entry in known if entry.state in ("leased", "waiting")]
            assert found == self.model.open(digest)

    return LedgerMachine

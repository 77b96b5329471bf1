"""Laws of `replay(…, force=True)`: a person wants what is done to happen once more.

They need no inbox: every ledger with Letters and a Catalog binds them with its harness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

import pytest

from semel.ports import Catalog, Entry, Ledger, Letters
from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import Binding
from semel.testing.laws.keeping import SWEPT_MS
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement, Stale, Verdict
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain
from semel.values.reading import Reading

NOT_DONE: dict[str, Ending | None] = {"leased": None, "waiting": Retry(60)}
LETTERS: dict[str, Reject | Uncertain] = {"dead": Reject("no"), "uncertain": Uncertain("?")}


class ForceLaws(Binding):
    def test_what_is_done_is_replayed_only_by_force(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        first = ledger.do(claim, b"1")
        assert _replay(other, claim, force=False) is False
        assert ledger.is_done(claim, b"1")
        assert _told(ledger, claim) == [("done", 1)]
        harness.advance(2)
        assert _replay(other, claim) is True
        again = ledger.grant(claim)
        assert (again.attempt, again.takeover) == (1, False)
        assert again.lease.token > first.lease.token
        assert ledger.settle(again, Done(b"2")) is True
        for known in (claim, harness.claim("b", aliases=["x"])):
            assert other.claim(known) == Settled(Done(b"2"))

    def test_it_is_kept_with_its_reason_and_what_it_came_to_before(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.do(claim, b'{"n":1}')
        harness.advance(2)
        assert _replay(ledger, claim, "the number was wrong", "anna") is True
        (before,) = _history(ledger, claim)
        assert (before.state, before.generation, before.attempts) == ("replayed", 1, 1)
        assert (before.text, before.handler, before.tenant) == ("a", claim.handler, claim.tenant)
        assert (before.result, before.reason, before.event) == (b'{"n":1}', "", None)
        assert all(word in before.decision for word in ("replayed", "done", "anna", "the number was wrong"))
        harness.advance(2)
        ledger.do(claim)
        now, then = _history(ledger, claim)
        assert (now.state, now.generation, now.result) == ("done", 2, b"null")
        assert then == before
        assert [(entry.state, entry.generation) for entry in ledger.entries(claim)] == [("done", 2)]

    def test_every_call_begins_one_generation(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a")
        for generation in (1, 2, 3):
            ledger.do(claim)
            assert _told(ledger, claim)[0] == ("done", generation)
            harness.advance(2)
            assert [_replay(other, claim), _replay(ledger, claim), _replay(ledger, claim, force=False)] == [
                *(True, False, False)
            ]
            harness.advance(2)
        assert _told(ledger, claim) == [("replayed", 3), ("replayed", 2), ("replayed", 1)]

    def test_what_is_replayed_is_not_counted_as_done(self, harness: Harness, ledger: Caller) -> None:
        claim, stays = harness.claim("a", aliases=["x"]), harness.claim("b")
        before = _counts(ledger)
        ledger.do(claim)
        ledger.do(stays)
        assert _replay(ledger, claim) is True
        assert ledger.entries(claim) == []
        assert _counts(ledger) == before | {"done": before["done"] + 1}
        assert ledger.is_done(stays)

    def test_another_payload_may_come_then(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(harness.claim("a", fingerprint="1"))
        assert _replay(ledger, harness.claim("a")) is True
        ledger.do(harness.claim("a", fingerprint="2"), b"2")
        assert ledger.is_done(harness.claim("a", fingerprint="2"), b"2")

    def test_of_many_at_once_one_begins_a_generation_and_one_is_granted(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.do(claim, b"1")
        key, store = claim.digest.hex(), _store(ledger)

        async def all_at_once() -> tuple[list[bool], list[Verdict]]:
            asked = [store.replay(key, "why", "anna", force=True) for _ in range(6)]
            claimed = [store.claim([claim]) for _ in range(6)]
            replayed, verdicts = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*claimed))
            return list(replayed), [verdict for (verdict,) in verdicts]

        replayed, verdicts = ledger.run(all_at_once())
        assert replayed.count(True) == 1
        granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
        assert len(granted) <= 1
        assert all(v == Settled(Done(b"1")) or isinstance(v, Busy | Granted) for v in verdicts)
        again = granted[0] if granted else ledger.grant(claim)
        assert ledger.settle(again, Done(b"2")) is True
        assert ledger.is_done(claim, b"2")

    # ------------------------------------------------------------------------------------------------ what is not done

    @pytest.mark.parametrize("state", ["unknown", *NOT_DONE])
    def test_what_is_not_over_is_left_alone(self, harness: Harness, ledger: Caller, state: str) -> None:
        claim = harness.claim("a")
        granted = None if state == "unknown" else ledger.grant(claim)
        if granted is not None and (ending := NOT_DONE[state]) is not None:
            ledger.settle(granted, ending)
        assert _replay(ledger, claim) is False
        if granted is None:
            assert _history(ledger, claim) == []
        else:
            assert _told(ledger, claim) == [(state, 1)]
            assert isinstance(ledger.claim(claim), Busy)

    def test_what_is_known_no_more_cannot_be_replayed(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.do(claim)
        harness.advance(harness.retention_ms)
        assert _replay(ledger, claim) is False
        assert ledger.grant(claim).attempt == 1

    @pytest.mark.parametrize("state", list(LETTERS))
    def test_a_letter_is_replayed_as_without_force(self, harness: Harness, ledger: Caller, state: str) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), LETTERS[state])
        assert [_replay(ledger, claim), _replay(ledger, claim)] == [True, False]
        assert ledger.grant(claim).attempt == 1

    def test_what_was_discarded_is_not_done(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
        assert ledger.run(_store(ledger).discard(claim.digest.hex(), "why", "who")) is True
        assert _replay(ledger, claim) is False
        assert ledger.claim(claim) == Settled(Reject("no"))

    def test_a_letter_of_a_key_that_is_done_meanwhile_is_replayed_with_it(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        lease = ledger.grant(claim).lease
        letter = DeadLetter(b"{}", 1, Reading(foreign=True))  # its handler is elsewhere: a replay goes nowhere
        assert ledger.settle_all([Settlement(lease, Reject("no"), letter)]) == [True]
        harness.advance(harness.retention_ms)
        ledger.do(claim, b"1")
        assert _replay(ledger, claim, force=False) is False
        assert [_replay(ledger, claim), _replay(ledger, claim)] == [True, False]
        assert ledger.entries(claim) == []
        assert [entry.state for entry in _history(ledger, claim)] == ["replayed", "replayed"]
        assert sorted(str(entry.result) for entry in _history(ledger, claim)) == ["None", "b'1'"]
        ledger.do(claim, b"2")
        assert _told(ledger, claim)[0][0] == "done"
        assert _told(ledger, claim)[0][1] > 1

    # ------------------------------------------------------------------------------------------- aliases and subjects

    def test_an_alias_that_has_moved_on_stays_where_it_is(self, harness: Harness, ledger: Caller) -> None:
        old = harness.claim("a", aliases=["x", "y"], alias_retention_ms=harness.unit_ms)
        ledger.do(old)
        harness.advance(2 * harness.unit_ms)
        ledger.do(harness.claim("b", aliases=["x"]), b"1")
        assert _replay(ledger, old) is True
        assert ledger.is_done(harness.claim("c", aliases=["x"]), b"1")
        ledger.grant(harness.claim("a"))

    def test_an_alias_is_not_the_key(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.do(claim, b"1")
        assert ledger.run(_store(ledger).replay(claim.aliases[0].digest.hex(), "why", "who", force=True)) is False
        assert ledger.is_done(claim, b"1")

    def test_the_newest_of_a_subject_may_happen_again_and_an_older_one_is_stale_still(
        self, harness: Harness, ledger: Caller
    ) -> None:
        older = harness.claim("a", subject="s", position=1)
        newer = harness.claim("b", subject="s", position=2)
        for claim in (older, newer):
            ledger.do(claim)
        assert [_replay(ledger, older), _replay(ledger, newer)] == [True, True]
        assert ledger.claim(older) == Stale(2)
        ledger.do(newer, b"2")
        assert ledger.is_done(newer, b"2")

    # ------------------------------------------------------------------------------------------------------------ time

    def test_purge_keeps_what_was_replayed_for_its_retention(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.settle(ledger.grant(claim), Retry(0, "first"))
        ledger.do(claim)
        harness.advance(harness.retention_ms // 2)
        assert _replay(ledger, claim) is True
        _purge(ledger)
        assert _told(ledger, claim) == [("replayed", 1)]
        harness.advance(2 * harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        _purge(ledger)
        assert _told(ledger, claim) == []
        assert ledger.grant(claim).attempt == 1


class Store(Ledger, Catalog, Letters, Protocol):
    """A ledger with everything that these laws ask for."""


def _store(ledger: Caller) -> Store:
    assert isinstance(ledger.ledger, Letters)
    return cast(Store, ledger.ledger)


def _replay(ledger: Caller, claim: Claim, reason: str = "again", by: str = "anna", *, force: bool = True) -> bool:
    return ledger.run(_store(ledger).replay(claim.digest.hex(), reason, by, force=force))


def _history(ledger: Caller, claim: Claim) -> Sequence[Entry]:
    return ledger.run(_store(ledger).history(claim.digest.hex()))


def _told(ledger: Caller, claim: Claim) -> list[tuple[str, int]]:
    return [(entry.state, entry.generation) for entry in _history(ledger, claim)]


def _counts(ledger: Caller) -> dict[str, int]:
    return ledger.run(_store(ledger).counts())


def _purge(ledger: Caller) -> None:
    for _ in range(3):  # a sweep that stopped in the middle begins again
        ledger.purge()

"""Laws of `purge` and of the catalog: what is kept, what is forgotten, what can be seen."""

from __future__ import annotations

from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import Binding
from semel.values.claim import Busy, Claim, Granted, Settlement
from semel.values.outcome import Done, Reject, Retry, Uncertain

SWEPT_MS = 60_000  # a store may round the time of sweeping up: to a minute at most


class KeepLaws(Binding):
    def test_purge_never_removes_a_live_lease(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=harness.unit_ms)
        granted = ledger.grant(claim)
        harness.advance(5 * harness.unit_ms)
        ledger.purge()
        assert isinstance(ledger.claim(claim), Busy)
        assert ledger.settle(granted, Done()) is True

    def test_purge_keeps_the_doubt_about_a_lapsed_lease(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        ledger.purge()
        again = ledger.grant(claim)
        assert (again.attempt, again.takeover) == (2, True)

    def test_purge_keeps_what_waits_for_a_retry(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=harness.unit_ms)
        ledger.settle(ledger.grant(claim), Retry(20 * harness.unit_ms / 1000))
        harness.advance(12 * harness.unit_ms)
        ledger.purge()
        assert isinstance(ledger.claim(claim), Busy)

    def test_purge_keeps_what_is_due_for_a_retry(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Retry(harness.unit_ms / 1000))
        harness.advance(2 * harness.unit_ms)
        ledger.purge()
        assert ledger.grant(claim).attempt == 2

    def test_purge_keeps_a_settled_key_for_its_retention(self, harness: Harness, ledger: Caller) -> None:
        done, dead = harness.claim("done"), harness.claim("dead")
        ledger.do(done, b"1")
        ledger.settle(ledger.grant(dead), Reject("no"))
        harness.advance(harness.retention_ms // 2)
        ledger.purge()
        assert ledger.is_done(done, b"1")
        assert not isinstance(ledger.claim(dead), Granted)

    def test_purge_keeps_an_alias_that_outlives_its_key(self, harness: Harness, ledger: Caller) -> None:
        kept_ms = 4 * SWEPT_MS if harness.clock else 100 * harness.unit_ms
        ledger.do(harness.claim("a", aliases=["x"], alias_retention_ms=kept_ms), b"1")
        harness.advance(kept_ms - harness.unit_ms * 10)
        ledger.purge()
        assert ledger.is_done(harness.claim("b", aliases=["x"]), b"1")

    def test_purge_forgets_what_is_over_and_at_most_the_limit(self, harness: Harness, ledger: Caller) -> None:
        claims = [harness.claim(f"key {at}", retention_ms=harness.unit_ms) for at in range(25)]
        granted = [verdict for verdict in ledger.claim_all(claims) if isinstance(verdict, Granted)]
        assert all(ledger.settle_all([Settlement(one.lease, Done(b"1")) for one in granted]))
        harness.advance(harness.unit_ms + (SWEPT_MS if harness.clock else 0))
        forgotten = []
        for _ in range(100):
            forgotten.append(ledger.purge(10))
            if forgotten[-1] == 0:
                break
        assert forgotten[-1] == 0
        assert max(forgotten) <= 10
        if harness.clock:  # a store that forgets by itself need not be swept
            assert sum(forgotten) == 25
        assert all(isinstance(verdict, Granted) for verdict in ledger.claim_all(claims))

    def test_tokens_still_grow_after_everything_was_purged(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=harness.unit_ms)
        before = ledger.do(claim).lease.token
        harness.advance(harness.unit_ms + (SWEPT_MS if harness.clock else 0))
        ledger.purge()
        with Caller(harness.open) as reopened:
            assert reopened.grant(claim).lease.token > before

    def test_a_token_from_before_the_purge_can_change_nothing(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=harness.unit_ms, subject="s", position=1)
        old = ledger.do(claim, b"1")
        harness.advance(harness.unit_ms + (SWEPT_MS if harness.clock else 0))
        ledger.purge()
        assert ledger.settle(old, Done(b"2")) is False
        assert ledger.renew(old.lease) == [False]
        new = ledger.grant(claim)
        assert ledger.settle(old, Done(b"2")) is False
        assert ledger.settle(new, Done(b"3")) is True

    # ---------------------------------------------------------------------------------------------------- catalog

    def test_letters_are_kept_by_purge_and_visible(self, harness: Harness, ledger: Caller) -> None:
        dead, parked = harness.claim("dead"), harness.claim("parked")
        ledger.settle(ledger.grant(dead), Reject("no such customer"), b'{"id":1}')
        ledger.settle(ledger.grant(parked), Uncertain("read timeout"), b'{"id":2}')
        harness.advance(harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        ledger.purge()
        assert _seen(ledger, dead, "dead") == [("dead", "no such customer", b'{"id":1}')]
        assert _seen(ledger, parked, "uncertain") == [("uncertain", "read timeout", b'{"id":2}')]
        assert _seen(ledger, dead, "uncertain") == _seen(ledger, parked, "done") == []

    def test_a_letter_stays_when_its_key_comes_again_after_the_retention(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Reject("first"), b"1")
        harness.advance(harness.retention_ms)
        ledger.settle(ledger.grant(claim), Reject("second"), b"2")
        assert _seen(ledger, claim, "dead") == [("dead", "second", b"2"), ("dead", "first", b"1")]

    def test_the_catalog_shows_every_state(self, harness: Harness, ledger: Caller) -> None:
        leased, waiting, done = harness.claim("leased"), harness.claim("waiting"), harness.claim("done")
        ledger.grant(leased)
        ledger.settle(ledger.grant(waiting), Retry(harness.lease_ms / 1000))
        ledger.do(done, b"1")
        assert [_seen(ledger, claim)[0][0] for claim in (leased, waiting, done)] == ["leased", "waiting", "done"]
        for claim, state in ((leased, "leased"), (waiting, "waiting"), (done, "done")):
            (entry,) = ledger.entries(claim, state)
            assert (entry.key, entry.text, entry.handler) == (claim.digest.hex(), claim.text, claim.handler)
            assert (entry.tenant, entry.attempts, entry.event) == (claim.tenant, 1, None)

    def test_the_catalog_counts_attempts(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        for _ in range(2):
            ledger.settle(ledger.grant(claim), Retry(0))
            harness.advance(1)
        ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
        (entry,) = ledger.entries(claim)
        assert entry.attempts == 3

    def test_an_effect_with_aliases_is_one_letter(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x", "y"])
        ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
        assert [entry.key for entry in ledger.entries(claim)] == [claim.digest.hex()]

    def test_the_newest_letter_comes_first(self, harness: Harness, ledger: Caller) -> None:
        claims = harness.claims(5)
        for claim in claims:
            ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
            harness.advance(2)
        everything = [ledger.entries(claim, "dead")[0] for claim in claims]
        times = [entry.at_ms for entry in everything]
        assert times == sorted(times)
        listed = ledger.run(ledger.ledger.entries("dead", 3))  # type: ignore[attr-defined]
        assert [entry.key for entry in listed] == [claim.digest.hex() for claim in reversed(claims)][:3]

    def test_reading_the_catalog_changes_nothing(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        assert ledger.entries(claim) == ledger.entries(claim)
        assert ledger.settle(granted, Done()) is True


def _seen(ledger: Caller, claim: Claim, state: str | None = None) -> list[tuple[str, str, bytes | None]]:
    return [(entry.state, entry.reason, entry.event) for entry in ledger.entries(claim, state)]

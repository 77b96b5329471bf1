"""Laws of the catalog: entries, filters, order, counts and history; and laws of retention and purge."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from semel.ports import STATES, Catalog, Entry, EntryQuery
from semel.testing.harness import Caller, Harness, altered
from semel.testing.laws.binding import Binding
from semel.values.claim import Busy, Claim, Granted, Settlement
from semel.values.errors import ConfigError
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain

ENDINGS: dict[str, Ending | None] = {
    "leased": None,
    "waiting": Retry(3600, "later"),
    "done": Done(b"1"),
    "dead": Reject("no"),
    "uncertain": Uncertain("?"),
}


class CatalogLaws(Binding):
    @pytest.mark.parametrize("state", list(ENDINGS))
    def test_every_state_is_listed_by_its_name_and_among_all(
        self, harness: Harness, ledger: Caller, other: Caller, state: str
    ) -> None:
        claim = harness.claim("a")
        _bring(ledger, claim, state)
        for asked in (state, None):
            (entry,) = _listed(other, harness, asked)
            assert (entry.key, entry.state, entry.handler) == (claim.digest.hex(), state, claim.handler)
            assert (entry.text, entry.tenant, entry.attempts) == ("a", claim.tenant, 1)
            assert entry.event == (b"{}" if state in ("dead", "uncertain") else None)
            assert entry.result == (b"1" if state == "done" else None)
            assert entry.reason == {"waiting": "later", "dead": "no", "uncertain": "?"}.get(state, "")
            assert (entry.generation, entry.decision) == (1, "")
        for asked in STATES:
            assert asked == state or _listed(other, harness, asked) == []

    def test_what_a_handler_returned_nothing_for_is_null(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(harness.claim("a"))
        assert [entry.result for entry in _listed(ledger, harness)] == [b"null"]

    @pytest.mark.parametrize("state", list(ENDINGS))
    def test_a_key_with_aliases_is_one_entry(self, harness: Harness, ledger: Caller, state: str) -> None:
        claim = harness.claim("a", aliases=["x", "y"])
        before = _counted(ledger)[state]
        _bring(ledger, claim, state)
        assert [entry.key for entry in _listed(ledger, harness, state)] == [claim.digest.hex()]
        assert _counted(ledger)[state] == before + 1

    def test_a_key_taken_over_under_an_alias_is_one_entry(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("a", aliases=["x"]))
        harness.advance(harness.lease_ms)
        ledger.grant(harness.claim("b", aliases=["x"]))
        assert sorted(entry.text for entry in _listed(ledger, harness, "leased")) == ["a", "b"]

    # ------------------------------------------------------------------------------------------------------ filters

    def test_entries_are_chosen_by_handler_and_tenant(self, harness: Harness, ledger: Caller) -> None:
        for state in ENDINGS:
            for handler in ("one", "two"):
                claim = altered(harness.claim(f"{state} {handler}"), handler=handler)
                _bring(ledger, claim, state)
                elsewhere = altered(claim, tenant=f"{harness.namespace} 2", digest=harness.digest(f"2 {claim.text}"))
                _bring(ledger, elsewhere, state)
        for state in ENDINGS:
            (entry,) = _listed(ledger, harness, state, handler="two")
            assert (entry.text, entry.handler) == (f"{state} two", "two")
            assert len(_listed(ledger, harness, state)) == 2
        assert len(_listed(ledger, harness, handler="one")) == len(ENDINGS)
        assert _listed(ledger, harness, handler="tw") == []
        assert len(_run(ledger, "entries", EntryQuery(None, 1000, tenant=f"{harness.namespace} 2"))) == 2 * len(ENDINGS)
        assert _run(ledger, "entries", EntryQuery(None, 1000, tenant=f"{harness.namespace} 3")) == []

    def test_entries_are_filtered_by_a_part_of_their_reason_in_upper_or_lower_case(
        self, harness: Harness, ledger: Caller
    ) -> None:
        reasons = ["HTTP 503 from Köln", "100% sure", "http 404 from KÖLN"]
        for at, reason in enumerate(reasons):
            ledger.settle(ledger.grant(harness.claim(f"dead {at}")), Reject(reason), b"{}")
        ledger.settle(ledger.grant(harness.claim("parked")), Uncertain("http timeout"), b"{}")
        _bring(ledger, harness.claim("leased"), "leased")
        ledger.do(harness.claim("done"), b'"http"')
        assert {entry.reason for entry in _listed(ledger, harness, "dead", reason="HTTP")} == {reasons[0], reasons[2]}
        assert len(_listed(ledger, harness, "dead", reason="köln")) == 2
        assert [entry.reason for entry in _listed(ledger, harness, reason="% S")] == ["100% sure"]
        assert len(_listed(ledger, harness, reason="http")) == 3
        assert _listed(ledger, harness, "dead", reason="%") == _listed(ledger, harness, "dead", reason="100%")
        assert _listed(ledger, harness, reason="_") == []

    def test_entries_are_chosen_by_time(self, harness: Harness, ledger: Caller) -> None:
        for state in ENDINGS:
            for name in ("before", "after"):
                _bring(ledger, harness.claim(f"{state} {name}"), state)
                harness.advance(harness.unit_ms)
        for state in ENDINGS:
            after, before = _listed(ledger, harness, state)
            assert (after.text, before.text) == (f"{state} after", f"{state} before")
            assert _listed(ledger, harness, state, since_ms=after.at_ms) == [after]
            assert _listed(ledger, harness, state, since_ms=after.at_ms + 1) == []
            assert _listed(ledger, harness, state, until_ms=after.at_ms) == [before]
            assert _listed(ledger, harness, state, since_ms=before.at_ms, until_ms=before.at_ms + 1) == [before]

    def test_a_state_that_is_none_is_an_error(self, ledger: Caller) -> None:
        for state in ("deaad", "", "replayed"):
            with pytest.raises(ConfigError, match=r"waiting.*dead"):
                _run(ledger, "entries", EntryQuery(state))

    # -------------------------------------------------------------------------------------------------- newest first

    def test_the_newest_of_all_come_first_and_no_more_than_asked_for(self, harness: Harness, ledger: Caller) -> None:
        texts: list[str] = []
        for turn in range(3):
            for state in ENDINGS:
                texts.insert(0, f"{state} {turn}")
                _bring(ledger, harness.claim(texts[0]), state)
                harness.advance(2)
        assert [entry.text for entry in _listed(ledger, harness)] == texts
        for limit in (1, 4, 7):
            listed = _run(ledger, "entries", EntryQuery(None, limit, tenant=harness.namespace))
            assert [entry.text for entry in listed] == texts[:limit]
        assert _run(ledger, "entries", EntryQuery(None, 0)) == _run(ledger, "entries", EntryQuery("done", -1)) == []

    @pytest.mark.parametrize("ending", [Done(), Reject("no"), Uncertain("?")], ids=["done", "dead", "uncertain"])
    def test_what_ended_last_comes_first_whenever_it_began(
        self, harness: Harness, ledger: Caller, ending: Ending
    ) -> None:
        slow = ledger.grant(harness.claim("slow"))
        for at in range(5):
            ledger.settle(ledger.grant(harness.claim(f"key {at}")), ending, b"{}")
        harness.advance(2)
        ledger.settle(slow, ending, b"{}")
        (newest,) = _run(ledger, "entries", EntryQuery(None, 1, tenant=harness.namespace))
        assert newest.text == "slow"

    # ------------------------------------------------------------------------------------------ counts and history

    def test_counts_are_those_of_the_entries(self, harness: Harness, ledger: Caller) -> None:
        before = _counted(ledger)
        assert list(before) == list(STATES)
        for number, state in enumerate(ENDINGS, 1):
            for at in range(number):
                _bring(ledger, harness.claim(f"{state} {at}"), state)
        after = _counted(ledger)
        grown = {state: after[state] - before[state] for state in STATES}
        assert grown == {"accepted": 0} | {state: number for number, state in enumerate(ENDINGS, 1)}
        assert all(len(_listed(ledger, harness, state)) == grown[state] for state in STATES)

    @pytest.mark.parametrize("state", list(ENDINGS))
    def test_the_history_of_a_key_begins_with_its_present_state(
        self, harness: Harness, ledger: Caller, other: Caller, state: str
    ) -> None:
        claim = harness.claim("a")
        key = claim.digest.hex()
        assert _run(ledger, "history", key) == []
        _bring(ledger, claim, state)
        _bring(ledger, harness.claim("b"), state)
        assert _run(other, "history", key) == _run(other, "history", key.upper())
        (entry,) = _run(other, "history", key)
        assert entry == next(one for one in _listed(ledger, harness, state) if one.text == "a")

    @pytest.mark.parametrize("key", ["", "nonsense", "abc", "zz" * 16, "00" * 15, "00" * 17])
    def test_the_history_of_a_malformed_key_is_an_error(self, ledger: Caller, key: str) -> None:
        with pytest.raises(ConfigError, match="hexadecimal"):
            _run(ledger, "history", key)


def _bring(ledger: Caller, claim: Claim, state: str) -> None:
    """Bring a key to a state."""
    granted = ledger.grant(claim)
    ending = ENDINGS[state]
    if ending is not None:
        event = b"{}" if isinstance(ending, Reject | Uncertain) else None
        assert ledger.settle(granted, ending, event) is True


def _run(ledger: Caller, method: str, *asked: Any, **filters: Any) -> Any:
    catalog: Catalog = ledger.ledger  # type: ignore[assignment] # every ledger has one
    work: Coroutine[Any, Any, Any] = getattr(catalog, method)(*asked, **filters)
    return ledger.run(work)


def _listed(ledger: Caller, harness: Harness, state: str | None = None, **filters: Any) -> list[Entry]:
    """The entries of this harness. Tests may share a store."""
    listed: list[Entry] = _run(
        ledger, "entries", EntryQuery(state, 100_000, **{"tenant": harness.namespace, **filters})
    )
    return listed


def _counted(ledger: Caller) -> dict[str, int]:
    counted: dict[str, int] = _run(ledger, "counts")
    return counted


# Laws of `purge`: live leases, retries and dead letters stay; settled keys go after their retention.

SWEPT_MS = 60_000  # a store may round the time of a purge to whole minutes


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

    def test_purge_keeps_keys_that_wait_for_a_retry(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=harness.unit_ms)
        ledger.settle(ledger.grant(claim), Retry(20 * harness.unit_ms / 1000))
        harness.advance(12 * harness.unit_ms)
        ledger.purge()
        assert isinstance(ledger.claim(claim), Busy)

    def test_purge_keeps_keys_that_are_due_for_a_retry(self, harness: Harness, ledger: Caller) -> None:
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

    def test_purge_forgets_an_unclaimed_retry_with_all_its_aliases(self, harness: Harness, ledger: Caller) -> None:
        long_ms = 10 * SWEPT_MS if harness.clock else 100 * harness.unit_ms
        claim = harness.claim("a", aliases=["x"], retention_ms=harness.unit_ms, alias_retention_ms=long_ms)
        ledger.settle(ledger.grant(claim), Retry(harness.unit_ms / 1000))
        harness.advance(2 * harness.unit_ms + (SWEPT_MS if harness.clock else 0))
        ledger.purge()
        assert ledger.grant(harness.claim("b", aliases=["x"])).attempt == 1
        assert ledger.grant(harness.claim("a")).attempt == 1

    def test_purge_deletes_expired_keys_and_at_most_the_limit(self, harness: Harness, ledger: Caller) -> None:
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
        if harness.clock:  # a store that expires records itself may have nothing left to purge
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

    def test_dead_letters_are_kept_by_purge_and_visible(self, harness: Harness, ledger: Caller) -> None:
        dead, parked = harness.claim("dead"), harness.claim("parked")
        ledger.settle(ledger.grant(dead), Reject("no such customer"), b'{"id":1}')
        ledger.settle(ledger.grant(parked), Uncertain("read timeout"), b'{"id":2}')
        harness.advance(harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        ledger.purge()
        assert _seen(ledger, dead, "dead") == [("dead", "no such customer", b'{"id":1}')]
        assert _seen(ledger, parked, "uncertain") == [("uncertain", "read timeout", b'{"id":2}')]
        assert _seen(ledger, dead, "uncertain") == _seen(ledger, parked, "done") == []

    def test_a_dead_letter_stays_when_its_key_is_claimed_again_after_the_retention(
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

    def test_an_effect_with_aliases_is_one_dead_letter(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x", "y"])
        ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
        assert [entry.key for entry in ledger.entries(claim)] == [claim.digest.hex()]

    def test_the_newest_dead_letter_comes_first(self, harness: Harness, ledger: Caller) -> None:
        claims = harness.claims(5)
        for claim in claims:
            ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
            harness.advance(2)
        everything = [ledger.entries(claim, "dead")[0] for claim in claims]
        times = [entry.at_ms for entry in everything]
        assert times == sorted(times)
        listed = ledger.run(ledger.ledger.entries(EntryQuery("dead", 3)))  # type: ignore[attr-defined]
        assert [entry.key for entry in listed] == [claim.digest.hex() for claim in reversed(claims)][:3]

    def test_reading_the_catalog_changes_nothing(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        assert ledger.entries(claim) == ledger.entries(claim)
        assert ledger.settle(granted, Done()) is True


def _seen(ledger: Caller, claim: Claim, state: str | None = None) -> list[tuple[str, str, bytes | None]]:
    return [(entry.state, entry.reason, entry.event) for entry in ledger.entries(claim, state)]

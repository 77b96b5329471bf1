"""The catalog on PostgreSQL: snapshots, and how unsettled keys are found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.ledgers.postgres.stores import connected, empty

from semel.ledgers.postgres import PostgresLedger, catalog
from semel.ports import EntryQuery
from semel.testing.harness import FakeClock, Harness, InboxCaller, arrival
from semel.values.inbox import GivenUp
from semel.values.outcome import Reject, Release, Retry

SCHEMA = "semel"
SOON_S = 20.0  # limit for things that happen at once, on a loaded machine
LEAST_MS = catalog.REST_MS


# -------------------------------------------------------------------------------------- keys that are not settled


@pytest.fixture
def harness(url: str) -> Harness:
    """On an empty store."""
    asyncio.run(empty(url))
    clock = FakeClock()
    return Harness(open=lambda: PostgresLedger.from_url(url, clock=clock), clock=clock)


@pytest.fixture
def ledger(harness: Harness) -> Iterator[InboxCaller]:
    with InboxCaller(harness.open) as clerk:
        yield clerk


def _sweep(url: str, harness: Harness) -> int:
    """How far it came."""

    async def sweep() -> int:
        async with connected(url) as connection:
            return await catalog.mark_unsettled_keys(connection, harness.clock() if harness.clock else None, SCHEMA)

    return asyncio.run(sweep())


def _swept(url: str, harness: Harness) -> int:
    """Set a mark, wait for its rest, and pass the tokens below it."""
    _sweep(url, harness)
    harness.advance(LEAST_MS)
    return _sweep(url, harness)


def _told(url: str, sql: str) -> list[Any]:
    async def ask() -> list[Any]:
        async with connected(url) as connection:
            return [tuple(row) for row in await connection.fetch(sql)]

    return asyncio.run(ask())


def _open(ledger: InboxCaller) -> dict[str, list[str]]:
    """The listed entries, after a check that the counts agree."""
    counts = ledger.run(ledger.store.counts())
    listed = {
        state: sorted(entry.text for entry in ledger.run(ledger.store.entries(EntryQuery(state, 1000))))
        for state in ("leased", "waiting", "done", "dead")
    }
    assert {state: len(texts) for state, texts in listed.items()} == {state: counts[state] for state in listed}
    return {state: texts for state, texts in listed.items() if texts}


def test_marking_unsettled_keys_changes_no_listing(url: str, harness: Harness, ledger: InboxCaller) -> None:
    for claim in harness.claims(20, "done"):
        ledger.do(claim)
    ledger.grant(harness.claim("leased", aliases=["x"]))
    ledger.settle(ledger.grant(harness.claim("waiting")), Retry(3600))
    ledger.die(harness.claim("dead", aliases=["y"]))
    ledger.do(harness.claim("done with an alias", aliases=["z"]))
    before = _open(ledger)
    assert {state: len(texts) for state, texts in before.items()} == {"leased": 1, "waiting": 1, "done": 21, "dead": 1}
    assert _swept(url, harness) > 20
    assert _open(ledger) == before
    assert len(_told(url, "select digest from semel.unsettled_key")) == 3, "only what is open, with its alias, is kept"
    _swept(url, harness)
    assert _open(ledger) == before


def test_an_unsettled_key_is_listed_until_it_is_settled(url: str, harness: Harness, ledger: InboxCaller) -> None:
    names = ("settled", "granted again", "released", "waits")
    granted = {name: ledger.grant(harness.claim(name)) for name in names}
    _swept(url, harness)
    assert _open(ledger) == {"leased": sorted(names)}
    harness.advance(harness.lease_ms)
    ledger.do(harness.claim("settled"))
    again = ledger.grant(harness.claim("granted again"))
    assert ledger.settle(ledger.grant(harness.claim("released")), Release()) is True
    assert ledger.settle(ledger.grant(harness.claim("waits")), Retry(3600)) is True
    expected = {"done": ["settled"], "leased": ["granted again", "released"], "waiting": ["waits"]}
    assert _open(ledger) == expected, "what was released after a takeover stays in doubt"
    for _ in range(2):
        _swept(url, harness)
        assert _open(ledger) == expected
    assert ledger.settle(again, Reject("no")) is True
    assert _open(ledger) == {
        "done": ["settled"],
        "leased": ["released"],
        "waiting": ["waits"],
        "dead": ["granted again"],
    }
    assert granted.keys() == set(names)


def test_a_mark_is_used_only_after_its_rest(url: str, harness: Harness, ledger: InboxCaller) -> None:
    ledger.do(harness.claim("a"))
    assert _sweep(url, harness) == 0
    harness.advance(LEAST_MS - 1)
    assert _sweep(url, harness) == 0
    harness.advance(1)
    assert _sweep(url, harness) > 0


def test_a_key_of_an_uncommitted_grant_is_not_skipped(url: str, harness: Harness, ledger: InboxCaller) -> None:
    """Its token is below the mark, and its transaction ends after the marking."""
    ledger.do(harness.claim("a"))
    slow = harness.claim("slow")

    async def commit_late() -> tuple[int, int]:
        async with connected(url) as holder, connected(url) as sweeper:
            held = holder.transaction()
            await held.start()
            await holder.execute(
                "insert into semel.key (token, until_ms, first_granted_ms, retention_ms, attempts, state, suspect,"
                " digest, tenant, handler, key_text)"
                " values (nextval('semel.token'), $2, $2, 1000, 1, 1, false, $1, '', 'h', 'slow')",
                slow.digest,
                harness.clock() if harness.clock else 0,
            )
            now = harness.clock
            assert now is not None
            await catalog.mark_unsettled_keys(sweeper, now(), SCHEMA)
            harness.advance(LEAST_MS)
            too_early = await catalog.mark_unsettled_keys(sweeper, now(), SCHEMA)
            await held.commit()
            return too_early, await catalog.mark_unsettled_keys(sweeper, now(), SCHEMA)

    too_early, later = asyncio.run(commit_late())
    assert too_early == 0
    assert later > 0
    assert _open(ledger)["leased"] == ["slow"]


def test_unsettled_keys_are_marked_in_bounded_pieces(
    url: str, harness: Harness, ledger: InboxCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "TOKENS_MAX", 5)
    monkeypatch.setattr(catalog, "STATEMENTS_MAX", 2)
    ledger.claim_all(harness.claims(35))
    assert _swept(url, harness) == 10
    pieces = [_sweep(url, harness) for _ in range(3)]
    assert pieces[:2] == [10, 10]
    assert sum(pieces) >= 25
    assert len(_open(ledger)["leased"]) == 35


def test_a_purge_marks_unsettled_keys(url: str, harness: Harness, ledger: InboxCaller) -> None:
    ledger.do(harness.claim("a"))
    ledger.purge()
    harness.advance(LEAST_MS)
    ledger.purge()
    assert _told(url, "select value > 0 from semel.meta where name = 'settled_position'") == [(True,)]


def test_two_processes_that_mark_unsettled_keys_do_not_wait_for_each_other(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    ledger.do(harness.claim("a"))

    async def sweep_beside() -> int:
        async with connected(url) as first, connected(url) as second:
            async with first.transaction():
                await catalog.mark_unsettled_keys(first, 1, SCHEMA)
                return await asyncio.wait_for(catalog.mark_unsettled_keys(second, 10**15, SCHEMA), timeout=SOON_S)

    assert asyncio.run(sweep_beside()) == 0


# ------------------------------------------------------------------------------------------------- reading, only

READINGS: dict[str, Callable[[InboxCaller], Awaitable[Any]]] = {
    "entries": lambda clerk: clerk.store.entries(EntryQuery()),
    "entries by reason": lambda clerk: clerk.store.entries(EntryQuery(reason="NO")),
    "history": lambda clerk: clerk.store.history("00" * 16),
    "counts": lambda clerk: clerk.store.counts(),
    "depths": lambda clerk: clerk.store.depths(),
}


@pytest.mark.parametrize("what", list(READINGS))
def test_a_query_does_not_wait_for_writers(url: str, harness: Harness, ledger: InboxCaller, what: str) -> None:
    ledger.put(arrival(harness, "a"))
    ledger.finish(GivenUp(ledger.take_one(harness), "no"))
    ledger.put(arrival(harness, "b"))
    ledger.grant(harness.claim("c"))

    async def read_beside() -> Any:
        async with connected(url) as writer, writer.transaction():
            for table in ("key", "dead_letter", "inbox", "inbox_key", "meta", "decision", "unsettled_key", "subject"):
                await writer.execute(f"lock table semel.{table} in exclusive mode")  # the strongest lock of a writer
                await writer.execute(
                    f"update semel.{table} set {'value = value' if table == 'meta' else 'digest = digest'}"
                )
            reader = harness.open()
            try:
                return await asyncio.wait_for(READINGS[what](_Asked(reader)), timeout=SOON_S)  # type: ignore[arg-type]
            finally:
                await reader.close()

    assert asyncio.run(read_beside()) is not None


class _Asked:
    """Adapts a ledger to the queries that take a caller."""

    def __init__(self, store: Any) -> None:
        self.store = store


def test_a_query_cannot_write(url: str, harness: Harness) -> None:
    async def write() -> None:
        async with connected(url) as connection, catalog._snapshot(connection):
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await connection.execute("delete from semel.dead_letter")

    asyncio.run(write())

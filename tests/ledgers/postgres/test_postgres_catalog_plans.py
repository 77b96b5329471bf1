"""Queries of the catalog read few rows, however many there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from hashlib import md5
from typing import Any

import pytest
from tests.ledgers.postgres.plans import plans_of
from tests.ledgers.postgres.stores import connected

from semel.ledgers.entries import FOREVER_MS
from semel.ledgers.postgres import PostgresLedger, catalog
from semel.ledgers.postgres.statements import statements
from semel.ports import EntryQuery
from semel.testing.harness import InboxCaller

SCHEMA = "semel"

FILLED = """
    insert into semel.key (token, until_ms, first_granted_ms, retention_ms, attempts, state, outcome, suspect, digest,
                           tenant, handler, key_text)
    select nextval('semel.token'), 2000000000000 + n, n, 1000, 1, 3, 1, false, decode(md5(n::text), 'hex'),
           't' || n % 7, 'h' || n % 5, n::text
    from generate_series(1, 30000) n;
    insert into semel.dead_letter (id, digest, outcome, reason, attempts, settled_ms, expires_ms, tenant, handler,
                                   key_text, event)
    select nextval('semel.token'), decode(md5('l' || n), 'hex'), 2 + n % 2, 'no', 1, n, n, 't', 'h', 'l', '{}'
    from generate_series(1, 20000) n;
    insert into semel.inbox (id, token, due_ms, accepted_ms, retention_ms, expired_leases, state, digest, lane, tenant,
                             only_handler, key_text, event)
    select nextval('semel.token'), 0, n, n, 1, 0, 1, decode(md5('i' || n), 'hex'), 'h', 't', '', 'i', '{}'
    from generate_series(1, 20000) n;
    update semel.meta set value = (select last_value from semel.token) where name = 'settled_position';
    analyze;
"""

LISTED = {  # the index that finds the newest hundred of a state
    "accepted": "inbox_pkey",
    "leased": "key_token",
    "waiting": "key_token",
    "done": "key_token",
    "dead": "dead_letter_undecided",
    "uncertain": "dead_letter_undecided",
}


@pytest.fixture(scope="module")
def filled(url: str) -> str:
    async def fill() -> None:
        async with connected(url) as connection:
            await connection.execute(FILLED)
            await connection.execute("vacuum semel.key")  # as the server does by itself, when it has time

    asyncio.run(fill())
    return url


@pytest.mark.parametrize("filters", [{}, {"handler": "h1"}, {"tenant": "t3"}], ids=["all", "handler", "tenant"])
@pytest.mark.parametrize("state", list(LISTED))
def test_the_newest_entries_of_a_state_are_read_by_an_index(filled: str, state: str, filters: dict[str, str]) -> None:
    base: dict[str, Any] = {"handler": "", "tenant": None, "reason": "", "since_ms": 0, "until_ms": None}
    asked = EntryQuery(state=state, limit=100, **(base | filters))
    plans = asyncio.run(plans_of(filled, lambda connection: catalog.entries(connection, asked, SCHEMA)))
    text = "\n".join(plans)
    assert "Seq Scan" not in text
    assert LISTED[state] in text
    if state not in ("leased", "waiting"):  # few of them: those are sorted
        assert "Sort" not in text


FILTERS = (100, "", None, 0, FOREVER_MS)
KEY = md5(b"l7").digest()  # of a dead letter
QUESTIONS: dict[str, tuple[Sequence[str], tuple[Any, ...]]] = {  # how each is asked
    "accepted_entries": (catalog._LIST_SETTINGS, FILTERS),
    "done_entries": (catalog._LIST_SETTINGS, FILTERS),
    "dead_letter_entries": (catalog._LIST_SETTINGS, (*FILTERS, 2)),
    "unsettled_entries": (catalog._LIST_SETTINGS, (*FILTERS, 1)),
    "key_entry": (catalog._READ_SETTINGS, (KEY,)),
    "inbox_entries_of_key": (catalog._READ_SETTINGS, (KEY,)),
    "dead_letters_of_key": (catalog._READ_SETTINGS, (KEY,)),
    "count_unsettled": (catalog._READ_SETTINGS, ()),
}


@pytest.mark.parametrize("name", list(QUESTIONS))
def test_a_query_for_few_of_many_entries_reads_few_rows(filled: str, name: str) -> None:
    """Not only planned so: counted."""
    settings, asked = QUESTIONS[name]

    async def looked_at() -> float:
        async with connected(filled) as connection, catalog._snapshot(connection, settings):
            told = await connection.fetchval(f"explain (analyze, format json) {statements(SCHEMA)[name]}", *asked)
            return _rows_read(json.loads(told)[0]["Plan"])

    assert asyncio.run(looked_at()) <= 500


def _rows_read(plan: dict[str, Any]) -> float:
    """Rows that all scans returned or filtered out."""
    own = 0.0
    if "Relation Name" in plan:
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return own + sum(_rows_read(child) for child in plan.get("Plans", ()))


def test_settled_keys_are_counted_by_an_index_alone(filled: str) -> None:
    plans = asyncio.run(plans_of(filled, lambda connection: catalog.counts(connection, SCHEMA)))
    text = "\n".join(plans)
    assert "Seq Scan" not in text
    assert "Index Only Scan using key_token on key" in text
    counted = asyncio.run(_counted(filled))
    assert counted == {
        "accepted": 20_000,
        "leased": 0,
        "waiting": 0,
        "done": 30_000,
        "dead": 10_000,
        "uncertain": 10_000,
    }


async def _counted(url: str) -> dict[str, int]:
    ledger = PostgresLedger.from_url(url)
    try:
        return await ledger.counts()
    finally:
        await ledger.close()


def test_a_search_by_reason_reads_page_by_page_and_stops_at_its_limit(filled: str) -> None:
    with InboxCaller(partial(PostgresLedger.from_url, filled)) as clerk:
        found = clerk.run(clerk.store.entries(EntryQuery("dead", 3, reason="NO")))
        assert [entry.reason for entry in found] == ["no"] * 3
        assert found[0].at_ms > found[-1].at_ms
        assert clerk.run(clerk.store.entries(EntryQuery("dead", 3, reason="yes"))) == []

"""Queries on the ledger and the inbox for operators, newest first. Each query uses one snapshot and writes nothing.

Unsettled keys are found without reading settled keys: `mark_unsettled_keys`, which runs beside a purge, periodically
records up to which token all keys are settled, and the few that are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from semel.ledgers.entries import (
    DEAD_LETTER_OUTCOMES,
    FOREVER_MS,
    LATE_GRANTS,
    OPEN_STATES,
    by_generation,
    decided_entry_of,
    entry_of,
    newest_first,
)
from semel.ledgers.postgres.rows import storable_text
from semel.ledgers.postgres.statements import statements
from semel.ports import STATES, Entry, EntryQuery

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

PAGE = 1000  # rows fetched at a time when only some of them match
TOKENS_MAX = 200_000  # tokens examined by one statement: a fraction of a second
STATEMENTS_MAX = 20  # in one call; an event with a dead letter uses three tokens
REST_MS = 60_000  # delay between setting a mark and using it

# Operators may filter by anything: each query gets its own plan, and never reads a whole table. A listing has a limit:
# it reads an index from its end, and looks up each row.
_READ_SETTINGS = ("plan_cache_mode = force_custom_plan", "enable_seqscan = off", "jit = off")
_LIST_SETTINGS = (
    *_READ_SETTINGS,
    *(f"enable_{way} = off" for way in ("sort", "bitmapscan", "hashjoin", "mergejoin")),
    "max_parallel_workers_per_gather = 0",
)


async def entries(connection: Connection, query: EntryQuery, schema: str) -> list[Entry]:
    if query.limit <= 0:
        return []
    listed: list[Entry] = []
    async with _snapshot(connection, _LIST_SETTINGS):
        for state in STATES:
            if query.state in (None, state):
                listed += await _entries_of_state(connection, state, query, schema)
    return newest_first(listed, query.limit)


async def _entries_of_state(connection: Connection, state: str, query: EntryQuery, schema: str) -> list[Entry]:
    """Return the newest entries of one state, at most as many as requested."""
    if query.reason and state in ("leased", "done"):
        return []  # they have no reason
    numbers: tuple[int, ...] = ()
    if state in DEAD_LETTER_OUTCOMES:
        name, numbers = "dead_letter_entries", (DEAD_LETTER_OUTCOMES[state],)
    elif state in OPEN_STATES:
        name, numbers = "unsettled_entries", (OPEN_STATES[state],)
    else:
        name = "accepted_entries" if state == "accepted" else "done_entries"
    sql = statements(schema)[name]
    tenant = None if query.tenant is None else storable_text(query.tenant)
    until_ms = FOREVER_MS if query.until_ms is None else min(max(query.until_ms, 0), FOREVER_MS)
    filters = (storable_text(query.handler), tenant, max(query.since_ms, 0), until_ms, *numbers)
    if not query.reason:
        limit = min(query.limit + (LATE_GRANTS if state == "done" else 0), FOREVER_MS)
        return [entry_of(row) for row in await connection.fetch(sql, limit, *filters)]
    matching: list[Entry] = []
    async for row in connection.cursor(sql, FOREVER_MS, *filters, prefetch=PAGE):
        entry = entry_of(row)
        if query.reason.casefold() in entry.reason.casefold():
            matching.append(entry)
            if len(matching) == query.limit:
                break
    return matching


async def history(connection: Connection, digest: bytes, schema: str) -> list[Entry]:
    sql = statements(schema)
    async with _snapshot(connection):
        listed = [entry_of(row) for row in await connection.fetch(sql["key_entry"], digest)]
        listed += [entry_of(row) for row in await connection.fetch(sql["inbox_entries_of_key"], digest)]
        listed += [decided_entry_of(row) for row in await connection.fetch(sql["dead_letters_of_key"], digest)]
    return by_generation(listed)


async def counts(connection: Connection, schema: str) -> dict[str, int]:
    """Count the entries of each state. Small tables are counted row by row; settled keys by an index."""
    sql = statements(schema)
    async with _snapshot(connection):
        leased, waiting, begun_items = await connection.fetchrow(sql["count_unsettled"]) or (0, 0, 0)
        items = await connection.fetchval(sql["count_inbox"])
        dead_letters = {row[0]: row[1] for row in await connection.fetch(sql["count_dead_letters"])}
        keys, aliases, not_done = await connection.fetchrow(sql["count_keys"]) or (0, 0, 0)
    return {
        **dict.fromkeys(STATES, 0),
        "accepted": items - begun_items,
        "leased": leased,
        "waiting": waiting,
        **{state: dead_letters.get(outcome, 0) for state, outcome in DEAD_LETTER_OUTCOMES.items()},
        "done": keys - aliases - leased - waiting - not_done,
    }


async def mark_unsettled_keys(connection: Connection, now: int | None, schema: str) -> int:
    """Record up to which token all keys are settled. The work is bounded and blocks no caller.

    Returns the number of examined tokens."""
    total = 0
    for _ in range(STATEMENTS_MAX):
        sql = statements(schema)["mark_unsettled_keys"]
        examined: int = await connection.fetchval(sql, TOKENS_MAX, REST_MS, now)
        total += examined
        if examined < TOKENS_MAX:
            break
    return total


@asynccontextmanager
async def _snapshot(connection: Connection, settings: Sequence[str] = _READ_SETTINGS) -> AsyncIterator[None]:
    """Run a block in one read-only snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("; ".join(f"set local {setting}" for setting in settings))
        yield

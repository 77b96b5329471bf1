"""Queries on the ledger and the inbox for operators, newest first. Each query uses one snapshot and writes nothing.

Open keys are found without reading settled keys: `sweep`, which runs beside a purge, periodically records up to which
token all keys are settled, and the few that are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from semel.ledgers.postgres.rows import shown
from semel.ledgers.postgres.statements import statements
from semel.ports import STATES, Entry, EntryQuery
from semel.values.attempts import load
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

FOREVER_MS = 2**63 - 1
LATE = 1000  # done entries are read in the order of their grants: so many later grants may have ended earlier
PAGE = 1000  # rows fetched at a time when only some of them match
SWEEP = 200_000  # tokens examined by one statement: a fraction of a second
PIECES = 20  # statements in one sweep; an event with a dead letter uses three tokens
REST_MS = 60_000  # delay between setting a mark and using it
DECISIONS = {1: "replayed", 2: "discarded"}

_OPEN = {"leased": 1, "waiting": 2}
_OUTCOMES = {"dead": 2, "uncertain": 3}

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
                listed += await _of_state(connection, state, query, schema)
    listed.sort(key=lambda entry: entry.at_ms, reverse=True)  # stable: entries of one time stay in the order read
    return listed[: query.limit]


async def _of_state(connection: Connection, state: str, query: EntryQuery, schema: str) -> list[Entry]:
    """Return the newest entries of one state, at most as many as requested."""
    if query.reason and state in ("leased", "done"):
        return []  # they have no reason
    late = LATE if state == "done" else 0
    name, codes = _statement(state)
    tenant = None if query.tenant is None else shown(query.tenant)
    until = FOREVER_MS if query.until_ms is None else query.until_ms
    filters = (shown(query.handler), tenant, max(query.since_ms, 0), min(max(until, 0), FOREVER_MS), *codes)
    sql = statements(schema)[name]
    if not query.reason:
        return [_entry(row) for row in await connection.fetch(sql, min(query.limit + late, FOREVER_MS), *filters)]
    found: list[Entry] = []
    async for row in connection.cursor(sql, FOREVER_MS, *filters, prefetch=PAGE):
        entry = _entry(row)
        if query.reason.casefold() in entry.reason.casefold():
            found.append(entry)
            if len(found) == query.limit:
                break
    return found


def _statement(state: str) -> tuple[str, tuple[int, ...]]:
    if state in _OUTCOMES:
        return "letter_entries", (_OUTCOMES[state],)
    if state in _OPEN:
        return "open_entries", (_OPEN[state],)
    return ("accepted_entries" if state == "accepted" else "done_entries"), ()


async def history(connection: Connection, k: bytes, schema: str) -> list[Entry]:
    sql = statements(schema)
    async with _snapshot(connection):
        found = [
            _entry(row) for name in ("key_now", "letters_waiting_of") for row in await connection.fetch(sql[name], k)
        ]
        for row in await connection.fetch(sql["letters_of"], k):
            *columns, what, by, at, reason = row
            found.append(_with_decision(_entry(columns), what, by, at, reason))
    found.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
    return found


async def counts(connection: Connection, schema: str) -> dict[str, int]:
    """Count the entries of each state. Small tables are counted row by row; settled keys by an index."""
    sql = statements(schema)
    found = dict.fromkeys(STATES, 0)
    async with _snapshot(connection):
        leased, waiting, begun = await _row(connection, sql["count_open"])
        (items,) = await _row(connection, sql["count_inbox"])
        dead = {row[0]: row[1] for row in await connection.fetch(sql["count_letters"])}
        everything, aliases, ended = await _row(connection, sql["count_keys"])
    found |= {"accepted": items - begun, "leased": leased, "waiting": waiting}
    found |= {state: dead.get(outcome, 0) for state, outcome in _OUTCOMES.items()}
    found["done"] = everything - aliases - leased - waiting - ended
    return found


async def sweep(connection: Connection, now: int | None, schema: str) -> int:
    """Record up to which token all keys are settled. The work is bounded and blocks no caller.

    Returns the number of examined tokens."""
    examined = 0
    for _ in range(PIECES):
        piece: int = await connection.fetchval(statements(schema)["linger"], SWEEP, REST_MS, now)
        examined += piece
        if piece < SWEEP:
            break
    return examined


def key_of(text: str) -> bytes:
    """Parse a key as operators write it: hexadecimal digits of its digest."""
    try:
        k = bytes.fromhex(text)
    except ValueError:
        k = b""
    if len(k) != DIGEST_BYTES:
        raise ConfigError(
            f"key {text[:80]!r}: expected {2 * DIGEST_BYTES} hexadecimal digits, as `semel events list` shows them"
        )
    return k


@asynccontextmanager
async def _snapshot(connection: Connection, settings: Sequence[str] = _READ_SETTINGS) -> AsyncIterator[None]:
    """Run a block in one read-only snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("; ".join(f"set local {setting}" for setting in settings))
        yield


async def _row(connection: Connection, sql: str) -> Iterator[Any]:
    row = await connection.fetchrow(sql)
    assert row is not None
    return iter(row)


def _entry(columns: Any) -> Entry:
    key, handler, text, tenant, state, reason, *rest, attempt_log = columns
    decoded = reason.decode(errors="replace") if isinstance(reason, bytes) else reason  # a waiting key keeps bytes
    return replace(Entry(key, handler, text, tenant, state, decoded, *rest), attempt_log=load(attempt_log))


def _with_decision(entry: Entry, what: int | None, by: str, at_ms: int, reason: str) -> Entry:
    if what is None:
        return entry
    although_done = ", though it was done," if entry.result is not None else ""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return replace(entry, decision=f"{DECISIONS[what]}{although_done} by {by} at {at} UTC: {reason}")

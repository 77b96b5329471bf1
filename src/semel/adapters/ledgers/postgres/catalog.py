"""The read side: what the ledger and the inbox hold, newest first. One snapshot for each question; nothing is written.

Keys that are settled are never looked at to find those that are not: `sweep`, which runs beside a purge, notes from
time to time how far all keys are settled, and the few that are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from semel.adapters.ledgers.postgres.rows import shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.ports import STATES, Asked, Entry
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES
from semel.values.tried import load

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

FOREVER_MS = 2**63 - 1
LATE = 1000  # what is done is read in the order of grants: so many that were granted later may have ended before
PAGE = 1000  # rows at a time, where only some of them are wanted
SWEEP = 200_000  # tokens passed over by one statement: a fraction of a second
PIECES = 20  # of them in one sweep; an event with a letter spends three tokens
REST_MS = 60_000  # between the making of a mark and its use
DECISIONS = {1: "replayed", 2: "discarded"}

_OPEN = {"leased": 1, "waiting": 2}
_OUTCOMES = {"dead": 2, "uncertain": 3}

# People may ask for anything: each question is planned for itself, and never by reading all of a table. What is listed
# is read in the order of an index, from its end, and looked up one by one: it has a limit.
_LOOKING = ("plan_cache_mode = force_custom_plan", "enable_seqscan = off", "jit = off")
_LISTING = (
    *_LOOKING,
    *(f"enable_{way} = off" for way in ("sort", "bitmapscan", "hashjoin", "mergejoin")),
    "max_parallel_workers_per_gather = 0",
)


async def entries(connection: Connection, asked: Asked, schema: str) -> list[Entry]:
    if asked.limit <= 0:
        return []
    listed: list[Entry] = []
    async with _snapshot(connection, _LISTING):
        for state in STATES:
            if asked.state in (None, state):
                listed += await _of_state(connection, state, asked, schema)
    listed.sort(key=lambda entry: entry.at_ms, reverse=True)  # stable: what came at one time stays as it was read
    return listed[: asked.limit]


async def _of_state(connection: Connection, state: str, asked: Asked, schema: str) -> list[Entry]:
    """The newest of one state, as many as are asked for."""
    if asked.reason and state in ("leased", "done"):
        return []  # they have none
    late = LATE if state == "done" else 0
    name, codes = _statement(state)
    tenant = None if asked.tenant is None else shown(asked.tenant)
    until = FOREVER_MS if asked.until_ms is None else asked.until_ms
    filters = (shown(asked.handler), tenant, max(asked.since_ms, 0), min(max(until, 0), FOREVER_MS), *codes)
    sql = statements(schema)[name]
    if not asked.reason:
        return [_entry(row) for row in await connection.fetch(sql, min(asked.limit + late, FOREVER_MS), *filters)]
    found: list[Entry] = []
    async for row in connection.cursor(sql, FOREVER_MS, *filters, prefetch=PAGE):
        entry = _entry(row)
        if asked.reason.casefold() in entry.reason.casefold():
            found.append(entry)
            if len(found) == asked.limit:
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
            found.append(_decided(_entry(columns), what, by, at, reason))
    found.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
    return found


async def counts(connection: Connection, schema: str) -> dict[str, int]:
    """Small tables are counted row by row; of the settled keys only an index is walked."""
    sql = statements(schema)
    found = dict.fromkeys(STATES, 0)
    async with _snapshot(connection):
        leased, waiting, begun = await _row(connection, sql["count_open"])
        (letters,) = await _row(connection, sql["count_inbox"])
        dead = {row[0]: row[1] for row in await connection.fetch(sql["count_letters"])}
        everything, aliases, ended = await _row(connection, sql["count_keys"])
    found |= {"accepted": letters - begun, "leased": leased, "waiting": waiting}
    found |= {state: dead.get(outcome, 0) for state, outcome in _OUTCOMES.items()}
    found["done"] = everything - aliases - leased - waiting - ended
    return found


async def sweep(connection: Connection, now: int | None, schema: str) -> int:
    """Note how far all keys are settled. Bounded work, and nobody waits for it. Returns how many tokens were passed."""
    passed = 0
    for _ in range(PIECES):
        piece: int = await connection.fetchval(statements(schema)["linger"], SWEEP, REST_MS, now)
        passed += piece
        if piece < SWEEP:
            break
    return passed


def key_of(text: str) -> bytes:
    """The digest that a person wrote."""
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
async def _snapshot(connection: Connection, settings: Sequence[str] = _LOOKING) -> AsyncIterator[None]:
    """All that is read in it was there at one moment."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("; ".join(f"set local {setting}" for setting in settings))
        yield


async def _row(connection: Connection, sql: str) -> Iterator[Any]:
    row = await connection.fetchrow(sql)
    assert row is not None
    return iter(row)


def _entry(columns: Any) -> Entry:
    key, handler, text, tenant, state, reason, *rest, tried = columns
    said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason  # why a key waits is kept as bytes
    return replace(Entry(key, handler, text, tenant, state, said, *rest), tried=load(tried))


def _decided(entry: Entry, what: int | None, by: str, at_ms: int, reason: str) -> Entry:
    if what is None:
        return entry
    what_it_was = ", though it was done," if entry.result is not None else ""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return replace(entry, decision=f"{DECISIONS[what]}{what_it_was} by {by} at {at} UTC: {reason}")

"""Queries on the ledger and the inbox for operators, newest first, on a connection that cannot write."""

from __future__ import annotations

from typing import Any

import apsw

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
from semel.ledgers.sqlite.statements import SQL, Row, rows
from semel.ports import STATES, Entry, EntryQuery


def prepare(connection: apsw.Connection) -> None:
    """Register a case-insensitive search: SQLite itself folds the case of ASCII only."""
    connection.create_scalar_function("semel_contains", _contains, 2, deterministic=True)


def _contains(*texts: Any) -> bool:
    text, part = texts
    return part.casefold() in (text or "").casefold()


def entries(connection: apsw.Connection, query: EntryQuery) -> list[Entry]:
    found = [row for state in STATES if query.state in (None, state) for row in _of_state(connection, state, query)]
    return newest_first(map(entry_of, found), query.limit)


def _of_state(connection: apsw.Connection, state: str, query: EntryQuery) -> list[Row]:
    """Return the newest entries of one state, at most as many as requested."""
    values: dict[str, Any] = {
        "limit": max(query.limit, 0),
        "handler": query.handler,
        "tenant": query.tenant,
        "reason": query.reason,
        "since": query.since_ms,
        "until": FOREVER_MS if query.until_ms is None else query.until_ms,
    }
    if state in DEAD_LETTER_OUTCOMES:
        name, values["outcome"] = "dead_letter_entries", DEAD_LETTER_OUTCOMES[state]
    elif state in OPEN_STATES:
        name, values["lease_state"] = "lease_entries", OPEN_STATES[state]
    elif state == "accepted":
        name = "accepted_entries"
    elif query.reason:
        return []  # a done entry has no reason
    else:
        name, values["limit"] = "done_entries", values["limit"] + LATE_GRANTS
    return connection.execute(SQL[name], values).fetchall()


def history(connection: apsw.Connection, digest: bytes) -> list[Entry]:
    open_rows = rows(connection, SQL["lease_of_key"], digest) + rows(connection, SQL["inbox_items_of_key"], digest)
    records = rows(connection, SQL["records_of_key"], digest)
    return by_generation([*map(entry_of, open_rows), *map(decided_entry_of, records)])


def counts(connection: apsw.Connection) -> dict[str, int]:
    """Count the entries of each state. Small tables are counted row by row; of the records only pages are read."""
    found = dict.fromkeys(STATES, 0)
    ((found["accepted"],),) = rows(connection, SQL["count_accepted"])
    ((found["leased"], found["waiting"]),) = rows(connection, SQL["count_leases"])
    dead: dict[int, int] = dict(rows(connection, SQL["count_dead_letters"]))
    found |= {state: dead.get(outcome, 0) for state, outcome in DEAD_LETTER_OUTCOMES.items()}
    ((records, decided),) = rows(connection, SQL["count_records"])
    found["done"] = records - decided - sum(dead.values())
    return found

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
        return _read(connection, "letter_entries", values | {"outcome": DEAD_LETTER_OUTCOMES[state]})
    if state in OPEN_STATES:
        return _read(connection, "lease_entries", values | {"lease_state": OPEN_STATES[state]})
    if state == "accepted":
        return _read(connection, "accepted_entries", values)
    if query.reason:
        return []  # a done entry has no reason
    return _read(connection, "done_entries", values | {"limit": values["limit"] + LATE_GRANTS})


def _read(connection: apsw.Connection, name: str, values: dict[str, Any]) -> list[Row]:
    found: list[Row] = connection.execute(SQL[name], values).fetchall()
    return found


def history(connection: apsw.Connection, k: bytes) -> list[Entry]:
    found = [entry_of(row) for name in ("lease_of", "letters_waiting_of") for row in rows(connection, SQL[name], k)]
    return by_generation([*found, *map(decided_entry_of, rows(connection, SQL["records_of"], k))])


def counts(connection: apsw.Connection) -> dict[str, int]:
    """Count the entries of each state. Small tables are counted row by row; of the records only pages are read."""
    found = dict.fromkeys(STATES, 0)
    ((found["accepted"],),) = rows(connection, SQL["count_accepted"])
    ((found["leased"], found["waiting"]),) = rows(connection, SQL["count_leases"])
    dead: dict[int, int] = dict(rows(connection, SQL["count_letters"]))
    found |= {state: dead.get(outcome, 0) for state, outcome in DEAD_LETTER_OUTCOMES.items()}
    ((records, decided),) = rows(connection, SQL["count_records"])
    found["done"] = records - decided - sum(dead.values())
    return found

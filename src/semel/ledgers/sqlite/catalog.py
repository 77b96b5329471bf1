"""Queries on the ledger and the inbox for operators, newest first, on a connection that cannot write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import apsw
from msgspec.structs import replace

from semel.ledgers.sqlite.statements import SQL, Row, rows
from semel.ports import STATES, Entry, EntryQuery
from semel.values.attempts import load
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES

FOREVER_MS = 2**63 - 1
LATE = 1000  # done entries are read in the order of their grants: so many later grants may have ended earlier
DECISIONS = {1: "replayed", 2: "discarded"}

_LEASE_STATES = {"leased": 1, "waiting": 2}
_OUTCOMES = {"dead": 2, "uncertain": 3}


def prepare(connection: apsw.Connection) -> None:
    """Register a case-insensitive search: SQLite itself folds the case of ASCII only."""
    connection.create_scalar_function("semel_contains", _contains, 2, deterministic=True)


def _contains(*texts: Any) -> bool:
    text, part = texts
    return part.casefold() in (text or "").casefold()


def entries(connection: apsw.Connection, query: EntryQuery) -> list[Entry]:
    found = [row for state in STATES if query.state in (None, state) for row in _of_state(connection, state, query)]
    listed = [_entry(row) for row in found]
    listed.sort(key=lambda entry: entry.at_ms, reverse=True)  # stable: entries of one time stay in the order read
    return listed[: max(query.limit, 0)]


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
    if state in _OUTCOMES:
        return _read(connection, "letter_entries", values | {"outcome": _OUTCOMES[state]})
    if state in _LEASE_STATES:
        return _read(connection, "lease_entries", values | {"lease_state": _LEASE_STATES[state]})
    if state == "accepted":
        return _read(connection, "accepted_entries", values)
    if query.reason:
        return []  # a done entry has no reason
    return _read(connection, "done_entries", values | {"limit": values["limit"] + LATE})


def _read(connection: apsw.Connection, name: str, values: dict[str, Any]) -> list[Row]:
    found: list[Row] = connection.execute(SQL[name], values).fetchall()
    return found


def history(connection: apsw.Connection, k: bytes) -> list[Entry]:
    found = [_entry(row) for name in ("lease_of", "letters_waiting_of") for row in rows(connection, SQL[name], k)]
    records = rows(connection, SQL["records_of"], k)
    found += [_with_decision(_entry(row[:-4]), *row[-4:]) for row in records]
    found.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
    return found


def _entry(row: Row) -> Entry:
    *columns, attempt_log = row
    return replace(Entry(*columns), attempt_log=load(attempt_log))


def _with_decision(entry: Entry, what: int | None, by: str, at_ms: int, reason: str) -> Entry:
    if what is None:
        return entry
    although_done = ", though it was done," if entry.result is not None else ""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return replace(entry, decision=f"{DECISIONS[what]}{although_done} by {by} at {at} UTC: {reason}")


def counts(connection: apsw.Connection) -> dict[str, int]:
    """Count the entries of each state. Small tables are counted row by row; of the records only pages are read."""
    found = dict.fromkeys(STATES, 0)
    ((found["accepted"],),) = rows(connection, SQL["count_accepted"])
    ((found["leased"], found["waiting"]),) = rows(connection, SQL["count_leases"])
    dead: dict[int, int] = dict(rows(connection, SQL["count_letters"]))
    found |= {state: dead.get(outcome, 0) for state, outcome in _OUTCOMES.items()}
    ((records, decided),) = rows(connection, SQL["count_records"])
    found["done"] = records - decided - sum(dead.values())
    return found


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

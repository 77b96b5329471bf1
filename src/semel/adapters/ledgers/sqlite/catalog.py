"""The read side: what the ledger and the inbox hold, newest first. On a connection that cannot write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import apsw
from msgspec.structs import replace

from semel.adapters.ledgers.sqlite.statements import SQL, Row, rows
from semel.ports import STATES, Asked, Entry
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES
from semel.values.tried import load

FOREVER_MS = 2**63 - 1
LATE = 1000  # what is done is read in the order of grants: so many that were granted later may have ended before
DECISIONS = {1: "replayed", 2: "discarded"}

_LEASE_STATES = {"leased": 1, "waiting": 2}
_OUTCOMES = {"dead": 2, "uncertain": 3}


def prepare(connection: apsw.Connection) -> None:
    """SQLite knows capital letters of English only."""
    connection.create_scalar_function("semel_contains", _contains, 2, deterministic=True)


def _contains(*texts: Any) -> bool:
    text, part = texts
    return part.casefold() in (text or "").casefold()


def entries(connection: apsw.Connection, asked: Asked) -> list[Entry]:
    found = [row for state in STATES if asked.state in (None, state) for row in _of_state(connection, state, asked)]
    listed = [_entry(row) for row in found]
    listed.sort(key=lambda entry: entry.at_ms, reverse=True)  # stable: what came at one time stays as it was read
    return listed[: max(asked.limit, 0)]


def _of_state(connection: apsw.Connection, state: str, asked: Asked) -> list[Row]:
    """The newest of one state, as many as are asked for."""
    values: dict[str, Any] = {
        "limit": max(asked.limit, 0),
        "handler": asked.handler,
        "tenant": asked.tenant,
        "reason": asked.reason,
        "since": asked.since_ms,
        "until": FOREVER_MS if asked.until_ms is None else asked.until_ms,
    }
    if state in _OUTCOMES:
        return _read(connection, "letter_entries", values | {"outcome": _OUTCOMES[state]})
    if state in _LEASE_STATES:
        return _read(connection, "lease_entries", values | {"lease_state": _LEASE_STATES[state]})
    if state == "accepted":
        return _read(connection, "accepted_entries", values)
    if asked.reason:
        return []  # what is done needs none
    return _read(connection, "done_entries", values | {"limit": values["limit"] + LATE})


def _read(connection: apsw.Connection, name: str, values: dict[str, Any]) -> list[Row]:
    found: list[Row] = connection.execute(SQL[name], values).fetchall()
    return found


def history(connection: apsw.Connection, k: bytes) -> list[Entry]:
    found = [_entry(row) for name in ("lease_of", "letters_waiting_of") for row in rows(connection, SQL[name], k)]
    records = rows(connection, SQL["records_of"], k)
    found += [_decided(_entry(row[:-4]), *row[-4:]) for row in records]
    found.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
    return found


def _entry(row: Row) -> Entry:
    *columns, tried = row
    return replace(Entry(*columns), tried=load(tried))


def _decided(entry: Entry, what: int | None, by: str, at_ms: int, reason: str) -> Entry:
    if what is None:
        return entry
    what_it_was = ", though it was done," if entry.result is not None else ""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return replace(entry, decision=f"{DECISIONS[what]}{what_it_was} by {by} at {at} UTC: {reason}")


def counts(connection: apsw.Connection) -> dict[str, int]:
    """Small tables are counted row by row; of the records only the pages are walked."""
    found = dict.fromkeys(STATES, 0)
    ((found["accepted"],),) = rows(connection, SQL["count_accepted"])
    ((found["leased"], found["waiting"]),) = rows(connection, SQL["count_leases"])
    letters: dict[int, int] = dict(rows(connection, SQL["count_letters"]))
    found |= {state: letters.get(outcome, 0) for state, outcome in _OUTCOMES.items()}
    ((records, decided),) = rows(connection, SQL["count_records"])
    found["done"] = records - decided - sum(letters.values())
    return found


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

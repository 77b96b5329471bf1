"""Converts rows of the SQL ledgers into catalog entries."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from semel.ports import Entry
from semel.values.attempts import load
from semel.values.outcome_codec import DEAD, UNCERTAIN

FOREVER_MS = 2**63 - 1
LATE_GRANTS = 1000  # done entries are read in the order of their grants: so many later grants may have ended earlier
REPLAYED, DISCARDED = 1, 2  # stored
OPEN_STATES = {"leased": 1, "waiting": 2}  # the numbers of these states in the store
DEAD_LETTER_OUTCOMES = {"dead": DEAD, "uncertain": UNCERTAIN}


def entry_of(row: Iterable[Any]) -> Entry:
    """Build an entry from its columns: the fields of `Entry` up to the generation, then the attempt log."""
    key, handler, text, tenant, state, reason, attempts, at_ms, event, result, generation, attempt_log = row
    if isinstance(reason, bytes):
        reason = reason.decode(errors="replace")
    return Entry(
        *(key, handler, text, tenant, state, reason, attempts, at_ms, event, result, generation),
        attempt_log=load(attempt_log),
    )


def decided_entry_of(row: Iterable[Any]) -> Entry:
    """Build an entry from its columns and those of the operator's decision: number, time, operator, reason."""
    *columns, decision, decided_ms, decided_by, reason = row
    entry = entry_of(columns)
    if decision is None:
        return entry
    action = "replayed" if decision == REPLAYED else "discarded"
    although_done = ", though it was done," if entry.result is not None else ""
    at = datetime.fromtimestamp(decided_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return replace(entry, decision=f"{action}{although_done} by {decided_by} at {at} UTC: {reason}")


def newest_first(entries: Iterable[Entry], limit: int) -> list[Entry]:
    """Sort entries by time. Entries of one time stay in the order in which they were read."""
    return sorted(entries, key=lambda entry: entry.at_ms, reverse=True)[: max(limit, 0)]


def by_generation(entries: Iterable[Entry]) -> list[Entry]:
    """Sort the entries of one key: the newest generation first."""
    return sorted(entries, key=lambda entry: (entry.generation, entry.at_ms), reverse=True)

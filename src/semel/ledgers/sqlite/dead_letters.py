"""Decisions on dead letters, and the dead-letter store of another ledger.

Each function runs in one immediate transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import apsw

from semel.ledgers.entries import DISCARDED, REPLAYED
from semel.ledgers.sqlite.claims import delete_record
from semel.ledgers.sqlite.inbox import NO_TOKEN, WAITING
from semel.ledgers.sqlite.statements import SQL, rows, write_many
from semel.values.attempts import one_more
from semel.values.claim import Lease, Settlement
from semel.values.event import dump, load
from semel.values.key import split_digests
from semel.values.outcome import Reject, Uncertain
from semel.values.outcome_codec import encode_outcome, storable


class _Record(NamedTuple):
    """A record that an operator may decide about."""

    id: int
    aliases: bytes | None  # of an inbox item that was given up: all its keys
    retention_ms: int
    tenant: str
    handler: str
    text: str
    fingerprint: bytes | None
    event: bytes | None
    decode_options: bytes | None
    lane: str | None  # None: a handler gave it up
    only_handler: str | None


def replay(connection: apsw.Connection, digest: bytes, reason: str, by: str, now: int, *, force: bool = False) -> bool:
    """Withdraw the record and put the event into the inbox.

    A key that another record answers by now is not dead. With `force` the record of a success is withdrawn too; no
    event is kept for a success, so nothing goes to the inbox."""
    ((last,),) = rows(connection, SQL["last_token"])
    success = _find(connection, "answering_success", digest, now) if force else None
    if success is not None:
        _withdraw_record(connection, digest, success, last, now, reason, by)
    dead_letter = _find(connection, "undecided_dead_letter", digest)
    if dead_letter is None or rows(connection, SQL["answered_by_another"], digest, dead_letter.id, now):
        return success is not None
    connection.execute(SQL["set_last_token"], (last + 1,))
    _withdraw_record(connection, digest, dead_letter, last, now, reason, by)
    # The event of a foreign handler is not accepted here: its next delivery there is granted.
    if dead_letter.event is not None and not load(dead_letter.decode_options).foreign:
        _return_to_inbox(connection, digest, dead_letter, last + 1, now)
    return True


def discard(connection: apsw.Connection, digest: bytes, reason: str, by: str, now: int) -> bool:
    """Mark a dead letter as discarded. Its record stays and answers duplicates."""
    dead_letter = _find(connection, "undecided_dead_letter", digest)
    if dead_letter is None:
        return False
    ((last,),) = rows(connection, SQL["last_token"])
    _decide(connection, digest, dead_letter, DISCARDED, last, now, reason, by)
    return True


def _find(connection: apsw.Connection, statement: str, *bindings: bytes | int) -> _Record | None:
    found = rows(connection, SQL[statement], *bindings)
    return _Record(*found[0]) if found else None


def _withdraw_record(
    connection: apsw.Connection, digest: bytes, record: _Record, last: int, now: int, reason: str, by: str
) -> None:
    _decide(connection, digest, record, REPLAYED, last, now, reason, by)
    for key in (digest, *split_digests(record.aliases)):
        connection.execute(SQL["delete_done"], (key, record.id))


def _decide(
    connection: apsw.Connection,
    digest: bytes,
    record: _Record,
    decision: int,
    last: int,
    now: int,
    reason: str,
    by: str,
) -> None:
    connection.execute(SQL["decide"], (now, record.id))
    texts = [storable(text).decode() for text in (reason, by)]
    connection.execute(SQL["add_decision"], (record.id, digest, decision, last, now, *texts))


def _return_to_inbox(connection: apsw.Connection, digest: bytes, dead_letter: _Record, id: int, now: int) -> None:
    """Put the event into the inbox again.

    The event of a handler returns to this handler only, not to the other handlers of the event. An item that the inbox
    gave up returns as it was, and its keys move with it."""
    if dead_letter.lane is None:
        keys = [digest, *split_digests(dead_letter.aliases)]
        lane, only = dead_letter.handler, dead_letter.handler
        new_keys = [(key, id, dead_letter.fingerprint, None) for key in dict.fromkeys(keys)]
        write_many(connection, SQL["add_inbox_keys"], new_keys)
    else:
        keys = split_digests(dead_letter.aliases) or [digest]
        lane, only = dead_letter.lane, dead_letter.only_handler or ""
        for key in keys:
            connection.execute(SQL["move_key"], (key, dead_letter.id, id))
    joined = b"".join(keys)
    item = (
        *(id, digest, None if joined == digest else joined, lane, NO_TOKEN, WAITING, now, 0, now),
        *(dead_letter.retention_ms, dead_letter.tenant, only, dead_letter.text),
    )
    write_many(connection, SQL["add_inbox_items"], [item])
    write_many(connection, SQL["add_inbox_events"], [(id, dead_letter.event, dead_letter.decode_options, None)])


# ------------------------------------------------------------------------------- dead-letter store of another ledger


def keep(connection: apsw.Connection, settlements: Sequence[Settlement], now: int) -> None:
    """Keep dead letters of another ledger as records that need a decision and answer no claim here.

    Every write carries the token of the lease in that ledger. A dead letter of a holder that vanished is replaced by
    the one that the next holder keeps for the same event."""
    for settlement in settlements:
        digest, token = settlement.lease.claim.digest, settlement.lease.token
        event = None if settlement.dead_letter is None else settlement.dead_letter.event
        kept = rows(connection, SQL["dead_letters_of_another_ledger"], digest)
        same = [(id, origin) for id, origin, decided_ms, stored in kept if decided_ms is None and stored == event]
        is_stored = any(origin == token and stored == event for _, origin, _, stored in kept)  # also with a decision
        if is_stored or any(origin > token for _, origin in same):
            continue  # also if a later holder has stored its own
        for id, _ in same:
            delete_record(connection, id, (digest,))
        _add(connection, settlement, now)


def withdraw(connection: apsw.Connection, leases: Sequence[Lease]) -> None:
    """Delete the newest undecided dead letter of each lease.

    A ledger that lost its data may issue a token twice. An older dead letter then belongs to the earlier lease."""
    for lease in leases:
        kept = rows(connection, SQL["dead_letters_of_another_ledger"], lease.claim.digest)
        undecided = [id for id, origin, decided_ms, _ in kept if origin == lease.token and decided_ms is None]
        if undecided:
            delete_record(connection, max(undecided), (lease.claim.digest,))


def _add(connection: apsw.Connection, settlement: Settlement, now: int) -> None:
    claim, outcome, dead_letter = settlement.lease.claim, settlement.outcome, settlement.dead_letter
    assert isinstance(outcome, (Reject, Uncertain))
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + 1,))
    attempts, earlier = (1, ()) if dead_letter is None else (dead_letter.attempts, dead_letter.attempt_log)
    record = (
        *(last + 1, claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
        *(*encode_outcome(outcome), claim.fingerprint, attempts, now, now + claim.retention_ms),
        *(claim.tenant, claim.handler, claim.text, settlement.lease.token),
    )
    write_many(connection, SQL["add_records"], [record])
    connection.execute(SQL["add_attempt_log"], (last + 1, one_more(earlier, attempts, now, outcome.reason)))
    if dead_letter is not None:
        options = dump(dead_letter.decode_options) or None
        connection.execute(SQL["add_dead_letter"], (last + 1, dead_letter.event, options))

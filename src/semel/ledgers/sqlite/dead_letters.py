"""Decisions on dead letters, and the dead-letter store of another ledger.

Each function runs in one immediate transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from semel.ledgers.entries import DISCARDED, REPLAYED
from semel.ledgers.sqlite.inbox import NO_TOKEN, WAITING
from semel.ledgers.sqlite.statements import SQL, insert_many, rows
from semel.values.attempts import one_more
from semel.values.claim import Lease, Settlement
from semel.values.event import dump, load
from semel.values.key import split_digests
from semel.values.outcome import Reject, Uncertain
from semel.values.outcome_codec import DEAD, UNCERTAIN, storable


class _DeadLetter(NamedTuple):
    """A record that an operator may decide about."""

    id: int
    aliases: bytes | None  # all keys, where the inbox gave it up
    keep_ms: int
    tenant: str
    handler: str
    text: str
    fp: bytes | None
    event: bytes | None
    decode_options: bytes | None
    lane: str | None  # None: a handler gave it up
    only_handler: str | None


def replay(connection: apsw.Connection, k: bytes, reason: str, by: str, now: int, *, force: bool = False) -> bool:
    """Withdraw the record and put the event into the inbox.

    A key that another record answers by now is not dead. With `force` the record of a success is withdrawn too; no
    event is kept for a success, so nothing goes to the inbox."""
    ((last,),) = rows(connection, SQL["last_token"])
    done = _done(connection, k, now) if force else None
    if done is not None:
        _step_back(connection, k, done, last, now, reason, by)
    dead_letter = _undecided(connection, k)
    if dead_letter is None or rows(connection, SQL["answered_by_another"], k, dead_letter.id, now):
        return done is not None
    connection.execute(SQL["set_last_token"], (last + 1,))
    _step_back(connection, k, dead_letter, last, now, reason, by)
    if dead_letter.event is None or load(dead_letter.decode_options).foreign:
        pass  # its handler runs elsewhere: the next delivery of the event is granted
    elif dead_letter.lane is None:
        _return_to_handler(connection, k, dead_letter, last + 1, now)
    else:
        _return_to_lane(connection, k, dead_letter, last + 1, now)
    return True


def _step_back(
    connection: apsw.Connection, k: bytes, dead_letter: _DeadLetter, last: int, now: int, reason: str, by: str
) -> None:
    _decide(connection, k, dead_letter, REPLAYED, last, now, reason, by)
    for digest in (k, *split_digests(dead_letter.aliases)):
        connection.execute(SQL["forget_done"], (digest, dead_letter.id))


def discard(connection: apsw.Connection, k: bytes, reason: str, by: str, now: int) -> bool:
    """Mark a dead letter as discarded. Its record stays and answers duplicates."""
    dead_letter = _undecided(connection, k)
    if dead_letter is None:
        return False
    ((last,),) = rows(connection, SQL["last_token"])
    _decide(connection, k, dead_letter, DISCARDED, last, now, reason, by)
    return True


def _undecided(connection: apsw.Connection, k: bytes) -> _DeadLetter | None:
    found = rows(connection, SQL["undecided_letter"], k)
    return _DeadLetter(*found[0]) if found else None


def _done(connection: apsw.Connection, k: bytes, now: int) -> _DeadLetter | None:
    found = rows(connection, SQL["answering_done"], k, now)
    return _DeadLetter(*found[0]) if found else None


def _decide(
    connection: apsw.Connection,
    k: bytes,
    dead_letter: _DeadLetter,
    what: int,
    last: int,
    now: int,
    reason: str,
    by: str,
) -> None:
    connection.execute(SQL["decide"], (now, dead_letter.id))
    texts = [storable(text).decode() for text in (reason, by)]
    connection.execute(SQL["add_decision"], (dead_letter.id, k, what, last, now, *texts))


def _return_to_handler(connection: apsw.Connection, k: bytes, dead_letter: _DeadLetter, id: int, now: int) -> None:
    """Put the event into the inbox for the one handler that gave it up, not for the other handlers of the event."""
    keys = [k, *split_digests(dead_letter.aliases)]
    _add(connection, k, dead_letter, id, now, keys, lane=dead_letter.handler, only=dead_letter.handler)
    insert_many(connection, SQL["add_keys"], [(digest, id, dead_letter.fp, None) for digest in dict.fromkeys(keys)])


def _return_to_lane(connection: apsw.Connection, k: bytes, dead_letter: _DeadLetter, id: int, now: int) -> None:
    """Put the event into the inbox as it was when it was given up. Its inbox keys move with it."""
    keys = list(split_digests(dead_letter.aliases)) or [k]
    _add(connection, k, dead_letter, id, now, keys, lane=dead_letter.lane, only=dead_letter.only_handler)
    for digest in keys:
        connection.execute(SQL["move_key"], (digest, dead_letter.id, id))


def _add(
    connection: apsw.Connection,
    k: bytes,
    dead_letter: _DeadLetter,
    id: int,
    now: int,
    keys: Iterable[bytes],
    *,
    lane: Any,
    only: Any,
) -> None:
    several = b"".join(keys)
    row = (
        *(id, k, None if several == k else several, lane, NO_TOKEN, WAITING, now, 0, now, dead_letter.keep_ms),
        *(dead_letter.tenant, only, dead_letter.text),
    )
    insert_many(connection, SQL["add_to_inbox"], [row])
    insert_many(connection, SQL["add_events"], [(id, dead_letter.event, dead_letter.decode_options, None)])


# ------------------------------------------------------------------------------- dead-letter store of another ledger


def keep(connection: apsw.Connection, settlements: Sequence[Settlement], now: int) -> None:
    """Keep dead letters of another ledger as records that need a decision and answer no claim here.

    Every write carries the token of the lease in that ledger. A dead letter of a holder that vanished is replaced by
    the one that the next holder keeps for the same event."""
    for settlement in settlements:
        token, event = (
            settlement.lease.token,
            settlement.dead_letter.event if settlement.dead_letter is not None else None,
        )
        kept = rows(connection, SQL["kept"], settlement.lease.claim.digest)
        same = [(record, source) for record, source, decided, held in kept if decided is None and held == event]
        here = any(source == token and held == event for _, source, _, held in kept)  # also if it is decided
        if here or any(source > token for _, source in same):
            continue  # it is stored already, or a later holder's is
        for record, _ in same:
            _forget(connection, record)
        _add_kept(connection, settlement, now)


def withdraw(connection: apsw.Connection, leases: Sequence[Lease]) -> None:
    """Delete the newest undecided dead letter of each lease.

    A ledger that lost its data may issue a token twice. An older dead letter then belongs to the earlier lease."""
    for lease in leases:
        kept = rows(connection, SQL["kept"], lease.claim.digest)
        undecided = [record for record, source, decided, _ in kept if source == lease.token and decided is None]
        if undecided:
            _forget(connection, max(undecided))


def _add_kept(connection: apsw.Connection, settlement: Settlement, now: int) -> None:
    claim, outcome, dead_letter = settlement.lease.claim, settlement.outcome, settlement.dead_letter
    assert isinstance(outcome, (Reject, Uncertain))
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + 1,))
    connection.execute(
        SQL["keep_record"],
        (
            *(last + 1, claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
            *(DEAD if isinstance(outcome, Reject) else UNCERTAIN, storable(outcome.reason), claim.fingerprint),
            *(dead_letter.attempts if dead_letter is not None else 1, now, now + claim.retention_ms),
            *(claim.tenant, claim.handler, claim.text, settlement.lease.token),
        ),
    )
    before, attempts = (dead_letter.attempt_log, dead_letter.attempts) if dead_letter is not None else ((), 1)
    connection.execute(SQL["add_tried"], (last + 1, one_more(before, attempts, now, outcome.reason)))
    if dead_letter is not None:
        connection.execute(SQL["add_letter"], (last + 1, dead_letter.event, dump(dead_letter.decode_options) or None))


def _forget(connection: apsw.Connection, record: int) -> None:
    connection.execute(SQL["forget_record"], (record,))
    connection.execute(SQL["forget_letter"], (record,))
    connection.execute(SQL["forget_tried"], (record,))

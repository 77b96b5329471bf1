"""The letterbox of a ledger elsewhere: its letters become records here that wait for a person and answer no claim.

The token in every write is the one of the lease there. What a holder kept before it vanished makes room for what the
next one keeps of the same event.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, rows
from semel.adapters.ledgers.sqlite.store import DEAD, UNCERTAIN, storable
from semel.values.claim import Lease, Settlement
from semel.values.outcome import Reject, Uncertain
from semel.values.reading import dump
from semel.values.tried import one_more


def keep(connection: apsw.Connection, settlements: Sequence[Settlement], now: int) -> None:
    """All of them, or none: in one immediate transaction."""
    for settlement in settlements:
        token, event = settlement.lease.token, settlement.letter.event if settlement.letter is not None else None
        kept = rows(connection, SQL["kept"], settlement.lease.claim.digest)
        same = [(record, source) for record, source, decided, held in kept if decided is None and held == event]
        here = any(source == token and held == event for _, source, _, held in kept)  # also where it is decided
        if here or any(source > token for _, source in same):
            continue  # it is here already, or a later holder's is
        for record, _ in same:
            _forget(connection, record)
        _add(connection, settlement, now)


def withdraw(connection: apsw.Connection, leases: Sequence[Lease]) -> None:
    """The newest: a ledger that lost its data may give a token twice, and an older letter is of a life before."""
    for lease in leases:
        kept = rows(connection, SQL["kept"], lease.claim.digest)
        mine = [record for record, source, decided, _ in kept if source == lease.token and decided is None]
        if mine:
            _forget(connection, max(mine))


def _add(connection: apsw.Connection, settlement: Settlement, now: int) -> None:
    claim, outcome, letter = settlement.lease.claim, settlement.outcome, settlement.letter
    assert isinstance(outcome, (Reject, Uncertain))
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + 1,))
    connection.execute(
        SQL["keep_record"],
        (
            *(last + 1, claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
            *(DEAD if isinstance(outcome, Reject) else UNCERTAIN, storable(outcome.reason), claim.fingerprint),
            *(letter.attempts if letter is not None else 1, now, now + claim.retention_ms),
            *(claim.tenant, claim.handler, claim.text, settlement.lease.token),
        ),
    )
    before, attempts = (letter.tried, letter.attempts) if letter is not None else ((), 1)
    connection.execute(SQL["add_tried"], (last + 1, one_more(before, attempts, now, outcome.reason)))
    if letter is not None:
        connection.execute(SQL["add_letter"], (last + 1, letter.event, dump(letter.reading) or None))


def _forget(connection: apsw.Connection, record: int) -> None:
    connection.execute(SQL["forget_record"], (record,))
    connection.execute(SQL["forget_letter"], (record,))
    connection.execute(SQL["forget_tried"], (record,))

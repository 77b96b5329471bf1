"""The letterbox of a ledger elsewhere: its letters wait for a person here, and answer no claim.

The token in every write is the one of the lease there. What a holder kept before it vanished makes room for what the
next one keeps of the same event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.adapters.ledgers.postgres.repeating import insist
from semel.adapters.ledgers.postgres.rows import DEAD, UNCERTAIN, shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.claim import Lease, Settlement
from semel.values.outcome import Reject, Uncertain
from semel.values.reading import dump
from semel.values.tried import one_more

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection


class _Kept(NamedTuple):
    id: int | None  # None: it is to be written
    source: int
    decided: bool
    event: bytes | None


async def keep(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> None:
    """All of them, or none."""
    if settlements:
        await insist(lambda: _keep(connection, settlements, now, schema))


async def withdraw(connection: Connection, leases: Sequence[Lease], schema: str) -> None:
    if leases:
        pairs = sorted({(lease.claim.digest, lease.token) for lease in leases})
        columns = [list(column) for column in zip(*pairs, strict=True)]
        await insist(lambda: connection.execute(statements(schema)["withdraw"], *columns))


async def _keep(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> None:
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        at = await connection.fetchval(sql["lock_letterbox"], now)
        kept: dict[bytes, list[_Kept]] = {}
        for id, k, *rest in await connection.fetch(sql["kept"], [one.lease.claim.digest for one in settlements]):
            kept.setdefault(k, []).append(_Kept(id, *rest))
        added, gone = _chosen(settlements, kept)
        if gone:
            await connection.execute(sql["forget_kept"], gone)
        if added:
            columns = [list(column) for column in zip(*[_row(one, at) for one in added], strict=True)]
            await connection.execute(sql["keep"], at, *columns)


def _chosen(settlements: Sequence[Settlement], kept: dict[bytes, list[_Kept]]) -> tuple[list[Settlement], list[int]]:
    """What is written and what makes room for it, as if they had come one after the other."""
    added: dict[tuple[bytes, int, bytes | None], Settlement] = {}
    gone: list[int] = []
    for settlement in settlements:
        k, token = settlement.lease.claim.digest, settlement.lease.token
        event = settlement.letter.event if settlement.letter is not None else None
        mine = kept.setdefault(k, [])
        same = [one for one in mine if not one.decided and one.event == event]
        here = any(one.source == token and one.event == event for one in mine)  # also where it is decided
        if here or any(one.source > token for one in same):
            continue  # it is here already, or a later holder's is
        for one in same:
            mine.remove(one)
            added.pop((k, one.source, event), None)
            gone += [] if one.id is None else [one.id]
        mine.append(_Kept(None, token, False, event))
        added[k, token, event] = settlement
    return list(added.values()), gone


def _row(settlement: Settlement, at: int) -> tuple[Any, ...]:
    claim, outcome, letter = settlement.lease.claim, settlement.outcome, settlement.letter
    assert isinstance(outcome, (Reject, Uncertain))
    before, attempts = (letter.tried, letter.attempts) if letter is not None else ((), 1)
    return (
        *(claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
        *(DEAD if isinstance(outcome, Reject) else UNCERTAIN, shown(outcome.reason), claim.fingerprint),
        *(attempts, claim.retention_ms),
        *(shown(claim.tenant), shown(claim.handler), shown(claim.text)),
        *((letter.event, dump(letter.reading) or None) if letter is not None else (None, None)),
        *(settlement.lease.token, one_more(before, attempts, at, outcome.reason)),
    )

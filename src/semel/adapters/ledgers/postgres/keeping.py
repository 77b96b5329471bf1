"""What is forgotten, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.adapters.ledgers.postgres.rows import split
from semel.adapters.ledgers.postgres.statements import statements

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

SWEEP = 10  # rows looked at for each key that a purge may forget: what is not due yet is passed over
START = -1  # before every token; 0 is that of a lease that was given back


async def purge(connection: Connection, limit: int, now: int | None, schema: str) -> int:
    """Forget what is over. Live leases, leases in doubt and undecided letters stay.

    Rows are in order of grants, so the oldest are due first. Handlers may have different retentions: the sweep goes on
    where it stopped, a bounded number of rows at a time, and begins again at the end.
    """
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        swept, place = await connection.fetchrow(sql["where_swept"]) or (START, b"")
        row = await connection.fetchrow(sql["sweep"], swept, limit * SWEEP, limit, now)
        assert row is not None
        looked, last_looked, gone, last_chosen, chosen = row
        letters = await _forget_letters(connection, limit - gone, now, sql) if gone < limit else 0
        subjects, last_subject = await connection.fetchrow(sql["sweep_subjects"], place, limit, now) or (0, None)
        swept = last_chosen if chosen == limit else last_looked if looked == limit * SWEEP else START
        await connection.execute(sql["set_swept"], swept, last_subject if subjects == limit else b"")
    return int(gone + letters)


async def _forget_letters(connection: Connection, limit: int, now: int | None, sql: dict[str, str]) -> int:
    """With the decisions about them, and with the keys by which the inbox knows them."""
    gone = await connection.fetch(sql["forget_letters"], now, limit)
    if gone:
        await connection.execute(sql["forget_decisions"], [id for id, _, _ in gone])
        keys = [(digest, id) for id, k, aliases in gone for digest in (k, *split(aliases))]
        await connection.execute(sql["forget_letter_keys"], *zip(*keys, strict=True))
    return len(gone)

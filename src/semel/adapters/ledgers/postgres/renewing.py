"""Renewals. A row may be locked by the transaction that settles its lease: nobody else's renewal waits for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.adapters.ledgers.postgres.pool import driver
from semel.adapters.ledgers.postgres.rows import LEASED, digests_of
from semel.adapters.ledgers.postgres.settling import hold
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.claim import Lease

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

LOCK_S = 1.0  # longer than any claim keeps a row: what is locked for longer, its own transaction holds
TRY_MS = 50  # that a try waits for one row: others wait in the same batch, and their leases go on ending
PAUSE_S = 0.02


async def renew(connection: Connection, leases: Sequence[Lease], now: int | None, schema: str) -> list[bool]:
    """Leases with one key and no subject by one statement; the others one after the other. What is locked is tried
    again, all of it within about the same second: one that is slow to end must not cost the others their leases."""
    asked = {(lease.claim.digest, lease.token): lease for lease in leases}
    plain = sorted(pair for pair, lease in asked.items() if _is_plain(lease))
    answers = dict.fromkeys(asked, False)
    locked = [pair for pair in asked if pair not in set(plain)]  # or not yet tried
    if plain:
        rows = await connection.fetch(
            statements(schema)["renew_free"],
            [digest for digest, _ in plain],
            [token for _, token in plain],
            [asked[pair].claim.lease_ms for pair in plain],
            now,
        )
        answers.update((plain[i - 1], True) for i, renewed in rows if renewed)
        locked += [plain[i - 1] for i, renewed in rows if not renewed]
    ends = time.monotonic() + LOCK_S
    is_last = False
    while locked:
        tried, locked = locked, []
        for pair in tried:
            renewed = await _renew_whole(connection, asked[pair], now, schema)
            if renewed is not None:
                answers[pair] = renewed
            elif is_last:  # its own transaction settles it, and nobody can take it meanwhile
                answers[pair] = await _is_held(connection, asked[pair], schema)
            else:
                locked.append(pair)
        if locked:
            await asyncio.sleep(PAUSE_S)
            is_last = time.monotonic() >= ends
    return [answers[lease.claim.digest, lease.token] for lease in leases]


def _is_plain(lease: Lease) -> bool:
    return not lease.claim.aliases and lease.claim.order is None


async def _renew_whole(connection: Connection, lease: Lease, now: int | None, schema: str) -> bool | None:
    """Whoever lost one of a lease's keys, or its subject, has lost the lease. None: somebody has locked one of them."""
    asyncpg = driver()
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"set local lock_timeout = {TRY_MS}")
            return await _renew_locked(connection, lease, now, statements(schema), schema)
    except asyncpg.LockNotAvailableError:
        return None


async def _is_held(connection: Connection, lease: Lease, schema: str) -> bool:
    """By what was committed last."""
    digests = digests_of(lease.claim)
    found = await connection.fetch(statements(schema)["read_keys"], digests)
    return [(token, state) for _, token, state, *_ in found] == [(lease.token, LEASED)] * len(digests)


async def _renew_locked(
    connection: Connection, lease: Lease, now: int | None, sql: dict[str, str], schema: str
) -> bool:
    if not await hold(connection, lease, schema):
        return False
    if lease.claim.order is not None:
        held = await connection.fetch(sql["lock_subjects"], [lease.claim.order.subject])
        if not held or held[0][2] is None or held[0][3] != lease.token:
            return False
    digests = digests_of(lease.claim)
    many = len(digests)
    await connection.execute(sql["renew"], digests, [lease.token] * many, [lease.claim.lease_ms] * many, now)
    return True

"""Renewals. A row may be locked by the transaction that settles its lease: nobody else's renewal waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.adapters.ledgers.postgres.pool import driver
from semel.adapters.ledgers.postgres.rows import LEASED, digests_of
from semel.adapters.ledgers.postgres.settling import hold
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.claim import Lease

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

LOCK_MS = 1_000  # longer than any claim keeps a row: what is locked for longer, its own transaction holds


async def renew(connection: Connection, leases: Sequence[Lease], now: int | None, schema: str) -> list[bool]:
    """Leases with one key and no subject by one statement; the others, and what is locked, one after the other."""
    plain = {(lease.claim.digest, lease.token): lease for lease in leases if _is_plain(lease)}
    answers = dict.fromkeys(plain, False)
    if plain:
        asked = [plain[pair] for pair in sorted(plain)]
        rows = await connection.fetch(
            statements(schema)["renew_free"],
            [lease.claim.digest for lease in asked],
            [lease.token for lease in asked],
            [lease.claim.lease_ms for lease in asked],
            now,
        )
        for i, renewed in rows:
            lease = asked[i - 1]
            pair = (lease.claim.digest, lease.token)
            answers[pair] = renewed or await _renew_whole(connection, lease, now, schema)
    return [
        answers[lease.claim.digest, lease.token]
        if _is_plain(lease)
        else await _renew_whole(connection, lease, now, schema)
        for lease in leases
    ]


def _is_plain(lease: Lease) -> bool:
    return not lease.claim.aliases and lease.claim.order is None


async def _renew_whole(connection: Connection, lease: Lease, now: int | None, schema: str) -> bool:
    """Whoever lost one of a lease's keys, or its subject, has lost the lease."""
    asyncpg = driver()
    sql = statements(schema)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"set local lock_timeout = {LOCK_MS}")
            return await _renew_locked(connection, lease, now, sql, schema)
    except asyncpg.LockNotAvailableError:
        # Its own transaction settles it, and nobody can take it meanwhile: unless that has lost it before.
        digests = digests_of(lease.claim)
        found = await connection.fetch(sql["read_keys"], digests)
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

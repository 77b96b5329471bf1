"""The floor on PostgreSQL: two statements for each batch, prepared, on one connection, each its own commit.

They have no conflicts, takeovers, retries, ordering or dead letters. One variant has the columns of a Semel record, the
other only the columns that a decision needs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from semel.values.claim import Claim

HOT = "with (fillfactor = 60)"  # leaves space for the settle on the same page, as a careful author would

RECORD = f"""
    create table record (k bytea primary key, token bigint not null, until bigint not null, attempts integer not null,
        fp bytea, tenant text not null, handler text not null, text text not null, outcome smallint, result bytea
    ) {HOT}
"""
RECORD_CLAIM = """
    insert into record (k, token, until, attempts, fp, tenant, handler, text)
    select k, token, until, 1, fp, '', 'bench', text
    from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[], $5::text[]) v (k, token, until, fp, text)
    on conflict do nothing returning k
"""
RECORD_SETTLE = """
    update record set outcome = 1, until = v.until, result = null
    from unnest($1::bytea[], $2::bigint[], $3::bigint[]) v (k, token, until)
    where record.k = v.k and record.token = v.token returning v.k
"""

SLIM = f"""
    create table slim (k bytea primary key, token bigint not null, until bigint not null, fp bytea, result bytea) {HOT}
"""
SLIM_CLAIM = """
    insert into slim (k, token, until, fp)
    select * from unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bytea[])
    on conflict do nothing returning k
"""
SLIM_SETTLE = """
    update slim set until = v.until, result = 'null'
    from unnest($1::bytea[], $2::bigint[], $3::bigint[]) v (k, token, until)
    where slim.k = v.k and slim.token = v.token returning v.k
"""

EFFECT = "create table effect (id text not null, at timestamptz not null default now())"
CREATE = (RECORD, SLIM, EFFECT)

# PostgreSQL keeps the plan that it made for the empty table. Without these settings, the settle of a small batch would
# always read the whole table. Semel's ledger has them too.
BY_INDEX = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

Connection = Any  # asyncpg's own type is generic over what its stubs know and its wheel does not


class BareSql:
    """Two phases with the columns of a record."""

    claim, settle = RECORD_CLAIM, RECORD_SETTLE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def columns(self, claims: Sequence[Claim]) -> tuple[list[Any], ...]:
        return ([claim.fingerprint for claim in claims], [claim.text for claim in claims])

    async def two_phases(self, batches: Sequence[Sequence[Claim]]) -> None:
        claim = await self._connection.prepare(self.claim)
        settle = await self._connection.prepare(self.settle)
        token = 0
        for claims in batches:
            now_ms = time.time_ns() // 1_000_000
            keys = [one.digest for one in claims]
            tokens = list(range(token, token := token + len(claims)))
            lease = [now_ms + one.lease_ms for one in claims]
            won = await claim.fetch(keys, tokens, lease, *self.columns(claims))
            settled = await settle.fetch(keys, tokens, [now_ms + one.retention_ms for one in claims])
            if not len(won) == len(settled) == len(claims):
                raise AssertionError("the floor lost a row: its time means nothing")


class SlimSql(BareSql):
    """Two phases with five columns."""

    claim, settle = SLIM_CLAIM, SLIM_SETTLE

    def columns(self, claims: Sequence[Claim]) -> tuple[list[Any], ...]:
        return ([claim.fingerprint for claim in claims],)


async def transaction_loop(connection: Connection, keys: Sequence[bytes]) -> None:
    """The usual consumer with a database effect: key and effect in one transaction, one event after the other."""
    claim = await connection.prepare(
        "insert into slim (k, token, until) values ($1, 0, 0) on conflict do nothing returning k"
    )
    act = await connection.prepare("insert into effect (id) values ($1)")
    for key in keys:
        async with connection.transaction():
            if await claim.fetchval(key) is None:
                raise AssertionError("the loop met a key twice: its time means nothing")
            await act.fetch(key.hex())


async def connect(url: str) -> Connection:
    return await asyncpg.connect(url, server_settings=BY_INDEX)

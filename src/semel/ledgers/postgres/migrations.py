"""The schema and its versions: numbered steps, forward only, each in one transaction with its number.

A migrator holds an advisory lock, so that two migrators run every step once. It waits for table locks for a short time
only, and then lets traffic pass and retries: a migration never blocks the claims of a busy store for long.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from semel.ledgers.postgres.pool import driver, sentence
from semel.ledgers.postgres.statements import SCHEMA, migration
from semel.values.errors import ConfigError, LedgerUnavailable

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection


LOCK_MS = 1_000  # longest wait of claims and settles behind a migration
TRY_S = 60.0
MIGRATORS = 0x53454D45_4C4D4947  # "SEMELMIG"


async def version(connection: Connection, schema: str) -> int | None:
    """Return the version of the schema; 0 if there is none, None if this user may not read it."""
    asyncpg = driver()
    try:
        found = await connection.fetchval(f'select max(version) from "{schema}".migration')
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
        return 0
    except asyncpg.InsufficientPrivilegeError:
        return None
    return int(found or 0)


async def check(connection: Connection, schema: str, where: str) -> None:
    """Refuse a schema of another version, or one that this user may not use."""
    found = await version(connection, schema)
    known = len(SCHEMA)
    if found == known:
        return
    if found is None:
        problem = (
            f'this user may not use the schema "{schema}": grant usage on it, and all on its tables and its sequence'
        )
    elif found > known:
        problem = f'the schema "{schema}" has version {found}, this Semel knows {known}: use the Semel that migrated it'
    elif found == 0:
        problem = f'there is no schema "{schema}": run `semel migrate`'
    else:
        problem = f'the schema "{schema}" has version {found}, this Semel needs {known}: run `semel migrate`'
    raise ConfigError(f"{where}: {problem}")


async def pending(connection: Connection, schema: str, where: str) -> list[str]:
    found = await version(connection, schema)
    if found is None or found > len(SCHEMA):
        await check(connection, schema, where)
    return [_told(step, schema) for step in SCHEMA[found:]]


async def migrate(connection: Connection, schema: str, where: str) -> list[str]:
    """Run the missing steps, one transaction each."""
    asyncpg = driver()
    done: list[str] = []
    ends = time.monotonic() + TRY_S
    while True:
        try:
            step = await _one_step(connection, schema, where)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if time.monotonic() > ends:
                raise LedgerUnavailable(
                    f"{where}: the schema is in use and could not be changed within {TRY_S:g} s: "
                    "look for long transactions in pg_stat_activity, then run `semel migrate` again"
                ) from error
            await asyncio.sleep(random.uniform(0.05, 0.5))
            continue
        if step is None:
            return done
        done.append(_told(step, schema))


async def _one_step(connection: Connection, schema: str, where: str) -> str | None:
    asyncpg = driver()
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"set local lock_timeout = {LOCK_MS}; set local statement_timeout = 0")
        await connection.execute(f"select pg_advisory_xact_lock({MIGRATORS})")
        if not await connection.fetchval("select to_regclass($1) is not null", f'"{schema}".migration'):
            if not await connection.fetchval("select to_regnamespace($1) is not null", f'"{schema}"'):
                await connection.execute(
                    f'create schema "{schema}"'
                )  # not needed, and maybe not allowed, if an administrator created it
            await connection.execute(
                f'create table "{schema}".migration ('
                "version integer primary key, name text not null, at timestamptz not null default now())"
            )
        found = await version(connection, schema)  # under the lock: another migrator may have been faster
        if found is None or found > len(SCHEMA):
            await check(connection, schema, where)
        if found is None or found >= len(SCHEMA):
            return None
        try:
            await connection.execute(migration(SCHEMA[found], schema), timeout=TRY_S)
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise ConfigError(
                f'{where}: the schema "{schema}" contains objects that are not Semel\'s ({sentence(error)}): choose '
                "a schema for the ledger alone with ?schema=NAME in its URL"
            ) from None
        await connection.execute(
            f'insert into "{schema}".migration (version, name) values ($1, $2)', found + 1, SCHEMA[found]
        )
        return SCHEMA[found]


def _told(step: str, schema: str) -> str:
    return f'schema "{schema}": {step.removesuffix(".sql")}'

"""The schema and its versions: numbered steps, forward only, each in one transaction with its number.

A migrator holds an advisory lock, so that two migrators run every step once. It waits for table locks for a short time
only, and then lets traffic pass and retries: a migration never blocks the claims of a busy store for long.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from semel.ledgers.postgres.pool import driver, first_line
from semel.ledgers.postgres.statements import STEPS, step_sql
from semel.values.errors import ConfigError, LedgerUnavailable

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection


LOCK_MS = 1_000  # longest wait of claims and settles behind a migration
TRY_S = 60.0
MIGRATORS = 0x53454D45_4C4D4947  # "SEMELMIG"
UNRELEASED = -1  # a schema of a development version before the first release
FORBIDDEN = -2  # this user may not read the version


async def version(connection: Connection, schema: str) -> int:
    """Return the version of the schema; 0 if there is none, UNRELEASED or FORBIDDEN if it cannot be used."""
    asyncpg = driver()
    try:
        found = await connection.fetchrow(
            f'select max(version), max(name) filter (where version = 1) from "{schema}".migration'
        )
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
        return 0
    except asyncpg.InsufficientPrivilegeError:
        return FORBIDDEN
    number, first_step = found or (None, None)
    if number is None:
        return 0
    return int(number) if first_step in STEPS else UNRELEASED


def problem(number: int, schema: str) -> str:
    """Return why a schema of this version cannot be used, and what to do; empty if it can."""
    known = len(STEPS)
    if number == known:
        return ""
    if number == FORBIDDEN:
        return f'this user may not use the schema "{schema}": grant usage on it, and all on its tables and its sequence'
    if number == UNRELEASED:
        return (
            f'the schema "{schema}" was created by an unreleased version of Semel and cannot be migrated: drop it '
            f'(drop schema "{schema}" cascade), or choose another with ?schema=NAME in the ledger\'s URL, then run '
            "`semel migrate`"
        )
    if number > known:
        return f'the schema "{schema}" has version {number}, this Semel knows {known}: use the Semel that migrated it'
    if number == 0:
        return f'there is no schema "{schema}": run `semel migrate`'
    return f'the schema "{schema}" has version {number}, this Semel needs {known}: run `semel migrate`'


async def check(connection: Connection, schema: str, where: str) -> None:
    """Refuse a schema of another version, or one that this user may not use."""
    if reason := problem(await version(connection, schema), schema):
        raise ConfigError(f"{where}: {reason}")


async def pending(connection: Connection, schema: str, where: str) -> list[str]:
    done = await _migratable_version(connection, schema, where)
    return [_title(step, schema) for step in list(STEPS)[done:]]


async def migrate(connection: Connection, schema: str, where: str) -> list[str]:
    """Run the missing steps, one transaction each."""
    asyncpg = driver()
    done: list[str] = []
    ends = time.monotonic() + TRY_S
    while True:
        try:
            step = await _run_next_step(connection, schema, where)
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
        done.append(_title(step, schema))


async def _migratable_version(connection: Connection, schema: str, where: str) -> int:
    number = await version(connection, schema)
    if not 0 <= number <= len(STEPS):
        raise ConfigError(f"{where}: {problem(number, schema)}")
    return number


async def _run_next_step(connection: Connection, schema: str, where: str) -> str | None:
    asyncpg = driver()
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"set local lock_timeout = {LOCK_MS}; set local statement_timeout = 0")
        await connection.execute(f"select pg_advisory_xact_lock({MIGRATORS})")
        if not await connection.fetchval("select to_regclass($1) is not null", f'"{schema}".migration'):
            # An administrator may have created the schema, for a user who may not.
            if not await connection.fetchval("select to_regnamespace($1) is not null", f'"{schema}"'):
                await connection.execute(f'create schema "{schema}"')
            await connection.execute(
                f'create table "{schema}".migration ('
                "version integer primary key, name text not null, migrated_at timestamptz not null default now())"
            )
        done = await _migratable_version(connection, schema, where)  # under the lock: another migrator may be faster
        if done == len(STEPS):
            return None
        step = list(STEPS)[done]
        try:
            await connection.execute(step_sql(step, schema), timeout=TRY_S)
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise ConfigError(
                f'{where}: the schema "{schema}" contains objects that are not Semel\'s ({first_line(error)}): choose '
                "a schema for the ledger alone with ?schema=NAME in its URL"
            ) from None
        await connection.execute(f'insert into "{schema}".migration (version, name) values ($1, $2)', done + 1, step)
        return step


def _title(step: str, schema: str) -> str:
    return f'schema "{schema}": {step}'

"""The ledger for several machines that have a database already: PostgreSQL 14 or later, through asyncpg."""

from semel.ledgers.postgres.ledger import PostgresLedger, profiles

__all__ = ["PostgresLedger", "profiles"]

"""The ledger for several machines that have a database already: PostgreSQL 14 or later, through asyncpg."""

from semel.adapters.ledgers.postgres.ledger import PostgresLedger
from semel.adapters.ledgers.postgres.promises import profiles

__all__ = ["PostgresLedger", "profiles"]

"""Embedded ledger: SQLite in WAL mode through apsw, shared by all processes of one machine."""

from semel.ledgers.sqlite.ledger import SqliteLedger, profiles

__all__ = ["SqliteLedger", "profiles"]

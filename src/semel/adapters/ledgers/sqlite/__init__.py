"""The embedded ledger: SQLite in WAL mode through apsw, shared by all processes of one machine."""

from semel.adapters.ledgers.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]

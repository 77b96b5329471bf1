"""The embedded ledger: SQLite in WAL mode through apsw, shared by all processes of one machine."""

from semel.adapters.ledgers.sqlite.ledger import SqliteLedger
from semel.adapters.ledgers.sqlite.promises import profiles

__all__ = ["SqliteLedger", "profiles"]

"""The outbox in a ledger's file.

`adding` and `taking` are about who is next, `crossing` about what may leave, `recording` about what came of it, and
`people` answers their questions. All are functions of a connection; those that write are inside an immediate
transaction. The store keeps what the relay concludes, under a token; it judges only what must hold across processes:
who is next, at what rate, and whether a guard lets a message through.
"""

from semel.adapters.ledgers.sqlite.outbox.face import SqliteOutbox

__all__ = ["SqliteOutbox"]

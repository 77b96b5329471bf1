"""The outbox in a ledger's file.

`adding` and `taking` are about who is next, `crossing` about what may leave, `recording` about what came of it,
`people` answers their questions, and `forgetting` is about what nobody needs any more. All are functions of a
connection; those that write are inside an immediate transaction. The store keeps what the relay concludes, under a
token; it judges only what must hold across processes: who is next, at what rate, whether a guard lets a message
through, and whose message it is that a look-up has found.
"""

from semel.adapters.ledgers.sqlite.outbox.face import SqliteOutbox

__all__ = ["SqliteOutbox"]

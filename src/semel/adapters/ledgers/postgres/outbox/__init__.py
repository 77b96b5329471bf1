"""The outbox in a ledger's database.

`adding` and `taking` are about who is next, `crossing` about what may leave, `recording` about what came of it, and
`people` answers their questions. All are functions of a connection. What a relay asks is one round trip for a batch: a
function of the database (schema/005_relaying.sql and after). It judges only what must hold across processes: who is
next, at what rate, whether a guard lets a message through, and whose message it is that a look-up has found.
"""

from semel.adapters.ledgers.postgres.outbox.face import PostgresOutbox

__all__ = ["PostgresOutbox"]

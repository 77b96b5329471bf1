"""What is forgotten in time, in small steps: each reads what it forgets, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, rows, run_in


def purge(connection: apsw.Connection, content_ms: int, identity_ms: int, limit: int, now: int) -> int:
    """A guard is kept as long after its window as an identity is: somebody else's window may be a longer one."""
    said = [id for (id,) in rows(connection, SQL["contents_over"], now - min(content_ms, identity_ms), limit)]
    erase(connection, said)
    left = limit - len(said)
    known = [id for (id,) in rows(connection, SQL["identities_over"], now - identity_ms, left)]
    run_in(connection, SQL["forget_attempts"], known)
    run_in(connection, SQL["forget_notifications"], known)
    guards = rows(connection, SQL["forget_old_guards"], now - identity_ms, left - len(known))
    return len(said) + len(known) + len(guards)


def erase(connection: apsw.Connection, ids: Sequence[bytes]) -> None:
    """What they said and to whom, with their evidence. What they are known by stays."""
    run_in(connection, SQL["erase_notifications"], ids)
    run_in(connection, SQL["erase_attempts"], ids)

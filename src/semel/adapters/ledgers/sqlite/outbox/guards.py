"""Guards that are free again, because who passed them was definitely not sent."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, run_in


def free(connection: apsw.Connection, guards: Sequence[bytes], unsent: Sequence[bytes]) -> None:
    """Each is left to the one that passed before, if there is one: that one was sent, and somebody's window may reach
    back to it."""
    for step in ("forget_before", "forget_guards", "leave_guards"):
        run_in(connection, SQL[step], guards, unsent)

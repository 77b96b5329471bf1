"""What is one notification, and what is another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres.outbox.rows import encode, options_of
from semel.adapters.ledgers.postgres.repeating import Changed
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.notification import Notification, who_is
from semel.values.outbox import Added, lane_of
from semel.values.sending import Standing

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection


async def add(
    connection: Connection, notifications: Sequence[Notification], now: int | None, schema: str
) -> list[Added]:
    """One statement, in a transaction of the connection's or by itself."""
    firsts: dict[bytes, tuple[Notification, bytes]] = {}
    said: list[tuple[bytes, bytes]] = []
    for one in notifications:
        id, content = one.id, one.content
        said.append((id, content))
        firsts.setdefault(id, (one, content))
    rows = await connection.fetch(statements(schema)["add_notifications"], now, *_columns(firsts))
    if len(rows) < len(firsts):
        raise Changed  # one was there, and went before it could be looked at
    told = {id: Added(id.hex(), status, state) for id, status, state in rows}
    answers: list[Added] = []
    for id, content in said:
        answers.append(told[id])
        if told[id].status != "conflict":  # who comes behind it is measured by it
            told[id] = Added(id.hex(), "known", told[id].state)
        ...
    return answers


def _columns(firsts: dict[bytes, tuple[Notification, bytes]]) -> list[list[Any]]:
    return []

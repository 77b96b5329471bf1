"""What is one notification, and what is another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres.repeating import Changed
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.notification import Notification, who_is
from semel.values.outbox import Added, lane_of
from semel.values.sending import Standing
from semel.values.stored import encode, options_of

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection


async def add(
    connection: Connection, notifications: Sequence[Notification], now: int | None, schema: str
) -> list[Added]:
    """One statement, by itself or in a transaction of whoever owns the connection."""
    columns = columns_of(notifications)
    rows = await connection.fetch(statements(schema)["add_notifications"], now, *columns)
    if len(rows) < len(notifications):
        raise Changed  # one was there, and went before it could be looked at
    rows.sort(key=lambda row: row[0])
    return [Added(id.hex(), status, state) for id, (_, status, state) in zip(columns[0], rows, strict=True)]


def columns_of(notifications: Sequence[Notification]) -> list[list[Any]]:
    """What semel.add_1 is told after the time: an array for each of its arguments. For other drivers, too."""
    return [list(column) for column in zip(*[_row_of(one) for one in notifications], strict=True)]


def _row_of(one: Notification) -> tuple[Any, ...]:
    options = options_of(one)
    standing = Standing(provider=one.provider, not_after_ms=options.not_after_ms, policy=one.policy or "hold")
    ordered = who_is(one.tenant, one.order) if one.order else None
    return (
        *(one.id, who_is(one.tenant, one.recipient), one.guarded_by, ordered, one.generation, one.priority),
        *(one.tenant, one.key, one.kind, one.recipient, one.channel, lane_of(one.provider, one.channel)),
        *(encode(options).decode(), encode(standing), one.content),
    )

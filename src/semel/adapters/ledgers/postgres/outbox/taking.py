"""Who is carried next, and at what rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres.rows import shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.log import log
from semel.values.outbox import Dispatch, Lane
from semel.values.stored import UNREADABLE, notification_of, standing_of

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

AHEAD_MS = 1_000  # slots of a rate are given out so far into the future
UNREADABLE_MS = 600_000  # until it is looked at again
MOST = 100_000  # dispatches of one lane in one take


async def take(
    connection: Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int | None, schema: str
) -> list[Dispatch]:
    """By priority and then the longest due first; the rate of each provider is shared out among tenants."""
    wanted = [
        (shown(name), min(lane.room, MOST), shown(lane.provider), max(lane.per_second, 0.0))
        for name, lane in lanes.items()
        if lane.room > 0
    ]
    if not wanted:
        return []
    columns = [list(column) for column in zip(*wanted, strict=True)]
    rows = await connection.fetch(statements(schema)["take_dispatches"], *columns, AHEAD_MS, lease_ms, now)
    rows.sort(key=lambda row: row[2])  # tokens were given in the order in which they go
    read = [_read(row) for row in rows]
    if unread := [row for row, dispatch in zip(rows, read, strict=True) if dispatch is None]:
        put_off = [(id, token, vanished, at + UNREADABLE_MS) for at, id, token, _, vanished, *_ in unread]
        columns = [list(column) for column in zip(*put_off, strict=True)]
        await connection.execute(statements(schema)["put_off_dispatches"], *columns)
    return [dispatch for dispatch in read if dispatch is not None]


def _read(row: Any) -> Dispatch | None:
    """None: nobody can tell what it says. It keeps nothing else from being taken, and is in nobody's hands."""
    try:
        return _dispatch_of(row)
    except UNREADABLE as error:
        log.error("notification_unreadable", notification_id=row[1].hex(), error=error)
        return None


def _dispatch_of(row: Any) -> Dispatch:
    now, id, token, slot, vanished, standing, request, tenant, key, kind, recipient, channel, generation, *said = row
    content, options, added = said
    return Dispatch(
        id=id,
        token=token,
        notification=notification_of(tenant, key, kind, recipient, channel, generation, content, options),
        content=content,
        standing=standing_of(standing),
        taken_ms=now,
        slot_ms=slot,
        vanished=vanished,
        request=request,
        added_ms=added,
    )

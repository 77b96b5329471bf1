"""Queries, decisions, erasure and the purge of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from semel.ledgers.postgres.rows import storable_text
from semel.ledgers.postgres.statements import statements
from semel.values.delivery_state import LIVE, DeliveryState, State, decided, in_doubt, left_in_doubt_ms
from semel.values.notification import recipient_digests
from semel.values.notification_codec import delivery_state_of, encode, view_of
from semel.values.outbox import (
    Attempt,
    Backlog,
    Decision,
    NotificationQuery,
    NotificationView,
    Status,
    most_informative,
    unsent_status,
)

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

STATUS_ROWS = 1_000  # of one recipient and kind: few recipients have more, and the newest decide
SENT: tuple[State, ...] = ("accepted", "delivered")  # states without an index: most notifications are in them


async def status(connection: Connection, tenant: str, recipient: str, kind: str, key: str, schema: str) -> Status:
    sql = statements(schema)
    if key:
        rows = await connection.fetch(sql["status_by_key"], storable_text(tenant), storable_text(key), STATUS_ROWS)
    elif kind:
        digests = recipient_digests(tenant, recipient)
        rows = await connection.fetch(sql["status_by_recipient"], digests, storable_text(kind), STATUS_ROWS)
    else:
        digests = recipient_digests(tenant, recipient)
        rows = await connection.fetch(sql["status_by_recipient_of_any_kind"], digests, STATUS_ROWS)
    return most_informative(
        Status(unsent_status(in_doubt), id.hex(), state, changed, provider, reference or "", reason)
        for id, state, changed, provider, reference, reason, in_doubt in rows
    )


async def find(connection: Connection, query: NotificationQuery, schema: str) -> list[NotificationView]:
    filters = {condition: value for condition, value in _conditions(query).items() if value is not None}
    where = [condition.format(f"${at}") for at, condition in enumerate(filters, 1)]
    if query.possible_duplicates:
        where.append("n.possible_duplicates > 0")
    values: list[Any] = list(filters.values())
    if query.after_id is not None:
        values += [query.until_ms, query.after_id]
        where.append(f"n.added_ms <= ${len(values) - 1} and (n.added_ms < ${len(values) - 1} or n.id > ${len(values)})")
    values += [query.limit, query.bytes_max]
    rows = f"{statements(schema)['notification_view']} where {' and '.join(where) or 'true'}"
    rows = f"{rows} order by n.added_ms desc, n.id limit ${len(values) - 1}"
    size = "coalesce(octet_length(s.content), 0)"  # known without reading the content
    sizes = f"select s.*, sum({size}) over (order by s.added_ms desc, s.id) - {size} as before from ({rows}) s"
    bound = f"${len(values)}::bigint is null or t.before <= ${len(values)}"
    page = f"select * from ({sizes}) t where {bound} order by t.added_ms desc, t.id"
    return [view_of(row[:-1], ()) for row in await connection.fetch(page, *values)]


def _conditions(query: NotificationQuery) -> dict[str, Any]:
    """Return the conditions of a query, each on an indexed column if there is one."""
    state = query.state or None
    recipients = recipient_digests(query.tenant or "", query.recipient) if query.recipient else None
    by_state = "d.state" if state in LIVE else "n.state" if state in SENT else "n.ended_as"  # few are live
    return {
        "n.tenant = {}": None if query.tenant is None else storable_text(query.tenant),
        "n.recipient_digest = any ({}::bytea[])": recipients,
        "n.key = {}": storable_text(query.key) or None,
        "n.kind = {}": storable_text(query.kind) or None,
        "coalesce(d.lane, n.provider) = {}": storable_text(query.provider) or None,  # not sent yet: its lane
        "n.added_ms >= {}": query.since_ms or None,
        "n.added_ms < {}": query.until_ms if query.after_id is None else None,
        f"{by_state} = {{}}": state,
    }


async def show(connection: Connection, id: bytes, schema: str) -> NotificationView | None:
    sql = statements(schema)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        row = await connection.fetchrow(f"{sql['notification_view']} where n.id = $1", id)
        if row is None:
            return None
        attempts = await connection.fetch(sql["attempts_of_notification"], id)
        return view_of(row, [Attempt(*attempt) for attempt in attempts])


async def backlog(connection: Connection, schema: str) -> list[Backlog]:
    return [Backlog(*row) for row in await connection.fetch(statements(schema)["backlog"])]


# -------------------------------------------------------------------------------------------------------- decisions


async def decide(connection: Connection, decision: Decision, now: int | None, schema: str) -> State | None:
    async with connection.transaction(isolation="read_committed"):
        rows = await connection.fetch(statements(schema)["lock_dispatches"], [decision.id], now)
        if not rows:  # unknown, or over
            return None
        ((_, is_busy, state, delivery_state, now_ms),) = rows
        before = replace(delivery_state_of(delivery_state), state=state)
        after = decided(before, decision.resolution, decision.summary, not is_busy, now_ms)
        if after is None:
            return None
        await _write(connection, [(decision, before, after, now_ms)], schema)
    return after.state


async def _write(
    connection: Connection, changes: Sequence[tuple[Decision, DeliveryState, DeliveryState, int]], schema: str
) -> None:
    """Write decisions: each with the states before and after it, and its time.

    First free the guards of notifications that are not sent and never will be, all at once: guards are locked in one
    order, and the end of a dispatch locks its order key after them."""
    sql = statements(schema)
    unsent = [
        decision.id
        for decision, before, after, _ in changes
        if after.state not in LIVE and (before.state == "pending" or after.state == "expired")
    ]
    if unsent:
        await connection.execute(sql["free_guards"], unsent)
    for decision, before, after, now_ms in changes:
        await connection.execute(
            sql["decide_notification"],
            *(decision.id, decision.resolution, now_ms, storable_text(decision.reason), storable_text(decision.by)),
            *(after.state, storable_text(after.reason), after.due_ms if after.state == "pending" else None),
            *(encode(after), left_in_doubt_ms(before, after)),
        )


# ------------------------------------------------------------------------------------------------ erasure and purge


async def erase(
    connection: Connection, tenant: str, recipient: str, reason: str, by: str, now: int | None, schema: str
) -> int:
    """Erase a recipient's notifications. Pending ones are cancelled first; those in flight or uncertain stay."""
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        digests = recipient_digests(tenant, recipient)
        ids = [id for (id,) in await connection.fetch(sql["erasable_notifications"], digests)]
        kept: set[bytes] = set()
        cancelled: list[tuple[Decision, DeliveryState, DeliveryState, int]] = []
        for id, is_busy, state, delivery_state, now_ms in await connection.fetch(sql["lock_dispatches"], ids, now):
            before = replace(delivery_state_of(delivery_state), state=state)
            if state != "pending" or is_busy or in_doubt(before):
                kept.add(id)
                continue
            decision = Decision(id, "cancelled", reason, by)
            after = decided(before, decision.resolution, decision.summary, True, now_ms)
            assert after is not None
            cancelled.append((decision, before, after, now_ms))
        await _write(connection, cancelled, schema)
        ended = sorted(id for id in ids if id not in kept)
        erased = await connection.fetch(sql["erase_notifications"], ended)
        await connection.execute(sql["erase_attempts"], ended)
    return len(erased)


async def purge(
    connection: Connection, content_ms: int, identity_ms: int, limit: int, now: int | None, schema: str
) -> int:
    sql = statements(schema)["purge_notifications"]
    purged: int = await connection.fetchval(sql, now, content_ms, identity_ms, limit)
    return purged

"""Queries, decisions, erasure and the purge of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from semel.ledgers.sqlite import guards
from semel.ledgers.sqlite.statements import SQL, Row, insert_many, rows, run_in
from semel.values.delivery_state import LIVE, DeliveryState, State, decided, in_doubt, left_in_doubt_ms
from semel.values.notification import who_any
from semel.values.notification_codec import (
    by_wall_clock,
    delivery_state_of,
    encode,
    guard_of,
    not_after_of,
    readable,
    readable_standing,
)
from semel.values.outbox import (
    Attempt,
    Backlog,
    Decision,
    NotificationQuery,
    NotificationView,
    Status,
    told_of,
    told_unsent,
)

ENDED: tuple[State, ...] = ("failed", "undelivered", "suppressed", "expired", "cancelled")
STATUS_ROWS = 1_000  # of one recipient and kind: the newest decide. Few recipients have so many


def status(connection: apsw.Connection, tenant: str, recipient: str, kind: str, key: str) -> Status:
    if key:
        found = rows(connection, SQL["status_by_key"], tenant, key, STATUS_ROWS)
    elif kind:
        found = rows(connection, SQL["status_by_recipient"], *_two(tenant, recipient), kind, STATUS_ROWS)
    else:
        found = rows(connection, SQL["status_by_recipient_alone"], *_two(tenant, recipient), STATUS_ROWS)
    return told_of(
        Status(told_unsent(in_doubt), id.hex(), state, changed, provider, reference or "", reason)
        for id, state, changed, provider, reference, reason, in_doubt in found
    )


def find(connection: apsw.Connection, query: NotificationQuery) -> list[NotificationView]:
    tenant = "n.tenant = ?" if query.key else "+n.tenant = ?"  # its index serves keys: everything else is found by time
    conditions: dict[str, Any] = {
        tenant: query.tenant,
        "n.who in (?, ?)": _two(query.tenant or "", query.recipient) if query.recipient else None,
        "n.key = ?": query.key or None,
        f"{'' if query.recipient else '+'}n.kind = ?": query.kind or None,
        "ifnull(d.lane, n.provider) = ?": query.provider or None,  # not sent yet: found by its lane
        "n.added >= ?": query.since_ms or None,
        "n.added < ?": query.until_ms if query.after_id is None else None,
    }
    if query.after_id is not None:
        until = (query.until_ms, query.until_ms, query.after_id)
        conditions["n.added <= ? and (n.added < ? or n.id > ?)"] = until
    if query.state in LIVE:  # they are few: by the hot table
        conditions["d.state = ?"] = query.state
    elif query.state in ENDED:
        conditions[f"n.state = ? and n.state in {ENDED}"] = query.state  # the condition of its index
    elif query.state:
        conditions["+n.state = ?"] = query.state
    filters = {sql: value for sql, value in conditions.items() if value is not None}
    where = " and ".join([*filters, *(["n.possible > 0"] if query.possible_duplicates else [])])
    where = f" where {where}" if where else ""
    sql = f"{SQL['shown']}{where} order by n.added desc, n.id limit ?"
    values = [item for value in filters.values() for item in (value if isinstance(value, tuple) else (value,))]
    found: list[NotificationView] = []
    size = 0
    for row in connection.execute(sql, (*values, query.limit)):  # row by row: rows beyond the limit are not read
        found.append(_shown(row, ()))
        size += found[-1].size
        if query.bytes_max is not None and size > query.bytes_max:
            break
    return found


def _two(tenant: str, recipient: str) -> tuple[bytes, bytes]:
    """Return the digests of a recipient, for statements with two placeholders."""
    digests = who_any(tenant, recipient)
    return digests[0], digests[-1]


def show(connection: apsw.Connection, id: bytes) -> NotificationView | None:
    found = rows(connection, f"{SQL['shown']} where n.id = ?", id)
    if not found:
        return None
    return _shown(found[0], [Attempt(*row) for row in rows(connection, SQL["attempts_of"], id)])


def backlog(connection: apsw.Connection) -> list[Backlog]:
    return [Backlog(*row) for row in rows(connection, SQL["backlog"])]


def _shown(row: Row, attempts: Sequence[Attempt]) -> NotificationView:
    id, tenant, key, kind, recipient, channel, generation, content, options = row[:9]
    state, reason, provider, added, changed, due, possible, by, delivery_state, taken = row[9:]
    return NotificationView(
        id=id.hex(),
        notification=readable(tenant, key, kind, recipient, channel, generation, content, options),
        state=state,
        reason=reason,
        provider=provider,
        added_ms=added,
        changed_ms=changed,
        due_ms=due,
        possible_duplicates=possible,
        suppressed_by="" if by is None else by.hex(),
        attempts=tuple(attempts),
        erased=content is None,
        delivery_state=readable_standing(delivery_state),
        taken=bool(taken),
        size=len(content or b""),
    )


# -------------------------------------------------------------------------------------------------------- decisions


def decide(connection: apsw.Connection, decision: Decision, now: int, ahead_ms: int = 0) -> State | None:
    found = rows(connection, SQL["decided_upon"], decision.id)
    if not found or found[0][10] is None:  # unknown, or over
        return None
    state, tenant, recipient, kind, provider, options, possible, _, taken, due, delivery_state = found[0]
    free = not taken or due <= now
    before = replace(delivery_state_of(delivery_state), state=state)
    if (not_after := not_after_of(options)) is not None:
        before = by_wall_clock(before, not_after, ahead_ms)
    after = decided(before, decision.says, decision.told, free, now)
    if after is None:
        return None
    _write(connection, decision, after, left_in_doubt_ms(before, after), provider, possible, now)
    if after.state not in LIVE and (state == "pending" or after.state == "expired"):  # nothing was sent
        guard = guard_of(tenant, recipient, kind, options)
        if guard is not None:
            guards.free(connection, [guard], [decision.id])
    return after.state


def _write(
    connection: apsw.Connection,
    decision: Decision,
    after: DeliveryState,
    left: int,
    provider: str,
    possible: int,
    now: int,
) -> None:
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + 1,))
    attempt = (decision.id, last + 1, decision.says, 0, provider, left, now, decision.reason, None, decision.by)
    insert_many(connection, SQL["add_attempts"], [attempt])
    row = (decision.id, after.state, after.reason, provider, None, possible, now)
    insert_many(connection, SQL["set_notifications"], [row])
    if after.state in LIVE:
        due = None if after.state == "uncertain" else after.due_ms
        connection.execute(SQL["move_dispatch"], (decision.id, last + 1, due, after.state, encode(after)))
    else:
        run_in(connection, SQL["end_dispatches"], [decision.id])


# ------------------------------------------------------------------------------------------------ erasure and purge


def erase(connection: apsw.Connection, tenant: str, recipient: str, reason: str, by: str, now: int) -> int:
    """Erase a recipient's notifications. Pending ones are cancelled first; those in flight or uncertain stay."""
    over: list[bytes] = []
    for id, state, taken, due, delivery_state in rows(connection, SQL["erasable"], *_two(tenant, recipient)):
        if state in LIVE:
            if state != "pending" or (taken and due > now) or in_doubt(delivery_state_of(delivery_state)):
                continue
            decide(connection, Decision(id, "cancelled", reason, by), now)
        over.append(id)
    erase_contents(connection, over)
    return len(over)


def purge(connection: apsw.Connection, content_ms: int, identity_ms: int, limit: int, now: int) -> int:
    """Delete contents, identities and guards past their retention, in small steps that read only deleted rows.

    A guard is kept as long after its window as an identity: the window of another notification may be longer."""
    erased = [id for (id,) in rows(connection, SQL["contents_over"], now - min(content_ms, identity_ms), limit)]
    erase_contents(connection, erased)
    left = limit - len(erased)
    forgotten = [id for (id,) in rows(connection, SQL["identities_over"], now - identity_ms, left)]
    run_in(connection, SQL["forget_attempts"], forgotten)
    run_in(connection, SQL["forget_notifications"], forgotten)
    guards = rows(connection, SQL["forget_old_guards"], now - identity_ms, left - len(forgotten))
    return len(erased) + len(forgotten) + len(guards)


def erase_contents(connection: apsw.Connection, ids: Sequence[bytes]) -> None:
    """Erase contents, recipients and evidence. The identities stay."""
    run_in(connection, SQL["erase_notifications"], ids)
    run_in(connection, SQL["erase_attempts"], ids)

"""Queries, decisions, erasure and the purge of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from semel.ledgers.sqlite.guards import hand_back
from semel.ledgers.sqlite.statements import SQL, rows, select_many, write_many
from semel.values.delivery_state import LIVE, State, decided, in_doubt, left_in_doubt_ms
from semel.values.notification import recipient_digests
from semel.values.notification_codec import (
    by_wall_clock,
    delivery_state_of,
    encode,
    guard_of,
    not_after_of,
    view_of,
)
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

ENDED: tuple[State, ...] = ("failed", "undelivered", "suppressed", "expired", "cancelled")
STATUS_ROWS = 1_000  # of one recipient and kind: the newest decide. Few recipients have so many


def status(connection: apsw.Connection, tenant: str, recipient: str, kind: str, key: str) -> Status:
    values: tuple[str | bytes, ...] = tenant, key
    if key:
        condition = "tenant = ? and key = ?"
    elif kind:
        condition, values = "recipient_digest in (?, ?) and kind = ?", (*_digests(tenant, recipient), kind)
    else:
        condition, values = "recipient_digest in (?, ?)", _digests(tenant, recipient)
    found = rows(connection, SQL["status"].format(condition=condition, limit=STATUS_ROWS), *values)
    return most_informative(
        Status(unsent_status(in_doubt), id.hex(), state, changed_ms, provider, reference or "", reason)
        for id, state, changed_ms, provider, reference, reason, in_doubt in found
    )


def find(connection: apsw.Connection, query: NotificationQuery) -> list[NotificationView]:
    tenant = "n.tenant = ?" if query.key else "+n.tenant = ?"  # its index serves keys: everything else is found by time
    conditions: dict[str, Any] = {
        tenant: query.tenant,
        "n.recipient_digest in (?, ?)": _digests(query.tenant or "", query.recipient) if query.recipient else None,
        "n.key = ?": query.key or None,
        f"{'' if query.recipient else '+'}n.kind = ?": query.kind or None,
        "ifnull(d.lane, n.provider) = ?": query.provider or None,  # not sent yet: found by its lane
        "n.added_ms >= ?": query.since_ms or None,
        "n.added_ms < ?": query.until_ms if query.after_id is None else None,
    }
    if query.after_id is not None:
        until = (query.until_ms, query.until_ms, query.after_id)
        conditions["n.added_ms <= ? and (n.added_ms < ? or n.id > ?)"] = until
    if query.state in LIVE:  # they are few: by the hot table
        conditions["d.state = ?"] = query.state
    elif query.state in ENDED:
        conditions[f"n.state = ? and n.state in {ENDED}"] = query.state  # the condition of its index
    elif query.state:
        conditions["+n.state = ?"] = query.state
    filters = {sql: value for sql, value in conditions.items() if value is not None}
    where = " and ".join([*filters, *(["n.possible_duplicates > 0"] if query.possible_duplicates else [])])
    where = f" where {where}" if where else ""
    sql = f"{SQL['notification_views']}{where} order by n.added_ms desc, n.id limit ?"
    values = [item for value in filters.values() for item in (value if isinstance(value, tuple) else (value,))]
    found: list[NotificationView] = []
    size = 0
    for row in connection.execute(sql, (*values, query.limit)):  # row by row: rows beyond the limit are not read
        found.append(view_of(row, ()))
        size += found[-1].size
        if query.bytes_max is not None and size > query.bytes_max:
            break
    return found


def _digests(tenant: str, recipient: str) -> tuple[bytes, bytes]:
    """Return the digests of a recipient, for statements with two placeholders."""
    digests = recipient_digests(tenant, recipient)
    return digests[0], digests[-1]


def show(connection: apsw.Connection, id: bytes) -> NotificationView | None:
    found = rows(connection, f"{SQL['notification_views']} where n.id = ?", id)
    if not found:
        return None
    return view_of(found[0], [Attempt(*row) for row in rows(connection, SQL["attempts_of_notification"], id)])


def backlog(connection: apsw.Connection) -> list[Backlog]:
    return [Backlog(*row) for row in rows(connection, SQL["backlog"])]


# -------------------------------------------------------------------------------------------------------- decisions


def decide(connection: apsw.Connection, decision: Decision, now: int, ahead_ms: int = 0) -> State | None:
    """Apply an operator's decision. Returns the new state; None if the notification is unknown, over, or refuses it."""
    found = rows(connection, SQL["open_notification"], decision.id)
    if not found:
        return None
    state, tenant, recipient, kind, provider, options, possible_duplicates, taken, due_ms, delivery_state = found[0]
    before = replace(delivery_state_of(delivery_state), state=state)
    if (not_after := not_after_of(options)) is not None:
        before = by_wall_clock(before, not_after, ahead_ms)
    after = decided(before, decision.resolution, decision.summary, not taken or due_ms <= now, now)
    if after is None:
        return None
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + 1,))
    crossed_ms = left_in_doubt_ms(before, after)
    attempt = (
        decision.id,
        last + 1,
        decision.resolution,
        0,
        provider,
        crossed_ms,
        now,
        decision.reason,
        None,
        decision.by,
    )
    write_many(connection, SQL["add_attempts"], [attempt])
    row = (decision.id, after.state, after.reason, provider, None, possible_duplicates, now)
    write_many(connection, SQL["set_notifications"], [row])
    if after.state in LIVE:
        next_due_ms = None if after.state == "uncertain" else after.due_ms
        connection.execute(SQL["move_dispatch"], (decision.id, last + 1, next_due_ms, after.state, encode(after)))
        return after.state
    select_many(connection, SQL["delete_dispatches"], [decision.id])
    if state == "pending" or after.state == "expired":  # nothing was sent
        guard = guard_of(tenant, recipient, kind, options)
        if guard is not None:
            hand_back(connection, [guard], [decision.id])
    return after.state


# ------------------------------------------------------------------------------------------------ erasure and purge


def erase(connection: apsw.Connection, tenant: str, recipient: str, reason: str, by: str, now: int) -> int:
    """Erase a recipient's notifications. Pending ones are cancelled first; those in flight or uncertain stay."""
    over: list[bytes] = []
    for id, state, taken, due_ms, delivery_state in rows(connection, SQL["erasable"], *_digests(tenant, recipient)):
        if state in LIVE:
            if state != "pending" or (taken and due_ms > now) or in_doubt(delivery_state_of(delivery_state)):
                continue
            decide(connection, Decision(id, "cancelled", reason, by), now)
        over.append(id)
    _erase_contents(connection, over)
    return len(over)


def purge(connection: apsw.Connection, content_ms: int, identity_ms: int, limit: int, now: int) -> int:
    """Delete contents, identities and guards past their retention, in small steps that read only deleted rows.

    A guard is kept as long after its window as an identity: the window of another notification may be longer."""
    contents = [id for (id,) in rows(connection, SQL["contents_over"], now - min(content_ms, identity_ms), limit)]
    _erase_contents(connection, contents)
    remaining = limit - len(contents)
    identities = [id for (id,) in rows(connection, SQL["identities_over"], now - identity_ms, remaining)]
    select_many(connection, SQL["delete_attempts"], identities)
    select_many(connection, SQL["delete_notifications"], identities)
    guards = rows(connection, SQL["delete_old_guards"], now - identity_ms, remaining - len(identities))
    return len(contents) + len(identities) + len(guards)


def _erase_contents(connection: apsw.Connection, ids: Sequence[bytes]) -> None:
    """Erase contents, recipients and evidence. The identities stay."""
    select_many(connection, SQL["erase_notifications"], ids)
    select_many(connection, SQL["erase_attempts"], ids)

"""What people ask of the outbox, and what they decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from semel.adapters.ledgers.sqlite.outbox import forgetting, guards
from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows, run_in
from semel.values.notification import who_any
from semel.values.outbox import Attempt, Backlog, Decision, Shown, Sought, Status, told_of, told_unsent
from semel.values.sending import LIVE, Standing, State, decided, in_doubt, left_in_doubt_ms
from semel.values.stored import (
    by_wall_clock,
    encode,
    guard_of,
    not_after_of,
    readable,
    readable_standing,
    standing_of,
)

ENDED: tuple[State, ...] = ("failed", "undelivered", "suppressed", "expired", "cancelled")
STATUS_ROWS = 1_000  # of one recipient and kind: the newest ones speak. Few have so many


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


def find(connection: apsw.Connection, sought: Sought) -> list[Shown]:
    tenant = "n.tenant = ?" if sought.key else "+n.tenant = ?"  # its index is for keys: all else is found by time
    conditions: dict[str, Any] = {
        tenant: sought.tenant,
        "n.who in (?, ?)": _two(sought.tenant or "", sought.recipient) if sought.recipient else None,
        "n.key = ?": sought.key or None,
        f"{'' if sought.recipient else '+'}n.kind = ?": sought.kind or None,
        "ifnull(d.lane, n.provider) = ?": sought.provider or None,  # what has not left yet, by where it is to go
        "n.added >= ?": sought.since_ms or None,
        "n.added < ?": sought.until_ms if sought.after_id is None else None,
    }
    if sought.after_id is not None:
        until = (sought.until_ms, sought.until_ms, sought.after_id)
        conditions["n.added <= ? and (n.added < ? or n.id > ?)"] = until
    if sought.state in LIVE:  # there are few: by the hot table
        conditions["d.state = ?"] = sought.state
    elif sought.state in ENDED:
        conditions[f"n.state = ? and n.state in {ENDED}"] = sought.state  # as its index says it
    elif sought.state:
        conditions["+n.state = ?"] = sought.state
    said = {sql: value for sql, value in conditions.items() if value is not None}
    where = " and ".join([*said, *(["n.possible > 0"] if sought.possible_duplicates else [])])
    where = f" where {where}" if where else ""
    sql = f"{SQL['shown']}{where} order by n.added desc, n.id limit ?"
    values = [one for value in said.values() for one in (value if isinstance(value, tuple) else (value,))]
    found: list[Shown] = []
    size = 0
    for row in connection.execute(sql, (*values, sought.limit)):  # row by row: what is left out is not read
        found.append(_shown(row, ()))
        size += found[-1].size
        if sought.bytes_max is not None and size > sought.bytes_max:
            break
    return found


def _two(tenant: str, recipient: str) -> tuple[bytes, bytes]:
    """The digests of a recipient, for statements with two places."""
    who = who_any(tenant, recipient)
    return who[0], who[-1]


def show(connection: apsw.Connection, id: bytes) -> Shown | None:
    found = rows(connection, f"{SQL['shown']} where n.id = ?", id)
    if not found:
        return None
    return _shown(found[0], [Attempt(*row) for row in rows(connection, SQL["attempts_of"], id)])


def backlog(connection: apsw.Connection) -> list[Backlog]:
    return [Backlog(*row) for row in rows(connection, SQL["backlog"])]


def _shown(row: Row, attempts: Sequence[Attempt]) -> Shown:
    id, tenant, key, kind, recipient, channel, generation, content, options = row[:9]
    state, reason, provider, added, changed, due, possible, by, standing, taken = row[9:]
    return Shown(
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
        standing=readable_standing(standing),
        taken=bool(taken),
        size=len(content or b""),
    )


# --------------------------------------------------------------------------------------------------------- deciding


def decide(connection: apsw.Connection, decision: Decision, now: int, ahead_ms: int = 0) -> State | None:
    found = rows(connection, SQL["decided_upon"], decision.id)
    if not found or found[0][10] is None:  # unknown, or over
        return None
    state, tenant, recipient, kind, provider, options, possible, _, taken, due, standing = found[0]
    free = not taken or due <= now
    before = replace(standing_of(standing), state=state)
    if (not_after := not_after_of(options)) is not None:
        before = by_wall_clock(before, not_after, ahead_ms)
    after = decided(before, decision.says, decision.told, free, now)
    if after is None:
        return None
    _write(connection, decision, after, left_in_doubt_ms(before, after), provider, possible, now)
    if after.state not in LIVE and (state == "pending" or after.state == "expired"):  # nothing has left
        guard = guard_of(tenant, recipient, kind, options)
        if guard is not None:
            guards.free(connection, [guard], [decision.id])
    return after.state


def _write(
    connection: apsw.Connection, decision: Decision, after: Standing, left: int, provider: str, possible: int, now: int
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


# ---------------------------------------------------------------------------------------------------------- erasing


def erase(connection: apsw.Connection, tenant: str, recipient: str, reason: str, by: str, now: int) -> int:
    """What has not left is cancelled first; what is under way or uncertain stays until it is over."""
    over: list[bytes] = []
    for id, state, taken, due, standing in rows(connection, SQL["erasable"], *_two(tenant, recipient)):
        if state in LIVE:
            if state != "pending" or (taken and due > now) or in_doubt(standing_of(standing)):
                continue
            decide(connection, Decision(id, "cancelled", reason, by), now)
        over.append(id)
    forgetting.erase(connection, over)
    return len(over)

"""What is one notification, and what is another."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, select_in
from semel.values.key import content_digest
from semel.values.notification import Notification, who_is
from semel.values.outbox import Added, lane_of
from semel.values.sending import Standing
from semel.values.stored import encode, options_of

ERASED_FP = b""  # nobody can tell what it said


def add(connection: apsw.Connection, notifications: Sequence[Notification], now: int) -> list[Added]:
    """Two statements: a look at what is known, and a write of what is new (of a batch, for each piece of it)."""
    ids = [one.id for one in notifications]
    contents = [one.content for one in notifications]
    known = {id: (fp, state) for id, fp, state in select_in(connection, SQL["known_notifications"], ids)}
    fresh: list[tuple[bytes, bytes, Notification]] = []
    answers: list[Added] = []
    for id, content, notification in zip(ids, contents, notifications, strict=True):
        fp = content_digest(content)
        if id not in known:
            known[id] = (fp, "pending")
            fresh.append((id, content, notification))
            answers.append(Added(id.hex(), "added"))
        else:
            first, state = known[id]
            answers.append(Added(id.hex(), "known" if first in (fp, ERASED_FP) else "conflict", state))
    if fresh:
        insert_many(connection, SQL["add_notifications"], [_row_of(*one, now) for one in fresh])
    return answers


def _row_of(id: bytes, content: bytes, one: Notification, now: int) -> Row:
    options = options_of(one)
    standing = Standing(provider=one.provider, not_after_ms=options.not_after_ms, policy=one.policy or "hold")
    ordered = who_is(one.tenant, one.order) if one.order else None
    return (
        *(id, one.tenant, one.key, one.kind, one.recipient, who_is(one.tenant, one.recipient), one.channel),
        *(one.generation, content, content_digest(content), encode(options), now),
        *(lane_of(one.provider, one.channel), one.priority, encode(standing), ordered),
    )

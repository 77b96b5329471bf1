"""The outbox of a PostgreSQL ledger: adds, takes, crosses and records notifications.

The functions run on a connection. `PostgresOutbox` runs them on connections of the ledger's pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_args

from semel.ledgers.postgres import outbox_queries
from semel.ledgers.postgres.pool import Changed, Pool, with_retries
from semel.ledgers.postgres.rows import columns_of, storable_text
from semel.ledgers.postgres.statements import statements
from semel.values.delivery_state import LIVE, OVER_UNSENT, DeliveryState, Reported, State, reported
from semel.values.errors import LedgerUnavailable
from semel.values.log import log
from semel.values.notification import ADD, Notification, check_batch, recipient_digest
from semel.values.notification_codec import UNREADABLE, delivery_state_of, encode, notification_of, options_of
from semel.values.outbox import (
    Added,
    Backlog,
    Crossed,
    Crossing,
    CrossingVerdict,
    Decision,
    DeliveryReport,
    Dispatch,
    Held,
    Lane,
    Lost,
    NotificationQuery,
    NotificationView,
    Record,
    Status,
    Suppressed,
    lane_of,
)

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection


async def add(
    connection: Connection, notifications: Sequence[Notification], now: int | None, schema: str
) -> list[Added]:
    """Add new notifications, and detect repeats and conflicts by identity.

    One statement, alone or in a transaction of the connection's owner."""
    columns = notification_columns(notifications)
    rows = await connection.fetch(statements(schema)["add_notifications"], now, *columns)
    if len(rows) < len(notifications):
        raise Changed  # a known one was purged before it could be read
    rows.sort(key=lambda row: row[0])
    return [Added(id.hex(), status, state) for id, (_, status, state) in zip(columns[0], rows, strict=True)]


def notification_columns(notifications: Sequence[Notification]) -> list[list[Any]]:
    """Return the arguments of semel.add_notifications after the time, one array each. Other drivers use them, too."""
    rows: list[tuple[Any, ...]] = []
    for item in notifications:
        options = options_of(item)
        state = DeliveryState(provider=item.provider, not_after_ms=options.not_after_ms, policy=item.policy or "hold")
        order = recipient_digest(item.tenant, item.order) if item.order else None
        row = (
            *(
                item.id,
                recipient_digest(item.tenant, item.recipient),
                item.guarded_by,
                order,
                item.generation,
                item.priority,
            ),
            *(item.tenant, item.key, item.kind, item.recipient, item.channel, lane_of(item.provider, item.channel)),
            *(encode(options).decode(), encode(state), item.content),
        )
        rows.append(row)
    return columns_of(rows)


# ------------------------------------------------------------------------------------------------------------- take

AHEAD_MS = 1_000  # slots of a rate are assigned this far into the future
UNREADABLE_MS = 600_000  # delay before an unreadable notification is tried again
TAKE_MAX = 100_000  # dispatches of one lane in one take


async def take(
    connection: Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int | None, schema: str
) -> list[Dispatch]:
    """Take dispatches by priority, and then the longest due first. Tenants share the rate of each provider.

    A dispatch that cannot be decoded is postponed, and does not prevent others from being taken."""
    wanted = [
        (storable_text(name), min(lane.room, TAKE_MAX), storable_text(lane.provider), max(lane.per_second, 0.0))
        for name, lane in lanes.items()
        if lane.room > 0
    ]
    if not wanted:
        return []
    sql = statements(schema)
    rows = await connection.fetch(sql["take_notifications"], *columns_of(wanted), AHEAD_MS, lease_ms, now)
    rows.sort(key=lambda row: row[2])  # tokens are in sending order
    dispatches: list[Dispatch] = []
    postponed: list[tuple[Any, ...]] = []
    for row in rows:
        try:
            dispatches.append(_dispatch_of(row))
        except UNREADABLE as error:
            taken_ms, id, token, _, vanished, *_ = row
            log.error("notification_unreadable", notification_id=id.hex(), error=error)
            postponed.append((id, token, vanished, taken_ms + UNREADABLE_MS))
    if postponed:
        await connection.execute(sql["postpone_dispatches"], *columns_of(postponed))
    return dispatches


def _dispatch_of(row: Any) -> Dispatch:
    taken_ms, id, token, slot_ms, vanished, state, request, *identity, content, options, added_ms = row
    tenant, key, kind, recipient, channel, generation = identity
    return Dispatch(
        id=id,
        token=token,
        notification=notification_of(tenant, key, kind, recipient, channel, generation, content, options),
        content=content,
        delivery_state=delivery_state_of(state),
        taken_ms=taken_ms,
        slot_ms=slot_ms,
        vanished=vanished,
        request=request,
        added_ms=added_ms,
    )


# ------------------------------------------------------------------------------------------------------------ cross

CROSSED, HELD = 1, 2  # 3: suppressed


async def cross(
    connection: Connection, crossings: Sequence[Crossing], now: int | None, schema: str
) -> list[CrossingVerdict]:
    """Decide each crossing in order. Each one sees the guards that the crossings before it have passed.

    The first crossing of one dispatch counts."""
    first: dict[bytes, int] = {}
    for at, crossing in enumerate(crossings):
        first.setdefault(crossing.dispatch.id, at)
    positions = list(first.values())
    columns = columns_of([_crossing_row(crossings[at]) for at in positions])
    verdicts: list[CrossingVerdict] = [Lost()] * len(crossings)
    for ordinal, number, blocked_by in await connection.fetch(statements(schema)["cross"], now, *columns):
        verdict = Crossed() if number == CROSSED else Held(blocked_by) if number == HELD else Suppressed(blocked_by)
        verdicts[positions[ordinal - 1]] = verdict
    return verdicts


def _crossing_row(crossing: Crossing) -> tuple[Any, ...]:
    dispatch, state = crossing.dispatch, crossing.delivery_state
    guard = dispatch.notification.guard
    window_ms = 0 if guard is None else int(1000 * guard.window_s)
    return (
        *(dispatch.id, dispatch.token, dispatch.added_ms, dispatch.notification.guarded_by, window_ms),
        *(bool(state.doubt_ms), storable_text(state.provider), state.attempts, state.possible_duplicates),
        *(encode(state), crossing.request),
    )


# -------------------------------------------------------------------------------------- records and delivery reports

STATE_CHANGES = [  # the changes that delivery reports cause: from, report, to
    (state, report, new_state)
    for state in get_args(State)
    for report in get_args(Reported)
    if (new_state := reported(state, report)) != state
]
SENT = ("accepted", "refused", "limited", "unknown")  # outcomes of a notification that has crossed


async def record(connection: Connection, records: Sequence[Record], now: int | None, schema: str) -> list[bool]:
    """Write the records whose token is current. True also for a record that was written before.

    The first record of one token counts."""
    first: dict[tuple[bytes, int], Record] = {}
    for item in records:
        first.setdefault((item.dispatch.id, item.dispatch.token), item)
    ids, tokens = zip(*first, strict=True)
    rows = [_record_row(item) for item in first.values()]
    alternatives: list[int | None] = []  # ordinals of rows that may be written instead
    for item in first.values():
        if item.otherwise is None:
            alternatives.append(None)
        else:
            rows.append(_record_row(item.unless(b"")))
            alternatives.append(len(rows))
    written = await connection.fetch(
        statements(schema)["record_results"], now, ids, tokens, alternatives, *columns_of(rows)
    )
    recorded = {(ids[ordinal - 1], tokens[ordinal - 1]) for (ordinal,) in written}
    return [(item.dispatch.id, item.dispatch.token) in recorded for item in records]


def _record_row(item: Record) -> tuple[Any, ...]:
    before, after = item.dispatch.delivery_state, item.delivery_state
    is_live = after.state in LIVE
    waits = is_live and (after.state != "uncertain" or bool(after.exit))
    keeps_request = after.provider == before.provider or not before.provider
    frees_guard = after.state in OVER_UNSENT and item.outcome != "policy"  # given up by policy: may have been sent
    return (
        *(item.outcome, after.state, storable_text(after.reason), storable_text(after.provider)),
        *(storable_text(item.reference) or None, after.possible_duplicates, after.attempts),
        *(storable_text(before.provider or after.provider), after.crossed_ms if item.outcome in SENT else 0),
        *(storable_text(item.evidence), is_live, after.due_ms if waits else None),
        *(storable_text(lane_of(after.provider, item.dispatch.notification.channel)), encode(after)),
        *(keeps_request, frees_guard),
    )


async def apply_reports(
    connection: Connection, reports: Sequence[DeliveryReport], now: int | None, schema: str
) -> list[State | None]:
    """Record delivery reports of providers. Returns the state of each notification; None if it is unknown."""
    written = [
        (
            *(report.id, report.status, storable_text(report.provider), storable_text(report.reference) or None),
            *(report.at_ms, storable_text(report.evidence)),
        )
        for report in reports
    ]
    sql = statements(schema)["apply_delivery_reports"]
    rows = await connection.fetch(sql, now, *columns_of(written), *columns_of(STATE_CHANGES))
    return [state for _, state in sorted(rows, key=lambda row: row[0])]


# ------------------------------------------------------------------------------------------------------------ outbox

T = TypeVar("T")


class Write(Protocol):
    """Runs work on a connection of the ledger as one unit."""

    def __call__(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> Awaitable[T]: ...


class PostgresOutbox:
    """The outbox of a ledger's database. Several processes may use it at once."""

    def __init__(self, write: Write, pool: Pool, readers: Pool, now: Callable[[], int | None], schema: str) -> None:
        self._write = write
        self._pool = pool
        self._readers = readers  # for operators, whose queries may take long
        self._now = now
        self._schema = schema

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        check_batch(notifications, ADD)
        if not notifications:
            return []
        return await self._repeat(lambda c: add(c, notifications, self._now(), self._schema))

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        pending = asyncio.ensure_future(self._repeat(lambda c: take(c, lanes, lease_ms, self._now(), self._schema)))
        try:
            return await asyncio.shield(pending)
        except asyncio.CancelledError:
            # The caller is gone: release now, not when leases expire. A dispatch that a vanished relay left behind
            # stays taken, so that this stays known.
            with suppress(LedgerUnavailable):
                taken = [item for item in await pending if not item.vanished]
                await self.record([Record(item, item.delivery_state, "released") for item in taken])
            raise

    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        if not crossings:
            return []
        return await self._repeat(lambda c: cross(c, crossings, self._now(), self._schema))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        if not records:
            return []
        return await self._repeat(lambda c: record(c, records, self._now(), self._schema))

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        if not reports:
            return []
        return await self._repeat(lambda c: apply_reports(c, reports, self._now(), self._schema))

    # ---------------------------------------------------------------------------------------------------- operators

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        return await self._pool.run(lambda c: outbox_queries.status(c, tenant, recipient, kind, key, self._schema))

    async def find(self, query: NotificationQuery) -> list[NotificationView]:
        return await self._readers.run(lambda c: outbox_queries.find(c, query, self._schema))

    async def show(self, id: bytes) -> NotificationView | None:
        return await self._readers.run(lambda c: outbox_queries.show(c, id, self._schema))

    async def decide(self, decision: Decision) -> State | None:
        return await self._repeat(lambda c: outbox_queries.decide(c, decision, self._now(), self._schema))

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        return await self._repeat(
            lambda c: outbox_queries.erase(c, tenant, recipient, reason, by, self._now(), self._schema)
        )

    async def backlog(self) -> list[Backlog]:
        return await self._readers.run(lambda c: outbox_queries.backlog(c, self._schema))

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        return await self._repeat(
            lambda c: outbox_queries.purge(c, content_ms, identity_ms, limit, self._now(), self._schema)
        )

    # ------------------------------------------------------------------------------------------------------ private

    async def _repeat(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run work as one unit. It is repeated after a deadlock."""
        return await self._write(with_retries(work))

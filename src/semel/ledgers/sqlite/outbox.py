"""The outbox of a SQLite ledger: adds, takes, crosses and records notifications.

The functions run inside an immediate transaction of the writer thread. `SqliteOutbox` submits them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from operator import itemgetter

import apsw

from semel.ledgers.sqlite import outbox_queries
from semel.ledgers.sqlite.guards import GuardPass, LastPass, earlier_passes, hand_back, last_passes
from semel.ledgers.sqlite.statements import SQL, Row, rows, select_many, write_many
from semel.ledgers.sqlite.writer import Writer
from semel.values.delivery_state import LIVE, OVER_UNSENT, RANK, DeliveryState, State, reported
from semel.values.errors import LedgerUnavailable
from semel.values.key import content_digest
from semel.values.log import log
from semel.values.notification import ADD, Notification, check_batch, recipient_digest
from semel.values.notification_codec import (
    UNREADABLE,
    by_wall_clock,
    delivery_state_of,
    encode,
    guard_of,
    notification_of,
    options_of,
)
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

# -------------------------------------------------------------------------------------------------------------- add

ID, FINGERPRINT = 0, 9  # positions in a new row
ERASED_FINGERPRINT = b""  # of an erased content: it matches every content


def add(connection: apsw.Connection, notifications: Sequence[Notification], now: int) -> list[Added]:
    """Add new notifications, and detect repeats and conflicts by identity."""
    new_rows = [new_row(item, now) for item in notifications]
    found = select_many(connection, SQL["known_notifications"], [row[ID] for row in new_rows])
    results, fresh = detect_repeats(new_rows, {id: (fingerprint, state) for id, fingerprint, state in found})
    if fresh:
        write_many(connection, SQL["add_notifications"], fresh)
    return results


def detect_repeats(new_rows: Sequence[Row], known: dict[bytes, tuple[bytes, State]]) -> tuple[list[Added], list[Row]]:
    """Compare rows with the known notifications and with each other. Returns all results, and the rows that are new."""
    fresh: list[Row] = []
    results: list[Added] = []
    for row in new_rows:
        id, fingerprint = row[ID], row[FINGERPRINT]
        if id not in known:
            known[id] = fingerprint, "pending"
            fresh.append(row)
            results.append(Added(id.hex(), "added"))
        else:
            stored, state = known[id]
            matches = stored in (fingerprint, ERASED_FINGERPRINT)
            results.append(Added(id.hex(), "known" if matches else "conflict", state))
    return results, fresh


def new_row(item: Notification, now: int) -> Row:
    """Return the columns of `semel_new_notification`."""
    options, content = options_of(item), item.content
    state = DeliveryState(provider=item.provider, not_after_ms=options.not_after_ms, policy=item.policy or "hold")
    order_digest = recipient_digest(item.tenant, item.order) if item.order else None
    return (
        *(
            item.id,
            item.tenant,
            item.key,
            item.kind,
            item.recipient,
            recipient_digest(item.tenant, item.recipient),
            item.channel,
        ),
        *(item.generation, content, content_digest(content), encode(options), now),
        *(lane_of(item.provider, item.channel), item.priority, encode(state), order_digest),
    )


# ------------------------------------------------------------------------------------------------------------- take

UNREADABLE_MS = 600_000  # delay before an unreadable notification is tried again
AHEAD_MS = 1_000  # slots of a rate are assigned this far into the future
SPARE = 200  # dispatches behind an older one of their order key that a take skips; if there are more, they are blocked
BLOCKED_MAX = 2_000  # dispatches blocked at a time
LOOKS = 10  # reads in one take: each starts behind the dispatches that were blocked

_OF_LANE = {"index": "semel_dispatch_due", "of_tenant": ""}
_OF_TENANT = {"index": "semel_dispatch_tenant", "of_tenant": "and i.tenant = ?6"}
_DUE_OF_LANE, _DUE_OF_TENANT = (SQL["due_dispatches"].format(**scope) for scope in (_OF_LANE, _OF_TENANT))
_BLOCK_OF_LANE, _BLOCK_OF_TENANT = (SQL["block_behind_older"].format(**scope) for scope in (_OF_LANE, _OF_TENANT))

_longest_due = itemgetter(13, 14)


def take(
    connection: apsw.Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int, ahead_ms: int = 0
) -> list[Dispatch]:
    """Take dispatches by priority, and then the longest due first. Tenants share the rate of each provider.

    `ahead_ms`: how far `now` is ahead of the wall clock."""
    names = encode([name for name, lane in lanes.items() if lane.room > 0]).decode()
    due = rows(connection, SQL["due_lanes"], names, now)
    if not due:
        return []
    ((last,),) = rows(connection, SQL["last_token"])
    taken: list[Dispatch] = []
    unreadable: list[Row] = []
    rates = _Rates(connection, now)
    for name in dict.fromkeys(name for name, _ in due):
        lane, room = lanes[name], lanes[name].room
        priorities = sorted(priority for lane_name, priority in due if lane_name == name)
        for row in _in_order(connection, name, lane, priorities, rates, now):
            try:
                slot = rates.slot(lane, row[4])
                dispatch = _dispatch_of(row, last + len(taken) + 1, now, slot, ahead_ms)
            except UNREADABLE:
                log.error("notification_unreadable", notification_id=row[0].hex())
                unreadable.append((row[0], now + UNREADABLE_MS))
                continue
            taken.append(dispatch)
            room -= 1
            if room < 1:
                break
    if taken:
        connection.execute(SQL["set_last_token"], (last + len(taken),))
        write_many(connection, SQL["take_dispatches"], [(item.id, item.token, now + lease_ms) for item in taken])
    if unreadable:
        write_many(connection, SQL["postpone_dispatches"], unreadable)
    rates.write()
    return taken


def _in_order(
    connection: apsw.Connection, name: str, lane: Lane, priorities: Sequence[int], rates: _Rates, now: int
) -> Iterator[Row]:
    """Yield the due dispatches of one lane in sending order. A tenant that has used up its rate is skipped; its
    dispatches keep their place."""
    if lane.per_second <= 0:
        for priority in priorities:
            yield from _due(connection, name, priority, lane.room, now)
        return
    tenants = rows(connection, SQL["due_tenants"], name, now)
    for priority in priorities:
        found: list[Row] = []
        for tenant in [tenant for tenant, tenant_priority in tenants if tenant_priority == priority]:
            if (free := rates.free(lane, tenant)) > 0:
                found += _due(connection, name, priority, min(free, lane.room), now, tenant)
        yield from sorted(found, key=_longest_due)


def _due(
    connection: apsw.Connection, name: str, priority: int, room: int, now: int, tenant: str | None = None
) -> list[Row]:
    """Return due dispatches of one priority, also if thousands wait behind one of their order key."""
    due, block = (_DUE_OF_LANE, _BLOCK_OF_LANE) if tenant is None else (_DUE_OF_TENANT, _BLOCK_OF_TENANT)
    filters = () if tenant is None else (tenant,)
    examined = room + SPARE
    found: list[Row] = []
    for _ in range(LOOKS):
        found = rows(connection, due, name, priority, now, room, examined, *filters)
        if len(found) == room or not rows(connection, block, name, priority, now, BLOCKED_MAX, examined, *filters):
            break
    return found


class _Rates:
    """Slots of each provider and tenant over all processes: evenly spaced times at which a message may be sent."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._next: dict[tuple[str, str], float] = {}
        self._read: set[str] = set()
        self._changed: set[tuple[str, str]] = set()

    def free(self, lane: Lane, tenant: str) -> int:
        """Return how many slots may be assigned now."""
        ahead = self._now + AHEAD_MS - self._first(lane, tenant)
        return int(ahead * lane.per_second / 1000) + 1 if ahead >= 0 else 0

    def slot(self, lane: Lane, tenant: str) -> int:
        """Assign the next slot. 0 means that there is no limit."""
        if lane.per_second <= 0:
            return 0
        slot = self._first(lane, tenant)
        self._next[(lane.provider, tenant)] = slot + 1000 / lane.per_second
        self._changed.add((lane.provider, tenant))
        return int(slot) + 1 if slot > self._now else int(slot)

    def _first(self, lane: Lane, tenant: str) -> float:
        if lane.provider not in self._read:
            self._read.add(lane.provider)
            for provider, tenant_name, next_ms in rows(self._connection, SQL["rates"], lane.provider):
                self._next[(provider, tenant_name)] = next_ms
        next_ms = self._next.get((lane.provider, tenant), 0.0)
        if (
            next_ms > self._now + AHEAD_MS + 1000 / lane.per_second + 1
        ):  # no slot is assigned so late: the clock went back
            next_ms = float(self._now + AHEAD_MS)
        return max(next_ms, float(self._now))

    def write(self) -> None:
        if self._changed:
            write_many(self._connection, SQL["set_rates"], [(*key, self._next[key]) for key in sorted(self._changed)])


def _dispatch_of(row: Row, token: int, now: int, slot: int, ahead_ms: int) -> Dispatch:
    id, was_taken, state, request, tenant, key, kind, recipient, channel, generation, content, options, added_ms = row[
        :13
    ]
    notification = notification_of(tenant, key, kind, recipient, channel, generation, content, options)
    return Dispatch(
        id=id,
        token=token,
        notification=notification,
        content=content,
        delivery_state=by_wall_clock(delivery_state_of(state), notification.not_after, ahead_ms),
        taken_ms=now,
        slot_ms=slot,
        vanished=bool(was_taken),
        request=request,
        added_ms=added_ms,
        ahead_ms=ahead_ms,
    )


# ------------------------------------------------------------------------------------------------------------ cross


def cross(connection: apsw.Connection, crossings: Sequence[Crossing], now: int) -> list[CrossingVerdict]:
    """Decide each crossing in order. Each one sees the guards that the crossings before it have passed."""
    owners = _owners(connection, [crossing.dispatch.id for crossing in crossings])
    guarded = [key for crossing in crossings if (key := crossing.dispatch.notification.guarded_by) is not None]
    guards = last_passes(connection, guarded)
    verdicts: list[CrossingVerdict] = []
    crossed: list[tuple[Crossing, Sequence[GuardPass]]] = []
    suppressed: list[tuple[Crossing, bytes]] = []
    for crossing in crossings:
        verdict = _crossing_verdict(crossing, owners, guards, now)
        match verdict:
            case Crossed():
                del owners[crossing.dispatch.id]  # a token crosses once
                key = crossing.dispatch.notification.guarded_by
                earlier = earlier_passes(crossing.dispatch, None if key is None else guards.get(key))
                crossed.append((crossing, earlier))
                if key is not None:
                    guards[key] = LastPass(crossing.dispatch.id, now, "sending", earlier)
            case Suppressed(by=by):
                suppressed.append((crossing, by))
        verdicts.append(verdict)
    if crossed:
        _write_crossings(connection, crossed, now)
    if suppressed:
        reasons = [(item.dispatch.id, f"its guard has let {by.hex()} through", by, now) for item, by in suppressed]
        write_many(connection, SQL["suppress_notifications"], reasons)
        select_many(connection, SQL["delete_dispatches"], [item.dispatch.id for item, _ in suppressed])
    return verdicts


def _owners(connection: apsw.Connection, ids: Sequence[bytes]) -> dict[bytes, tuple[int, int, str]]:
    """Return token, taken and state of each dispatch."""
    found = select_many(connection, SQL["dispatch_owners"], ids)
    return {id: (token, taken, state) for id, token, taken, state in found}


def _crossing_verdict(
    crossing: Crossing,
    owners: Mapping[bytes, tuple[int, int, str]],
    guards: Mapping[bytes, LastPass],
    now: int,
) -> CrossingVerdict:
    dispatch = crossing.dispatch
    token, taken, state = owners.get(dispatch.id, (0, 0, ""))
    if token != dispatch.token or not taken or state == "sending":
        return Lost()  # a second crossing of a token: it is unknown whether the first one was sent
    notification = dispatch.notification
    guard, key = notification.guard, notification.guarded_by
    if guard is None or key is None or key not in guards:
        return Crossed()
    last = guards[key]
    if last.is_own(dispatch) or now - last.passed_ms >= 1000 * guard.window_s:
        return Crossed()
    if crossing.delivery_state.doubt_ms or last.state in ("pending", "sending"):
        return Held(last.id)  # a message that may have been sent is not suppressed
    return Suppressed(last.id)


def _write_crossings(
    connection: apsw.Connection, crossings: Sequence[tuple[Crossing, Sequence[GuardPass]]], now: int
) -> None:
    dispatches: list[Row] = []
    states: list[Row] = []
    attempts: list[Row] = []
    guards: list[Row] = []
    for crossing, earlier in crossings:
        dispatch, state = crossing.dispatch, crossing.delivery_state
        id, token, provider = dispatch.id, dispatch.token, state.provider
        dispatches.append((id, token, provider, encode(state), crossing.request))
        states.append((id, "sending", "", provider, None, state.possible_duplicates, now))
        attempts.append((id, token, "", state.attempts, provider, now, 0, "", None, ""))
        guard, key = dispatch.notification.guard, dispatch.notification.guarded_by
        if guard is not None and key is not None:
            passed_ms = max(now, dispatch.added_ms)  # also if the clock went back: an earlier pass is not its own
            guards.append((key, id, passed_ms, now + int(1000 * guard.window_s), encode(earlier)))
    write_many(connection, SQL["cross_dispatches"], dispatches)
    write_many(connection, SQL["set_notifications"], states)
    write_many(connection, SQL["add_attempts"], attempts)
    if guards:
        write_many(connection, SQL["set_guards"], guards)


# -------------------------------------------------------------------------------------- records and delivery reports

SENT = ("accepted", "refused", "limited", "unknown")  # outcomes of a notification that has crossed


def record(connection: apsw.Connection, records: Sequence[Record], now: int) -> list[bool]:
    """Write the records whose token is current. True also for a record that was written before.

    The first record of one token counts."""
    pairs = [(item.dispatch.id, item.dispatch.token) for item in records]
    firsts: dict[tuple[bytes, int], Record] = {}
    for pair, item in zip(pairs, records, strict=True):
        firsts.setdefault(pair, item)
    owners = _owners(connection, [id for id, _ in firsts])
    current = {pair: item for pair, item in firsts.items() if owners.get(pair[0], ())[:2] == (pair[1], 1)}
    if current:
        crossed = {id for id, (_, _, state) in owners.items() if state == "sending"}
        _write_records(connection, _check_references(connection, list(current.values())), crossed, now)
    others = [pair for pair in firsts if pair not in current]
    repeated = {pair for pair in others if owners.get(pair[0], ())[:2] == (pair[1], 0)}
    if others:
        repeated.update((id, token) for id, token in write_many(connection, SQL["recorded_attempts"], others))
    return [pair in current or pair in repeated for pair in pairs]


def _check_references(connection: apsw.Connection, records: Sequence[Record]) -> list[Record]:
    """Replace the record of a look-up that found the message of another notification: it proves nothing here."""
    if all(item.otherwise is None for item in records):
        return list(records)
    owners = {(_provider_of(item), item.reference): item.dispatch.id for item in records if item.otherwise is None}
    checked: list[Record] = []
    for item in records:
        id, message = item.dispatch.id, (_provider_of(item), item.reference)
        if item.otherwise is not None and message not in owners:
            found = rows(connection, SQL["another_notification_of_reference"], item.reference, message[0], id)
            owners[message] = found[0][0] if found else id
        checked.append(item if item.otherwise is None or owners[message] == id else item.unless(owners[message]))
    return checked


def _provider_of(item: Record) -> str:
    return item.dispatch.delivery_state.provider or item.delivery_state.provider


def _write_records(
    connection: apsw.Connection, records: Sequence[Record], crossed: AbstractSet[bytes], now: int
) -> None:
    live: list[Row] = []
    over: list[bytes] = []
    unsent: list[tuple[bytes, bytes]] = []
    states: list[Row] = []
    attempts: list[Row] = []
    for item in records:
        dispatch, after = item.dispatch, item.delivery_state
        id, token, reference = dispatch.id, dispatch.token, item.reference or None
        states.append((id, after.state, after.reason, after.provider, reference, after.possible_duplicates, now))
        # A release before the crossing is no attempt, unless it is final. Undoing a crossing is an attempt.
        if item.outcome != "released" or after.state not in LIVE or id in crossed:
            crossed_ms = after.crossed_ms if item.outcome in SENT else 0
            texts = (item.evidence, reference, "")
            attempts.append((id, token, item.outcome, after.attempts, _provider_of(item), crossed_ms, now, *texts))
        if after.state in LIVE:
            due_ms = None if after.state == "uncertain" and not after.exit else after.due_ms
            lane = lane_of(after.provider, dispatch.notification.channel)
            same = after.provider == dispatch.delivery_state.provider or not dispatch.delivery_state.provider
            live.append((id, token, due_ms, after.state, lane, encode(after), int(same)))
            continue
        over.append(id)
        not_sent = after.state in OVER_UNSENT and item.outcome != "policy"  # given up by policy: may have been sent
        if not_sent and (key := dispatch.notification.guarded_by) is not None:
            unsent.append((key, id))
    write_many(connection, SQL["set_notifications"], states)
    write_many(
        connection, SQL["delete_crossed_attempts"], [(item.dispatch.id, item.dispatch.token) for item in records]
    )
    if attempts:
        write_many(connection, SQL["add_attempts"], attempts)
    if live:
        write_many(connection, SQL["set_dispatches"], live)
    if over:
        select_many(connection, SQL["delete_dispatches"], over)
    if unsent:
        hand_back(connection, [key for key, _ in unsent], [id for _, id in unsent])


def apply_reports(connection: apsw.Connection, reports: Sequence[DeliveryReport], now: int) -> list[State | None]:
    """Record delivery reports of providers. Returns the state of each notification; None if it is unknown."""
    return [_apply_report(connection, report, now) for report in reports]


def _apply_report(connection: apsw.Connection, report: DeliveryReport, now: int) -> State | None:
    id = report.id if report.id is not None else _referred_to(connection, report)
    found = [] if id is None else rows(connection, SQL["reported_notification"], id)
    if not found:
        return None
    id, state, provider, possible_duplicates, tenant, recipient, kind, options, erased = found[0]
    evidence = "" if erased else report.evidence
    reporter = report.provider or provider
    after = reported(state, report.status)
    if after == "failed" and (
        possible_duplicates or reporter != provider or rows(connection, SQL["was_sent_again"], id, reporter)
    ):
        after = state  # the report is about one attempt; another attempt may have succeeded
    elsewhere = state in RANK and report.status in RANK and reporter != provider  # two providers have the message
    if elsewhere or (
        report.reference and rows(connection, SQL["has_another_reference"], id, reporter, report.reference)
    ):
        connection.execute(SQL["mark_possible_duplicate"], (id,))  # two references: both messages may have arrived
        possible_duplicates = possible_duplicates or 1
    texts = (report.at_ms or now, evidence, report.reference or None, "")
    write_many(connection, SQL["add_attempts"], [(id, 0, report.status, 0, reporter, 0, *texts)])
    if after == state:
        return after
    row = (id, after, evidence, reporter, report.reference or None, possible_duplicates, now)
    write_many(connection, SQL["set_notifications"], [row])
    if after in RANK or after == "failed":
        select_many(connection, SQL["delete_dispatches"], [id])
    if after == "failed" and (guard := guard_of(tenant, recipient, kind, options)) is not None:
        hand_back(connection, [guard], [id])
    return after


def _referred_to(connection: apsw.Connection, report: DeliveryReport) -> bytes | None:
    """Return the notification of a reference; None if there is none, or several that cannot be told apart."""
    if not report.reference:
        return None
    found = rows(connection, SQL["notifications_of_reference"], report.reference, report.provider)
    return found[0][0] if len(found) == 1 else None


# ------------------------------------------------------------------------------------------------------------ outbox


class SqliteOutbox:
    """The outbox of a ledger's file. The writer thread commits its writes in the same groups as the ledger's own."""

    def __init__(
        self,
        writer: Writer,
        lookout: Writer,
        catalog: Writer,
        now: Callable[[], int],
        ahead_ms: Callable[[], int],
    ) -> None:
        """`ahead_ms`: how far `now` is ahead of the wall clock."""
        self._writer = writer
        self._lookout = lookout  # for relays and callbacks, which must not wait behind operators
        self._catalog = catalog  # for operators, whose queries may take long
        self._now = now
        self._ahead_ms = ahead_ms
        self._none_due = False  # the last take found nothing

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        check_batch(notifications, ADD)
        return await self._writer.submit(lambda connection: add(connection, notifications, self._now()))

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        if self._none_due and not await self._is_due(lanes):
            return []
        pending = self._writer.submit(
            lambda connection: take(connection, lanes, lease_ms, self._now(), self._ahead_ms())
        )
        try:
            taken = await asyncio.shield(pending)
        except asyncio.CancelledError:
            # The caller is gone: release at once, unchanged. A dispatch that a vanished relay left stays taken, so that
            # this stays known.
            with suppress(LedgerUnavailable):
                released = [item for item in await pending if not item.vanished]
                await self.record([Record(item, item.delivery_state, "released") for item in released])
            raise
        self._none_due = not taken
        return taken

    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        return await self._writer.submit(lambda connection: cross(connection, crossings, self._now()))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        return await self._writer.submit(lambda connection: record(connection, records, self._now()))

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        return await self._writer.submit(lambda connection: apply_reports(connection, reports, self._now()))

    # ---------------------------------------------------------------------------------------------------- operators

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        return await self._lookout.submit(
            lambda connection: outbox_queries.status(connection, tenant, recipient, kind, key)
        )

    async def find(self, query: NotificationQuery) -> list[NotificationView]:
        return await self._catalog.submit(lambda connection: outbox_queries.find(connection, query))

    async def show(self, id: bytes) -> NotificationView | None:
        # callbacks wait for it, so it does not queue behind operators
        return await self._lookout.submit(lambda connection: outbox_queries.show(connection, id))

    async def decide(self, decision: Decision) -> State | None:
        return await self._writer.submit(
            lambda connection: outbox_queries.decide(connection, decision, self._now(), self._ahead_ms())
        )

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        return await self._writer.submit(
            lambda connection: outbox_queries.erase(connection, tenant, recipient, reason, by, self._now())
        )

    async def backlog(self) -> list[Backlog]:
        return await self._catalog.submit(outbox_queries.backlog)

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        return await self._writer.submit(
            lambda connection: outbox_queries.purge(connection, content_ms, identity_ms, limit, self._now())
        )

    async def _is_due(self, lanes: Mapping[str, Lane]) -> bool:
        """Check without a lock, so that idle relays do not wait for each other."""
        names = encode(list(lanes)).decode()
        return await self._lookout.submit(
            lambda connection: rows(connection, SQL["due_lanes"], names, self._now()) != []
        )

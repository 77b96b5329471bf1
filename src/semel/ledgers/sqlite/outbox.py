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
from semel.ledgers.sqlite.guards import Pass, Passed, before_of, free, passed_by
from semel.ledgers.sqlite.statements import SQL, Row, insert_many, rows, run_in, select_in
from semel.ledgers.sqlite.writer import Writer
from semel.values.delivery_state import LIVE, OVER_UNSENT, RANK, DeliveryState, State, reported
from semel.values.errors import LedgerUnavailable
from semel.values.key import content_digest
from semel.values.log import log
from semel.values.notification import ADD, Notification, check_batch, who_is
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

ERASED_FP = b""  # fingerprint of an erased content: it matches every content


def add(connection: apsw.Connection, notifications: Sequence[Notification], now: int) -> list[Added]:
    """Add new notifications, and detect repeats and conflicts by identity.

    Two statements for each piece of the batch: one reads the known ids, one writes the new notifications."""
    ids = [item.id for item in notifications]
    contents = [item.content for item in notifications]
    known = {id: (fp, state) for id, fp, state in select_in(connection, SQL["known_notifications"], ids)}
    fresh: list[tuple[bytes, bytes, Notification]] = []
    results: list[Added] = []
    for id, content, notification in zip(ids, contents, notifications, strict=True):
        fp = content_digest(content)
        if id not in known:
            known[id] = (fp, "pending")
            fresh.append((id, content, notification))
            results.append(Added(id.hex(), "added"))
        else:
            first, state = known[id]
            results.append(Added(id.hex(), "known" if first in (fp, ERASED_FP) else "conflict", state))
    if fresh:
        insert_many(connection, SQL["add_notifications"], [_row_of(*item, now) for item in fresh])
    return results


def _row_of(id: bytes, content: bytes, item: Notification, now: int) -> Row:
    options = options_of(item)
    state = DeliveryState(provider=item.provider, not_after_ms=options.not_after_ms, policy=item.policy or "hold")
    ordered = who_is(item.tenant, item.order) if item.order else None
    return (
        *(id, item.tenant, item.key, item.kind, item.recipient, who_is(item.tenant, item.recipient), item.channel),
        *(item.generation, content, content_digest(content), encode(options), now),
        *(lane_of(item.provider, item.channel), item.priority, encode(state), ordered),
    )


# ------------------------------------------------------------------------------------------------------------- take

UNREADABLE_MS = 600_000  # delay before an unreadable notification is tried again
AHEAD_MS = 1_000  # slots of a rate are assigned this far into the future
SPARE = 200  # dispatches behind an older one of their order key that a take skips; more of them are set aside
ASIDE = 2_000  # dispatches set aside at a time
LOOKS = 10  # reads in one take: each starts behind the dispatches that were set aside

_longest_due = itemgetter(13, 14)


def take(
    connection: apsw.Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int, ahead_ms: int = 0
) -> list[Dispatch]:
    """Take dispatches by priority, and then the longest due first. Tenants share the rate of each provider.

    `ahead_ms`: how far `now` is ahead of the wall clock."""
    wanted = encode([name for name, lane in lanes.items() if lane.room > 0]).decode()
    due = rows(connection, SQL["lanes_due"], wanted, now)
    if not due:
        return []
    ((last,),) = rows(connection, SQL["last_token"])
    taken: list[Dispatch] = []
    put_off: list[Row] = []
    rates = _Rates(connection, now)
    for name in dict.fromkeys(name for name, _ in due):
        room = lanes[name].room
        for row in _in_order(connection, name, lanes[name], [p for of, p in due if of == name], rates, now):
            try:
                slot = rates.slot(lanes[name], row[4])
                dispatch = _dispatch_of(row, last + len(taken) + 1, now, slot, ahead_ms)
            except UNREADABLE:
                log.error("notification_unreadable", notification_id=row[0].hex())
                put_off.append((row[0], now + UNREADABLE_MS))
                continue
            taken.append(dispatch)
            room -= 1
            if room < 1:
                break
    if taken:
        connection.execute(SQL["set_last_token"], (last + len(taken),))
        insert_many(
            connection, SQL["take_dispatches"], [(dispatch.id, dispatch.token, now + lease_ms) for dispatch in taken]
        )
    if put_off:
        insert_many(connection, SQL["put_off_dispatches"], put_off)
    rates.write()
    return taken


def _in_order(
    connection: apsw.Connection, name: str, lane: Lane, priorities: Sequence[int], rates: _Rates, now: int
) -> Iterator[Row]:
    """Yield the due dispatches of one lane in sending order. A tenant that has used up its rate is skipped; its
    dispatches keep their place."""
    if lane.per_second <= 0:
        for priority in sorted(priorities):
            yield from _due(connection, name, priority, lane.room, now)
        return
    shares = rows(connection, SQL["shares_due"], name, now)
    for priority in sorted(priorities):
        found: list[Row] = []
        for tenant in [tenant for tenant, of in shares if of == priority]:
            if (free := rates.free(lane, tenant)) > 0:
                found += _due(connection, name, priority, min(free, lane.room), now, tenant)
        yield from sorted(found, key=_longest_due)


def _due(
    connection: apsw.Connection, name: str, priority: int, room: int, now: int, tenant: str | None = None
) -> list[Row]:
    """Return due dispatches of one priority, also if thousands wait behind one of their order key."""
    due, aside = ("dispatches_due", "set_aside") if tenant is None else ("share_due", "set_aside_of_share")
    filters = () if tenant is None else (tenant,)
    seen = room + SPARE
    found: list[Row] = []
    for _ in range(LOOKS):
        found = rows(connection, SQL[due], name, priority, now, room, seen, *filters)
        if len(found) == room or not rows(connection, SQL[aside], name, priority, now, ASIDE, seen, *filters):
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
            for provider, of_tenant, next in rows(self._connection, SQL["rates"], lane.provider):
                self._next[(provider, of_tenant)] = next
        next = self._next.get((lane.provider, tenant), 0.0)
        if next > self._now + AHEAD_MS + 1000 / lane.per_second + 1:  # no slot is assigned so late: the clock went back
            next = float(self._now + AHEAD_MS)
        return max(next, float(self._now))

    def write(self) -> None:
        if self._changed:
            insert_many(self._connection, SQL["set_rates"], [(*key, self._next[key]) for key in sorted(self._changed)])


def _dispatch_of(row: Row, token: int, now: int, slot: int, ahead_ms: int) -> Dispatch:
    id, was_taken, state, request, tenant, key, kind, recipient, channel, generation, *rest = row
    content, options, added, *_ = rest
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
        added_ms=added,
        ahead_ms=ahead_ms,
    )


# ------------------------------------------------------------------------------------------------------------ cross


def cross(connection: apsw.Connection, crossings: Sequence[Crossing], now: int) -> list[CrossingVerdict]:
    """Decide each crossing in order. Each one sees the guards that the crossings before it have passed."""
    ids = [crossing.dispatch.id for crossing in crossings]
    held = {id: tuple(may) for id, *may in select_in(connection, SQL["dispatches_held"], ids)}
    watched = [k for crossing in crossings if (k := crossing.dispatch.notification.guarded_by) is not None]
    guards = passed_by(connection, watched)
    gates: list[CrossingVerdict] = []
    passed: list[tuple[Crossing, Sequence[Pass]]] = []
    stopped: list[tuple[Crossing, bytes]] = []
    for crossing in crossings:
        gate = _gate(crossing, held, guards, now)
        match gate:
            case Crossed():
                del held[crossing.dispatch.id]  # a token crosses once
                k = crossing.dispatch.notification.guarded_by
                before = before_of(crossing.dispatch, None if k is None else guards.get(k))
                passed.append((crossing, before))
                if k is not None:
                    guards[k] = Passed(crossing.dispatch.id, now, "sending", before)
            case Suppressed(by=by):
                stopped.append((crossing, by))
        gates.append(gate)
    _write_crossings(connection, passed, now)
    _write_suppressed(connection, stopped, now)
    return gates


def _gate(
    crossing: Crossing,
    held: Mapping[bytes, tuple[int, int, str]],
    guards: Mapping[bytes, Passed],
    now: int,
) -> CrossingVerdict:
    dispatch = crossing.dispatch
    token, taken, state = held.get(dispatch.id, (0, 0, ""))
    if token != dispatch.token or not taken or state == "sending":
        return Lost()  # a second crossing of a token: it is unknown whether the first one was sent
    notification = dispatch.notification
    guard, k = notification.guard, notification.guarded_by
    if guard is None or k is None or k not in guards:
        return Crossed()
    last = guards[k]
    if last.is_own(dispatch) or now - last.at >= 1000 * guard.window_s:
        return Crossed()
    if crossing.delivery_state.doubt_ms or last.state in ("pending", "sending"):
        return Held(last.id)  # a message that may have been sent is not suppressed
    return Suppressed(last.id)


def _write_crossings(
    connection: apsw.Connection, crossings: Sequence[tuple[Crossing, Sequence[Pass]]], now: int
) -> None:
    if not crossings:
        return
    dispatches: list[Row] = []
    states: list[Row] = []
    attempts: list[Row] = []
    guards: list[Row] = []
    for crossing, before in crossings:
        dispatch, state = crossing.dispatch, crossing.delivery_state
        id, token, provider = dispatch.id, dispatch.token, state.provider
        dispatches.append((id, token, provider, encode(state), crossing.request))
        states.append((id, "sending", "", provider, None, state.possible_duplicates, now))
        attempts.append((id, token, "", state.attempts, provider, now, 0, "", ""))
        guard, k = dispatch.notification.guard, dispatch.notification.guarded_by
        if guard is not None and k is not None:
            at = max(now, dispatch.added_ms)  # also if the clock went back: an earlier pass is not its own
            guards.append((k, id, at, now + int(1000 * guard.window_s), encode(before)))
    insert_many(connection, SQL["cross_dispatches"], dispatches)
    insert_many(connection, SQL["set_notifications"], states)
    insert_many(connection, SQL["begin_attempts"], attempts)
    if guards:
        insert_many(connection, SQL["set_guards"], guards)


def _write_suppressed(connection: apsw.Connection, stopped: Sequence[tuple[Crossing, bytes]], now: int) -> None:
    if not stopped:
        return
    reasons = [(crossing.dispatch.id, f"its guard has let {by.hex()} through", by, now) for crossing, by in stopped]
    insert_many(connection, SQL["suppress_notifications"], reasons)
    run_in(connection, SQL["end_dispatches"], [crossing.dispatch.id for crossing, _ in stopped])


# -------------------------------------------------------------------------------------- records and delivery reports

SENT = ("accepted", "refused", "limited", "unknown")  # outcomes of a notification that has crossed


def record(connection: apsw.Connection, records: Sequence[Record], now: int) -> list[bool]:
    """Write the records whose token is current. True also for a record that was written before.

    The first record of one token counts."""
    firsts: dict[tuple[bytes, int], Record] = {}
    for item in records:
        firsts.setdefault((item.dispatch.id, item.dispatch.token), item)
    held = {id: tuple(may) for id, *may in select_in(connection, SQL["dispatches_held"], [id for id, _ in firsts])}
    current = {pair: item for pair, item in firsts.items() if held.get(pair[0], ())[:2] == (pair[1], 1)}
    if current:
        crossed = {id for id, (_, _, state) in held.items() if state == "sending"}
        _write_records(connection, _check_references(connection, list(current.values())), crossed, now)
    others = [pair for pair in firsts if pair not in current]
    repeated = {pair for pair in others if held.get(pair[0], ())[:2] == (pair[1], 0)}
    if others:
        repeated.update((id, token) for id, token in insert_many(connection, SQL["attempts_known"], others))
    pairs = [(item.dispatch.id, item.dispatch.token) for item in records]
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
            found = rows(connection, SQL["referred_to_by_another"], item.reference, message[0], id)
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
        id, token = dispatch.id, dispatch.token
        states.append(
            (id, after.state, after.reason, after.provider, item.reference or None, after.possible_duplicates, now)
        )
        # A release before the crossing is no attempt, unless it is final. Undoing a crossing is an attempt.
        if item.outcome != "released" or after.state not in LIVE or id in crossed:
            crossed_ms = after.crossed_ms if item.outcome in SENT else 0
            texts = (item.evidence, item.reference or None, "")
            attempts.append((id, token, item.outcome, after.attempts, _provider_of(item), crossed_ms, now, *texts))
        if after.state in LIVE:
            due = None if after.state == "uncertain" and not after.exit else after.due_ms
            lane = lane_of(after.provider, dispatch.notification.channel)
            same = after.provider == dispatch.delivery_state.provider or not dispatch.delivery_state.provider
            live.append((id, token, due, after.state, lane, encode(after), int(same)))
            continue
        over.append(id)
        not_sent = after.state in OVER_UNSENT and item.outcome != "policy"  # given up by policy: may have been sent
        if not_sent and (k := dispatch.notification.guarded_by) is not None:
            unsent.append((k, id))
    insert_many(connection, SQL["set_notifications"], states)
    insert_many(connection, SQL["forget_beginnings"], [(item.dispatch.id, item.dispatch.token) for item in records])
    if attempts:
        insert_many(connection, SQL["add_attempts"], attempts)
    if live:
        insert_many(connection, SQL["set_dispatches"], live)
    if over:
        run_in(connection, SQL["end_dispatches"], over)
    if unsent:
        free(connection, [k for k, _ in unsent], [id for _, id in unsent])


def apply_reports(connection: apsw.Connection, witnesses: Sequence[DeliveryReport], now: int) -> list[State | None]:
    """Record delivery reports of providers. Returns the state of each notification; None if it is unknown."""
    return [_apply_report(connection, report, now) for report in witnesses]


def _apply_report(connection: apsw.Connection, report: DeliveryReport, now: int) -> State | None:
    id = report.id if report.id is not None else _referred_to(connection, report)
    found = [] if id is None else rows(connection, SQL["witnessed_by_id"], id)
    if not found:
        return None
    id, state, provider, possible, tenant, recipient, kind, options, erased = found[0]
    evidence = "" if erased else report.evidence
    reporter = report.provider or provider
    after = reported(state, report.says)
    if after == "failed" and (possible or reporter != provider or rows(connection, SQL["sent_anew"], id, reporter)):
        after = state  # the report is about one attempt; another attempt may have succeeded
    elsewhere = state in RANK and report.says in RANK and reporter != provider  # two providers have the message
    if elsewhere or (
        report.reference and rows(connection, SQL["referred_to_otherwise"], id, reporter, report.reference)
    ):
        connection.execute(SQL["sent_twice"], (id,))  # two references: both messages may have arrived
        possible = possible or 1
    texts = (report.at_ms or now, evidence, report.reference or None, "")
    insert_many(connection, SQL["add_attempts"], [(id, 0, report.says, 0, reporter, 0, *texts)])
    if after == state:
        return after
    row = (id, after, evidence, reporter, report.reference or None, possible, now)
    insert_many(connection, SQL["set_notifications"], [row])
    if after in RANK or after == "failed":
        run_in(connection, SQL["end_dispatches"], [id])
    if after == "failed" and (guard := guard_of(tenant, recipient, kind, options)) is not None:
        free(connection, [guard], [id])
    return after


def _referred_to(connection: apsw.Connection, report: DeliveryReport) -> bytes | None:
    """Return the notification of a reference; None if there is none or several, so that neither of two changes."""
    found = rows(connection, SQL["referred_to"], report.reference, report.provider) if report.reference else []
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
            with suppress(LedgerUnavailable):  # the caller is gone: release at once, not when the leases lapse
                await self._give_back(await pending)
            raise
        self._none_due = not taken
        return taken

    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        return await self._writer.submit(lambda connection: cross(connection, crossings, self._now()))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        return await self._writer.submit(lambda connection: record(connection, records, self._now()))

    async def apply_reports(self, witnesses: Sequence[DeliveryReport]) -> list[State | None]:
        return await self._writer.submit(lambda connection: apply_reports(connection, witnesses, self._now()))

    # ---------------------------------------------------------------------------------------------------- operators

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        return await self._lookout.submit(
            lambda connection: outbox_queries.status(connection, tenant, recipient, kind, key)
        )

    async def find(self, query: NotificationQuery) -> list[NotificationView]:
        return await self._catalog.submit(lambda connection: outbox_queries.find(connection, query))

    async def show(self, id: bytes) -> NotificationView | None:
        return await self._lookout.submit(
            lambda connection: outbox_queries.show(connection, id)
        )  # callbacks wait for it

    async def decide(self, decision: Decision) -> State | None:
        return await self._writer.submit(
            lambda connection: outbox_queries.decide(connection, decision, self._now(), self._ahead_ms())
        )

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        now = self._now
        return await self._writer.submit(
            lambda connection: outbox_queries.erase(connection, tenant, recipient, reason, by, now())
        )

    async def backlog(self) -> list[Backlog]:
        return await self._catalog.submit(outbox_queries.backlog)

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        now = self._now
        return await self._writer.submit(
            lambda connection: outbox_queries.purge(connection, content_ms, identity_ms, limit, now())
        )

    async def _give_back(self, dispatches: Sequence[Dispatch]) -> None:
        """Release dispatches unchanged. One that a vanished relay left behind stays taken, so that this stays known."""
        await self.record([Record(item, item.delivery_state, "released") for item in dispatches if not item.vanished])

    async def _is_due(self, lanes: Mapping[str, Lane]) -> bool:
        """Check without a lock, so that idle relays do not wait for each other."""
        names = encode(list(lanes)).decode()
        sql = SQL["lanes_due"]
        return bool(await self._lookout.submit(lambda connection: rows(connection, sql, names, self._now())))

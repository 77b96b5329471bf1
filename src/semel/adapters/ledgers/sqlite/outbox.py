"""The outbox's reads and writes, as functions of a connection; those that write are inside an immediate transaction.

The store keeps what the relay concludes, under a token; it judges only what must hold across processes: who is next,
at what rate, and whether a guard lets a message through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import apsw
import msgspec
from msgspec import Struct

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows, select_in
from semel.adapters.ledgers.sqlite.writer import Writer
from semel.values.key import content_digest
from semel.values.notification import PRIORITY_MAX, Channel, Guard, Notification, Policy, read_content, who_is
from semel.values.outbox import (
    Added,
    Crossed,
    Crossing,
    Dispatch,
    Gate,
    Held,
    Lane,
    Lost,
    Record,
    Suppressed,
    Witness,
    lane_of,
)
from semel.values.sending import LIVE, OVER_UNSENT, RANK, Standing, State, reported

AHEAD_MS = 1_000  # slots of a rate are given out so far into the future

_encode = msgspec.json.Encoder().encode
_standing = msgspec.json.Decoder(Standing).decode


class Options(Struct, frozen=True, omit_defaults=True):
    """What a notification asks for, besides its identity and content."""

    order: str = ""
    priority: int = 5
    not_after_ms: int | None = None
    guard: Guard | None = None
    provider: str = ""
    policy: Policy | None = None


_options = msgspec.json.Decoder(Options).decode

# -------------------------------------------------------------------------------------------------------------- add


def add(connection: apsw.Connection, notifications: Sequence[Notification], now: int) -> list[Added]:
    """One look at what is known, two writes for what is new."""
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
            answers.append(Added(id.hex(), "known" if first == fp else "conflict", state))
    if fresh:
        ((last,),) = rows(connection, SQL["last_token"])
        connection.execute(SQL["set_last_token"], (last + len(fresh),))
        insert_many(connection, SQL["add_notifications"], [_row_of(*one, now) for one in fresh])
        dispatches = [_dispatch_row(id, one, last + 1 + n, now) for n, (id, _, one) in enumerate(fresh)]
        insert_many(connection, SQL["add_dispatches"], dispatches)
    return answers


def _row_of(id: bytes, content: bytes, one: Notification, now: int) -> Row:
    return (
        *(id, one.tenant, one.key, one.kind, one.recipient, who_is(one.tenant, one.recipient), one.channel),
        *(one.generation, content, content_digest(content), _encode(_options_of(one)), "pending", "", "", 0, now, now),
    )


def _dispatch_row(id: bytes, one: Notification, place: int, now: int) -> Row:
    options = _options_of(one)
    standing = Standing(provider=one.provider, not_after_ms=options.not_after_ms, policy=one.policy or "hold")
    ordered = who_is(one.tenant, one.order) if one.order else None
    lane = lane_of(one.provider, one.channel)
    return (id, lane, one.priority, now, 0, 0, "pending", _encode(standing), ordered, place)


def _options_of(one: Notification) -> Options:
    not_after = None if one.not_after is None else int(one.not_after.timestamp() * 1000)
    return Options(one.order, one.priority, not_after, one.guard, one.provider, one.policy)


# ------------------------------------------------------------------------------------------------------------- take


def take(connection: apsw.Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int) -> list[Dispatch]:
    """By priority and then the longest due first; the rate of each provider is shared out among tenants."""
    ((last,),) = rows(connection, SQL["last_token"])
    taken: list[Dispatch] = []
    put_off: list[Row] = []
    rates = _Rates(connection, now)
    for lane, wanted in lanes.items():
        room = wanted.room
        for priority in range(PRIORITY_MAX + 1):
            if room < 1:
                break
            for row in rows(connection, SQL["dispatches_due"], lane, priority, now, room):
                slot = rates.slot(wanted, row[4])
                if slot > now + AHEAD_MS:
                    put_off.append((row[0], slot))
                    continue
                taken.append(_dispatch_of(row, last + len(taken) + 1, now, slot))
                room -= 1
    if taken:
        connection.execute(SQL["set_last_token"], (last + len(taken),))
        insert_many(connection, SQL["take_dispatches"], [(one.id, one.token, now + lease_ms) for one in taken])
    if put_off:
        insert_many(connection, SQL["put_off_dispatches"], put_off)
    rates.write()
    return taken


class _Rates:
    """When the next message of a tenant may go to a provider, over all processes: one after the other, evenly."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._next: dict[tuple[str, str], float] = {}
        self._read: set[str] = set()
        self._changed: set[tuple[str, str]] = set()

    def slot(self, lane: Lane, tenant: str) -> int:
        """Reserves it, unless it is too far away. 0: there is no limit."""
        if lane.per_second <= 0:
            return 0
        if lane.provider not in self._read:
            self._read.add(lane.provider)
            for provider, whose, next in rows(self._connection, SQL["rates"], lane.provider):
                self._next[(provider, whose)] = next
        key = (lane.provider, tenant)
        slot = max(self._next.get(key, 0.0), float(self._now))
        if slot <= self._now + AHEAD_MS:
            self._next[key] = slot + 1000 / lane.per_second
            self._changed.add(key)
        return int(slot) + 1 if slot > self._now else int(slot)

    def write(self) -> None:
        if self._changed:
            insert_many(self._connection, SQL["set_rates"], [(*key, self._next[key]) for key in sorted(self._changed)])


def _dispatch_of(row: Row, token: int, now: int, slot: int) -> Dispatch:
    id, was_taken, standing, request, tenant, key, kind, recipient, channel, generation, content, options = row
    return Dispatch(
        id=id,
        token=token,
        notification=notification_of(tenant, key, kind, recipient, channel, generation, content, options),
        content=content,
        standing=_standing(standing),
        taken_ms=now,
        slot_ms=slot,
        vanished=bool(was_taken),
        request=request,
    )


def notification_of(
    tenant: str, key: str, kind: str, recipient: str, channel: Channel, generation: int, content: bytes, options: bytes
) -> Notification:
    said, asked = read_content(content), _options(options)
    return Notification(
        key=key,
        kind=kind,
        recipient=recipient,
        channel=channel,
        body=said.body,
        subject=said.subject,
        sender=said.sender,
        template=said.template,
        data=said.data,
        tenant=tenant,
        not_after=None if asked.not_after_ms is None else datetime.fromtimestamp(asked.not_after_ms / 1000, UTC),
        priority=asked.priority,
        order=asked.order,
        guard=asked.guard,
        provider=asked.provider,
        policy=asked.policy,
        generation=generation,
    )


# ------------------------------------------------------------------------------------------------------------ cross


def cross(connection: apsw.Connection, crossings: Sequence[Crossing], now: int) -> list[Gate]:
    """In order, each seeing the guards that those before it have passed."""
    ids = [crossing.dispatch.id for crossing in crossings]
    held = {id: (token, taken) for id, token, taken, _ in select_in(connection, SQL["dispatches_held"], ids)}
    watched = [k for crossing in crossings if (k := crossing.dispatch.notification.guarded_by) is not None]
    guards: dict[bytes, tuple[bytes, int, State]] = {
        k: (id, at, state) for k, id, at, state in select_in(connection, SQL["guards"], watched)
    }
    gates: list[Gate] = []
    passed: list[Crossing] = []
    stopped: list[tuple[Crossing, bytes]] = []
    for crossing in crossings:
        gate = _gate(crossing, held, guards, now)
        match gate:
            case Crossed():
                passed.append(crossing)
                if (k := crossing.dispatch.notification.guarded_by) is not None:
                    guards[k] = (crossing.dispatch.id, now, "sending")
            case Suppressed(by=by):
                stopped.append((crossing, by))
        gates.append(gate)
    _write_crossings(connection, passed, now)
    _write_suppressed(connection, stopped, now)
    return gates


def _gate(
    crossing: Crossing,
    held: Mapping[bytes, tuple[int, int]],
    guards: Mapping[bytes, tuple[bytes, int, State]],
    now: int,
) -> Gate:
    dispatch = crossing.dispatch
    if held.get(dispatch.id) != (dispatch.token, 1):
        return Lost()
    notification = dispatch.notification
    guard, k = notification.guard, notification.guarded_by
    if guard is None or k is None or k not in guards:
        return Crossed()
    by, at, state = guards[k]
    if by == dispatch.id or now - at >= 1000 * guard.window_s:
        return Crossed()
    if crossing.standing.doubt_ms or state in ("pending", "sending"):
        return Held(by)  # what may have left already is not called suppressed
    return Suppressed(by)


def _write_crossings(connection: apsw.Connection, crossings: Sequence[Crossing], now: int) -> None:
    if not crossings:
        return
    dispatches: list[Row] = []
    states: list[Row] = []
    attempts: list[Row] = []
    guards: list[Row] = []
    for crossing in crossings:
        dispatch, standing = crossing.dispatch, crossing.standing
        id, token, provider = dispatch.id, dispatch.token, standing.provider
        dispatches.append((id, token, provider, _encode(standing), crossing.request))
        states.append((id, "sending", "", provider, None, standing.possible_duplicates, now))
        attempts.append((id, token, "", standing.attempts, provider, now, 0, "", ""))
        guard, k = dispatch.notification.guard, dispatch.notification.guarded_by
        if guard is not None and k is not None:
            guards.append((k, id, now, now + int(1000 * guard.window_s)))
    insert_many(connection, SQL["cross_dispatches"], dispatches)
    insert_many(connection, SQL["set_notifications"], states)
    insert_many(connection, SQL["begin_attempts"], attempts)
    if guards:
        insert_many(connection, SQL["set_guards"], guards)


def _write_suppressed(connection: apsw.Connection, stopped: Sequence[tuple[Crossing, bytes]], now: int) -> None:
    if not stopped:
        return
    reasons = [(one.dispatch.id, f"its guard has let {by.hex()} through", by, now) for one, by in stopped]
    insert_many(connection, SQL["suppress_notifications"], reasons)
    _end(connection, [one.dispatch.id for one, _ in stopped])


def _end(connection: apsw.Connection, ids: Sequence[bytes]) -> None:
    for _ in select_in(connection, SQL["end_dispatches"], ids):
        pass


# ----------------------------------------------------------------------------------------------------------- record


def record(connection: apsw.Connection, records: Sequence[Record], now: int) -> list[bool]:
    """Those whose token is the current one; the others are told whether that was said before."""
    ids = [one.dispatch.id for one in records]
    held = {id: (token, taken) for id, token, taken, _ in select_in(connection, SQL["dispatches_held"], ids)}
    mine = [one for one in records if held.get(one.dispatch.id) == (one.dispatch.token, 1)]
    if mine:
        _write_records(connection, mine, now)
    return [one in mine or _said_before(connection, one, held) for one in records]


def _said_before(connection: apsw.Connection, one: Record, held: Mapping[bytes, tuple[int, int]]) -> bool:
    if held.get(one.dispatch.id) == (one.dispatch.token, 0):
        return True
    return bool(rows(connection, SQL["attempts_known"], one.dispatch.id, one.dispatch.token))


def _write_records(connection: apsw.Connection, records: Sequence[Record], now: int) -> None:
    live: list[Row] = []
    over: list[bytes] = []
    unsent: list[tuple[bytes, bytes]] = []
    states: list[Row] = []
    attempts: list[Row] = []
    for one in records:
        dispatch, after = one.dispatch, one.standing
        id, token = dispatch.id, dispatch.token
        states.append(
            (id, after.state, after.reason, after.provider, one.reference or None, after.possible_duplicates, now)
        )
        if one.outcome != "released":
            crossed = after.crossed_ms if one.outcome in ("accepted", "refused", "limited", "unknown") else 0
            tried = dispatch.standing.provider or after.provider
            said = (one.evidence, one.reference or None, "")
            attempts.append((id, token, one.outcome, after.attempts, tried, crossed, now, *said))
        if after.state in LIVE:
            due = None if after.state == "uncertain" and not after.exit else after.due_ms
            lane = lane_of(after.provider, dispatch.notification.channel)
            same = after.provider == dispatch.standing.provider or not dispatch.standing.provider
            live.append((id, token, due, after.state, lane, _encode(after), int(same)))
            continue
        over.append(id)
        nobody_got_it = after.state in OVER_UNSENT and one.outcome != "policy"  # what was given up may have been sent
        if nobody_got_it and (k := dispatch.notification.guarded_by) is not None:
            unsent.append((k, id))
    insert_many(connection, SQL["set_notifications"], states)
    if attempts:
        insert_many(connection, SQL["forget_beginnings"], [(row[0], row[1]) for row in attempts])
        insert_many(connection, SQL["add_attempts"], attempts)
    if live:
        insert_many(connection, SQL["set_dispatches"], live)
    if over:
        _end(connection, over)
    if unsent:
        for _ in select_in(connection, SQL["forget_guards"], [k for k, _ in unsent], [id for _, id in unsent]):
            pass


# ---------------------------------------------------------------------------------------------------------- witness


def witness(connection: apsw.Connection, witnesses: Sequence[Witness], now: int) -> list[State | None]:
    return [_witness(connection, one, now) for one in witnesses]


def _witness(connection: apsw.Connection, one: Witness, now: int) -> State | None:
    if one.id is not None:
        found = rows(connection, SQL["witnessed_by_id"], one.id)
    else:
        found = rows(connection, SQL["witnessed_by_reference"], one.reference, one.provider) if one.reference else []
    if not found:
        return None
    id, state, provider, possible = found[0]
    after = reported(state, one.says)
    attempt = (
        id,
        0,
        one.says,
        0,
        one.provider or provider,
        0,
        one.at_ms or now,
        one.evidence,
        one.reference or None,
        "",
    )
    insert_many(connection, SQL["add_attempts"], [attempt])
    if after == state:
        return after
    row = (id, after, one.evidence, one.provider or provider, one.reference or None, possible, now)
    insert_many(connection, SQL["set_notifications"], [row])
    if after in RANK or after == "failed":
        _end(connection, [id])
    return after


# ------------------------------------------------------------------------------------------------------------- face


class SqliteOutbox:
    """The outbox of a ledger's file: its writes travel in the same groups as the ledger's own."""

    def __init__(self, writer: Writer, lookout: Writer, now: Callable[[], int]) -> None:
        self._writer = writer
        self._lookout = lookout
        self._now = now
        self._none_due = False  # the last take found nothing

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        return await self._writer.submit(lambda connection: add(connection, notifications, self._now()))

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        if self._none_due and not await self._is_due(lanes):
            return []
        taken = await self._writer.submit(lambda connection: take(connection, lanes, lease_ms, self._now()))
        self._none_due = not taken
        return taken

    async def cross(self, crossings: Sequence[Crossing]) -> list[Gate]:
        return await self._writer.submit(lambda connection: cross(connection, crossings, self._now()))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        return await self._writer.submit(lambda connection: record(connection, records, self._now()))

    async def witness(self, witnesses: Sequence[Witness]) -> list[State | None]:
        return await self._writer.submit(lambda connection: witness(connection, witnesses, self._now()))

    async def _is_due(self, lanes: Mapping[str, Lane]) -> bool:
        """Asked without a lock, so that idle relays do not wait for each other."""
        names = _encode(list(lanes)).decode()
        sql = SQL["dispatch_due_at_all"]
        return bool(await self._lookout.submit(lambda connection: rows(connection, sql, names, self._now())))

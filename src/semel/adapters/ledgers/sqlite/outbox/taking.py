"""Who is carried next, and at what rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows
from semel.values.log import log
from semel.values.outbox import Dispatch, Lane
from semel.values.stored import UNREADABLE, by_wall_clock, encode, notification_of, standing_of

UNREADABLE_MS = 600_000  # until it is looked at again
AHEAD_MS = 1_000  # slots of a rate are given out so far into the future
SPARE = 200  # so many that stand behind older ones of their order keys are passed over; more are set aside
ASIDE = 2_000  # at a time
LOOKS = 10  # in one take: each begins behind those that were set aside

_longest_due = itemgetter(13, 14)


def take(
    connection: apsw.Connection, lanes: Mapping[str, Lane], lease_ms: int, now: int, ahead_ms: int = 0
) -> list[Dispatch]:
    """By priority and then the longest due first; the rate of each provider is shared out among tenants. `ahead_ms`:
    how far `now` is ahead of the wall clock."""
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
        for row in _in_line(connection, name, lanes[name], [p for of, p in due if of == name], rates, now):
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
        insert_many(connection, SQL["take_dispatches"], [(one.id, one.token, now + lease_ms) for one in taken])
    if put_off:
        insert_many(connection, SQL["put_off_dispatches"], put_off)
    rates.write()
    return taken


def _in_line(
    connection: apsw.Connection, name: str, lane: Lane, priorities: Sequence[int], rates: _Rates, now: int
) -> Iterator[Row]:
    """What is due in one lane, in the order in which it goes. A tenant that has used up its rate is passed over, and
    what it has waiting keeps its place."""
    if lane.per_second <= 0:
        for priority in sorted(priorities):
            yield from _due(connection, name, priority, lane.room, now)
        return
    shares = rows(connection, SQL["shares_due"], name, now)
    for priority in sorted(priorities):
        found: list[Row] = []
        for tenant in [tenant for tenant, of in shares if of == priority]:
            if (left := rates.left(lane, tenant)) > 0:
                found += _due(connection, name, priority, min(left, lane.room), now, tenant)
        yield from sorted(found, key=_longest_due)


def _due(
    connection: apsw.Connection, name: str, priority: int, room: int, now: int, tenant: str | None = None
) -> list[Row]:
    """Of one priority; also where thousands wait behind one of their order key."""
    due, aside = ("dispatches_due", "set_aside") if tenant is None else ("share_due", "set_aside_of_share")
    whose = () if tenant is None else (tenant,)
    seen = room + SPARE
    found: list[Row] = []
    for _ in range(LOOKS):
        found = rows(connection, SQL[due], name, priority, now, room, seen, *whose)
        if len(found) == room or not rows(connection, SQL[aside], name, priority, now, ASIDE, seen, *whose):
            break
    return found


class _Rates:
    """When the next message of a tenant may go to a provider, over all processes: one after the other, evenly."""

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._now = now
        self._next: dict[tuple[str, str], float] = {}
        self._read: set[str] = set()
        self._changed: set[tuple[str, str]] = set()

    def left(self, lane: Lane, tenant: str) -> int:
        """How many slots may be given out now."""
        ahead = self._now + AHEAD_MS - self._first(lane, tenant)
        return int(ahead * lane.per_second / 1000) + 1 if ahead >= 0 else 0

    def slot(self, lane: Lane, tenant: str) -> int:
        """Gives out the next one. 0: there is no limit."""
        if lane.per_second <= 0:
            return 0
        slot = self._first(lane, tenant)
        self._next[(lane.provider, tenant)] = slot + 1000 / lane.per_second
        self._changed.add((lane.provider, tenant))
        return int(slot) + 1 if slot > self._now else int(slot)

    def _first(self, lane: Lane, tenant: str) -> float:
        if lane.provider not in self._read:
            self._read.add(lane.provider)
            for provider, whose, next in rows(self._connection, SQL["rates"], lane.provider):
                self._next[(provider, whose)] = next
        next = self._next.get((lane.provider, tenant), 0.0)
        if next > self._now + AHEAD_MS + 1000 / lane.per_second + 1:  # none is given out so late: the clock went back
            next = float(self._now + AHEAD_MS)
        return max(next, float(self._now))

    def write(self) -> None:
        if self._changed:
            insert_many(self._connection, SQL["set_rates"], [(*key, self._next[key]) for key in sorted(self._changed)])


def _dispatch_of(row: Row, token: int, now: int, slot: int, ahead_ms: int) -> Dispatch:
    id, was_taken, standing, request, tenant, key, kind, recipient, channel, generation, *said = row
    content, options, added, *_ = said
    notification = notification_of(tenant, key, kind, recipient, channel, generation, content, options)
    return Dispatch(
        id=id,
        token=token,
        notification=notification,
        content=content,
        standing=by_wall_clock(standing_of(standing), notification.not_after, ahead_ms),
        taken_ms=now,
        slot_ms=slot,
        vanished=bool(was_taken),
        request=request,
        added_ms=added,
        ahead_ms=ahead_ms,
    )

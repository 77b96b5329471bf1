"""Who is carried next, and at what rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows
from semel.values.notification import PRIORITY_MAX
from semel.values.outbox import Dispatch, Lane
from semel.values.stored import UNREADABLE, notification_of, standing_of

log = logging.getLogger("semel")

UNREADABLE_MS = 600_000  # until it is looked at again
AHEAD_MS = 1_000  # slots of a rate are given out so far into the future


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
                try:
                    taken.append(_dispatch_of(row, last + len(taken) + 1, now, slot))
                except UNREADABLE:
                    log.error("notification %s cannot be read: somebody has written it by hand", row[0].hex())
                    put_off.append((row[0], now + UNREADABLE_MS))
                    continue
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
        standing=standing_of(standing),
        taken_ms=now,
        slot_ms=slot,
        vanished=bool(was_taken),
        request=request,
    )

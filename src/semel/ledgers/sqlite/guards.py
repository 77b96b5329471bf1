"""Guards of the outbox: the notification that passed each guard, and its successor if that one was not sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import apsw
import msgspec
from msgspec import Struct

from semel.ledgers.sqlite.statements import SQL, Row, select_many, write_many
from semel.values.delivery_state import LIVE, State
from semel.values.notification_codec import encode
from semel.values.outbox import Dispatch

EARLIER_MAX = 16  # longest list of earlier passes whose result is unknown
GuardPass: TypeAlias = tuple[bytes, int]  # id of the notification, time (ms)


class LastPass(Struct, frozen=True):
    """The last pass of a guard."""

    id: bytes
    passed_ms: int
    state: State
    earlier: Sequence[GuardPass] = ()  # newest first, back to one whose result is known

    def is_own(self, dispatch: Dispatch) -> bool:
        """True if this dispatch itself passed, and not a purged notification of the same identity."""
        return self.id == dispatch.id and self.passed_ms >= dispatch.added_ms


def last_passes(connection: apsw.Connection, guarded: Sequence[bytes]) -> dict[bytes, LastPass]:
    found = select_many(connection, SQL["guards"], guarded)
    return {key: LastPass(id, passed_ms, state, _decode(earlier)) for key, id, passed_ms, state, earlier in found}


def earlier_passes(dispatch: Dispatch, last: LastPass | None) -> Sequence[GuardPass]:
    """Return the earlier passes that inherit the guard if this dispatch passes now and is not sent."""
    if last is None:
        return ()
    if last.is_own(dispatch):
        return last.earlier
    earlier = last.earlier if last.state in LIVE else ()  # else it may have been sent: no window reaches back further
    return ((last.id, last.passed_ms), *earlier)[:EARLIER_MAX]


def hand_back(connection: apsw.Connection, guarded: Sequence[bytes], unsent: Sequence[bytes]) -> None:
    """Hand the guards of these unsent notifications to the newest earlier pass that may have been sent."""
    found = select_many(connection, SQL["guard_passes"], list(dict.fromkeys(guarded)))
    passes_by_guard = {key: [(id, passed_ms), *_decode(earlier)] for key, id, passed_ms, earlier in found}
    ids = dict.fromkeys(id for passes in passes_by_guard.values() for id, _ in passes)
    known = {id: (added, state) for id, added, state in select_many(connection, SQL["added_and_state"], list(ids))}

    def may_have_been_sent(item: GuardPass) -> bool:
        id, passed_ms = item
        added_ms, state = known.get(id, (0, ""))
        is_another = added_ms > passed_ms  # the one that passed was purged; this one only has the same identity
        return id not in known or is_another or not (id in unsent or state == "suppressed")

    over: list[bytes] = []
    inherited: list[Row] = []
    for key, passes in passes_by_guard.items():
        match [item for item in passes if may_have_been_sent(item)]:
            case []:
                over.append(key)
            case [(id, passed_ms), *earlier]:
                inherited.append((key, id, passed_ms, 0, encode(earlier)))
    select_many(connection, SQL["delete_guards"], over)
    write_many(connection, SQL["set_guards"], inherited)


_passes = msgspec.json.Decoder(list[GuardPass])


def _decode(earlier: bytes | None) -> list[GuardPass]:
    return [] if earlier is None else _passes.decode(earlier)

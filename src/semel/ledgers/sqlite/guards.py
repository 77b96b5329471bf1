"""Guards of the outbox: the notification that passed each guard, and its successor if that one was not sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import apsw
import msgspec
from msgspec import Struct

from semel.ledgers.sqlite.statements import SQL, Row, insert_many, run_in, select_in
from semel.values.delivery_state import LIVE, State
from semel.values.notification_codec import encode
from semel.values.outbox import Dispatch

BEFORE_MAX = 16  # longest list of earlier passes whose result is unknown
Pass: TypeAlias = tuple[bytes, int]  # id of the notification, time (ms)


class Passed(Struct, frozen=True):
    """The last pass of a guard."""

    id: bytes
    at: int
    state: State
    before: Sequence[Pass] = ()  # earlier passes, newest first, back to one whose result is known

    def is_own(self, dispatch: Dispatch) -> bool:
        """True if this dispatch itself passed, and not a purged notification of the same identity."""
        return self.id == dispatch.id and self.at >= dispatch.added_ms


def passed_by(connection: apsw.Connection, watched: Sequence[bytes]) -> dict[bytes, Passed]:
    found = select_in(connection, SQL["guards"], watched)
    return {k: Passed(id, at, state, _passes(before)) for k, id, at, state, before in found}


def before_of(dispatch: Dispatch, last: Passed | None) -> Sequence[Pass]:
    """Return the earlier passes that inherit the guard if this dispatch passes now and is not sent."""
    if last is None:
        return ()
    if last.is_own(dispatch):
        return last.before
    earlier = last.before if last.state in LIVE else ()  # else it may have been sent: no window reaches back further
    return ((last.id, last.at), *earlier)[:BEFORE_MAX]


def free(connection: apsw.Connection, watched: Sequence[bytes], unsent: Sequence[bytes]) -> None:
    """Hand the guards of these unsent notifications to the newest earlier pass that may have been sent."""
    found = [(k, [(id, at), *_passes(before)]) for k, id, at, before in _distinct(connection, "guards_passed", watched)]
    ids = [id for _, passes in found for id, _ in passes]
    known = {id: (added, state) for id, added, state in _distinct(connection, "added_and_standing", ids)}

    def may_have_been_sent(item: Pass) -> bool:
        id, passed_ms = item
        added, state = known.get(id, (0, ""))
        is_another = added > passed_ms  # the one that passed was purged; this one only has the same identity
        return id not in known or is_another or not (id in unsent or state == "suppressed")

    over: list[bytes] = []
    inherited: list[Row] = []
    for k, passes in found:
        match [item for item in passes if may_have_been_sent(item)]:
            case []:
                over.append(k)
            case [(id, at), *before]:
                inherited.append((k, id, at, 0, encode(before)))
    run_in(connection, SQL["forget_guards"], over)
    insert_many(connection, SQL["set_guards"], inherited)


def _distinct(connection: apsw.Connection, sql: str, keys: Sequence[bytes]) -> list[Row]:
    return list(select_in(connection, SQL[sql], list(dict.fromkeys(keys))))


def _passes(before: bytes | None) -> list[Pass]:
    return [] if before is None else _decode(before)


_decode = msgspec.json.Decoder(list[Pass]).decode

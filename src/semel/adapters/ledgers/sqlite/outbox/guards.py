"""Guards: who has passed each of them, and whom it is left to where that one was definitely not sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import apsw
import msgspec
from msgspec import Struct

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, run_in, select_in
from semel.values.outbox import Dispatch
from semel.values.sending import LIVE, State
from semel.values.stored import encode

BEFORE_MAX = 16  # of those that passed before, and of whom nobody knows yet whether they were sent

Pass: TypeAlias = tuple[bytes, int]  # who, and when (ms)


class Passed(Struct, frozen=True):
    """Who passed a guard last."""

    id: bytes
    at: int
    state: State
    before: Sequence[Pass] = ()  # the newest first, back to one of whom it is known what came of it

    def is_own(self, dispatch: Dispatch) -> bool:
        """Not of an earlier life, which was forgotten."""
        return self.id == dispatch.id and self.at >= dispatch.added_ms


def passed_by(connection: apsw.Connection, watched: Sequence[bytes]) -> dict[bytes, Passed]:
    found = select_in(connection, SQL["guards"], watched)
    return {k: Passed(id, at, state, _passes(before)) for k, id, at, state, before in found}


def before_of(dispatch: Dispatch, last: Passed | None) -> Sequence[Pass]:
    """Whom the guard is left to, where this one passes it now and is not sent."""
    if last is None:
        return ()
    if last.is_own(dispatch):
        return last.before
    earlier = last.before if last.state in LIVE else ()  # else it may have been sent, and all windows end with it
    return ((last.id, last.at), *earlier)[:BEFORE_MAX]


def free(connection: apsw.Connection, watched: Sequence[bytes], unsent: Sequence[bytes]) -> None:
    """These were definitely not sent. What they have passed is left to the newest before them who may have been."""
    found = [(k, [(id, at), *_passes(before)]) for k, id, at, before in _distinct(connection, "guards_passed", watched)]
    ids = [id for _, passes in found for id, _ in passes]
    known = {id: (added, state) for id, added, state in _distinct(connection, "added_and_standing", ids)}

    def may_have_been_sent(one: Pass) -> bool:
        added, state = known.get(one[0], (0, ""))
        is_another = added > one[1]  # who passed was forgotten, and has only the name in common with it
        return one[0] not in known or is_another or not (one[0] in unsent or state == "suppressed")

    over: list[bytes] = []
    left: list[Row] = []
    for k, passes in found:
        match [one for one in passes if may_have_been_sent(one)]:
            case []:
                over.append(k)
            case [(id, at), *before]:
                left.append((k, id, at, 0, encode(before)))
    run_in(connection, SQL["forget_guards"], over)
    insert_many(connection, SQL["set_guards"], left)


def _distinct(connection: apsw.Connection, sql: str, keys: Sequence[bytes]) -> list[Row]:
    return list(select_in(connection, SQL[sql], list(dict.fromkeys(keys))))


def _passes(before: bytes | None) -> list[Pass]:
    return [] if before is None else _decode(before)


_decode = msgspec.json.Decoder(list[Pass]).decode

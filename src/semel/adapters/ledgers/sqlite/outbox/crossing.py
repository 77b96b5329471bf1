"""What may leave: the crossing, and the guards that it passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw

from semel.adapters.ledgers.sqlite.outbox.guards import Pass, Passed, before_of, passed_by
from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, run_in, select_in
from semel.values.outbox import Crossed, Crossing, Gate, Held, Lost, Suppressed
from semel.values.stored import encode


def cross(connection: apsw.Connection, crossings: Sequence[Crossing], now: int) -> list[Gate]:
    """In order, each seeing the guards that those before it have passed."""
    ids = [crossing.dispatch.id for crossing in crossings]
    held = {id: tuple(may) for id, *may in select_in(connection, SQL["dispatches_held"], ids)}
    watched = [k for crossing in crossings if (k := crossing.dispatch.notification.guarded_by) is not None]
    guards = passed_by(connection, watched)
    gates: list[Gate] = []
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
) -> Gate:
    dispatch = crossing.dispatch
    token, taken, state = held.get(dispatch.id, (0, 0, ""))
    if token != dispatch.token or not taken or state == "sending":
        return Lost()  # whoever asks again has sent, or has not: nobody can tell
    notification = dispatch.notification
    guard, k = notification.guard, notification.guarded_by
    if guard is None or k is None or k not in guards:
        return Crossed()
    last = guards[k]
    if last.is_own(dispatch) or now - last.at >= 1000 * guard.window_s:
        return Crossed()
    if crossing.standing.doubt_ms or last.state in ("pending", "sending"):
        return Held(last.id)  # what may have left already is not called suppressed
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
        dispatch, standing = crossing.dispatch, crossing.standing
        id, token, provider = dispatch.id, dispatch.token, standing.provider
        dispatches.append((id, token, provider, encode(standing), crossing.request))
        states.append((id, "sending", "", provider, None, standing.possible_duplicates, now))
        attempts.append((id, token, "", standing.attempts, provider, now, 0, "", ""))
        guard, k = dispatch.notification.guard, dispatch.notification.guarded_by
        if guard is not None and k is not None:
            at = max(now, dispatch.added_ms)  # also where the clock went back: what was passed before is not its own
            guards.append((k, id, at, now + int(1000 * guard.window_s), encode(before)))
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
    run_in(connection, SQL["end_dispatches"], [one.dispatch.id for one, _ in stopped])

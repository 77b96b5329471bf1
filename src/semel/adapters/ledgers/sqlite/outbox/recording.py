"""What came of it: the relay's records, and the providers' own word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows, run_in, select_in
from semel.values.outbox import Record, Witness, lane_of
from semel.values.sending import LIVE, OVER_UNSENT, RANK, State, reported
from semel.values.stored import encode, guard_of


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
        if one.outcome != "released" or after.state not in LIVE:
            crossed = after.crossed_ms if one.outcome in ("accepted", "refused", "limited", "unknown") else 0
            tried = dispatch.standing.provider or after.provider
            said = (one.evidence, one.reference or None, "")
            attempts.append((id, token, one.outcome, after.attempts, tried, crossed, now, *said))
        if after.state in LIVE:
            due = None if after.state == "uncertain" and not after.exit else after.due_ms
            lane = lane_of(after.provider, dispatch.notification.channel)
            same = after.provider == dispatch.standing.provider or not dispatch.standing.provider
            live.append((id, token, due, after.state, lane, encode(after), int(same)))
            continue
        over.append(id)
        nobody_got_it = after.state in OVER_UNSENT and one.outcome != "policy"  # what was given up may have been sent
        if nobody_got_it and (k := dispatch.notification.guarded_by) is not None:
            unsent.append((k, id))
    insert_many(connection, SQL["set_notifications"], states)
    insert_many(connection, SQL["forget_beginnings"], [(one.dispatch.id, one.dispatch.token) for one in records])
    if attempts:
        insert_many(connection, SQL["add_attempts"], attempts)
    if live:
        insert_many(connection, SQL["set_dispatches"], live)
    if over:
        run_in(connection, SQL["end_dispatches"], over)
    if unsent:
        run_in(connection, SQL["forget_guards"], [k for k, _ in unsent], [id for _, id in unsent])


def witness(connection: apsw.Connection, witnesses: Sequence[Witness], now: int) -> list[State | None]:
    return [_witness(connection, one, now) for one in witnesses]


def _witness(connection: apsw.Connection, one: Witness, now: int) -> State | None:
    if one.id is not None:
        found = rows(connection, SQL["witnessed_by_id"], one.id)
    else:
        found = rows(connection, SQL["witnessed_by_reference"], one.reference, one.provider) if one.reference else []
    if not found:
        return None
    id, state, provider, possible, tenant, recipient, kind, options = found[0]
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
        run_in(connection, SQL["end_dispatches"], [id])
    if after == "failed" and (guard := guard_of(tenant, recipient, kind, options)) is not None:
        run_in(connection, SQL["forget_guards"], [guard], [id])
    return after

"""What came of it: the relay's records, and the providers' own word."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import apsw

from semel.adapters.ledgers.sqlite.outbox import guards
from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows, run_in, select_in
from semel.values.outbox import Record, Witness, lane_of
from semel.values.sending import LIVE, OVER_UNSENT, RANK, State, reported
from semel.values.stored import encode, guard_of

SENT = ("accepted", "refused", "limited", "unknown")  # outcomes of what has crossed


def record(connection: apsw.Connection, records: Sequence[Record], now: int) -> list[bool]:
    """Those whose token is the current one; the others are told whether that was said before. Of one token the first
    counts."""
    firsts: dict[tuple[bytes, int], Record] = {}
    for one in records:
        firsts.setdefault((one.dispatch.id, one.dispatch.token), one)
    held = {id: tuple(may) for id, *may in select_in(connection, SQL["dispatches_held"], [id for id, _ in firsts])}
    mine = {pair: one for pair, one in firsts.items() if held.get(pair[0], ())[:2] == (pair[1], 1)}
    if mine:
        crossed = {id for id, (_, _, state) in held.items() if state == "sending"}
        _write_records(connection, _judged(connection, list(mine.values())), crossed, now)
    others = [pair for pair in firsts if pair not in mine]
    said = {pair for pair in others if held.get(pair[0], ())[:2] == (pair[1], 0)}
    if others:
        said.update((id, token) for id, token in insert_many(connection, SQL["attempts_known"], others))
    return [pair in mine or pair in said for pair in [(one.dispatch.id, one.dispatch.token) for one in records]]


def _judged(connection: apsw.Connection, records: Sequence[Record]) -> list[Record]:
    """What a look-up has found may be the message of another: then it says nothing of this one."""
    if all(one.otherwise is None for one in records):
        return list(records)
    whose = {(_tried(one), one.reference): one.dispatch.id for one in records if one.otherwise is None}
    judged: list[Record] = []
    for one in records:
        id, place = one.dispatch.id, (_tried(one), one.reference)
        if one.otherwise is not None and place not in whose:
            found = rows(connection, SQL["referred_to_by_another"], one.reference, place[0], id)
            whose[place] = found[0][0] if found else id
        judged.append(one if one.otherwise is None or whose[place] == id else one.unless(whose[place]))
    return judged


def _tried(one: Record) -> str:
    return one.dispatch.standing.provider or one.standing.provider


def _write_records(
    connection: apsw.Connection, records: Sequence[Record], crossed: AbstractSet[bytes], now: int
) -> None:
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
        # What is given back before anything left is no attempt, unless it ends so; a crossing taken back is one.
        if one.outcome != "released" or after.state not in LIVE or id in crossed:
            left_ms = after.crossed_ms if one.outcome in SENT else 0
            said = (one.evidence, one.reference or None, "")
            attempts.append((id, token, one.outcome, after.attempts, _tried(one), left_ms, now, *said))
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
        guards.free(connection, [k for k, _ in unsent], [id for _, id in unsent])


def witness(connection: apsw.Connection, witnesses: Sequence[Witness], now: int) -> list[State | None]:
    return [_witness(connection, one, now) for one in witnesses]


def _witness(connection: apsw.Connection, one: Witness, now: int) -> State | None:
    id = one.id if one.id is not None else _referred_to(connection, one)
    found = [] if id is None else rows(connection, SQL["witnessed_by_id"], id)
    if not found:
        return None
    id, state, provider, possible, tenant, recipient, kind, options, erased = found[0]
    evidence = "" if erased else one.evidence
    whose = one.provider or provider
    after = reported(state, one.says)
    if after == "failed" and (possible or whose != provider or rows(connection, SQL["sent_anew"], id, whose)):
        after = state  # of another attempt it says nothing
    elsewhere = state in RANK and one.says in RANK and whose != provider  # two have it
    if elsewhere or (one.reference and rows(connection, SQL["referred_to_otherwise"], id, whose, one.reference)):
        connection.execute(SQL["sent_twice"], (id,))  # known by two: both may have arrived
        possible = possible or 1
    told = (one.at_ms or now, evidence, one.reference or None, "")
    insert_many(connection, SQL["add_attempts"], [(id, 0, one.says, 0, whose, 0, *told)])
    if after == state:
        return after
    row = (id, after, evidence, whose, one.reference or None, possible, now)
    insert_many(connection, SQL["set_notifications"], [row])
    if after in RANK or after == "failed":
        run_in(connection, SQL["end_dispatches"], [id])
    if after == "failed" and (guard := guard_of(tenant, recipient, kind, options)) is not None:
        guards.free(connection, [guard], [id])
    return after


def _referred_to(connection: apsw.Connection, one: Witness) -> bytes | None:
    """None: nobody's, or that of two: who is meant nobody can tell, and neither is moved."""
    found = rows(connection, SQL["referred_to"], one.reference, one.provider) if one.reference else []
    return found[0][0] if len(found) == 1 else None

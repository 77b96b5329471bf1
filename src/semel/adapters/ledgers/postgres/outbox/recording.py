"""What came of it: the relay's records, and the providers' own word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from semel.adapters.ledgers.postgres.rows import shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.outbox import Record, Witness, lane_of
from semel.values.sending import LIVE, OVER_UNSENT, Reported, State, reported
from semel.values.stored import encode

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

MOVES = [  # what a provider's word makes of a state, where it makes another one of it
    (state, says, after)
    for state in get_args(State)
    for says in get_args(Reported)
    if (after := reported(state, says)) != state
]
SENT = ("accepted", "refused", "limited", "unknown")  # outcomes of what has crossed


async def record(connection: Connection, records: Sequence[Record], now: int | None, schema: str) -> list[bool]:
    """Those whose token is the current one, and those that were written before. Of one token the first counts."""
    firsts: dict[tuple[bytes, int], Record] = {}
    for one in records:
        firsts.setdefault((one.dispatch.id, one.dispatch.token), one)
    ids, tokens = zip(*firsts, strict=True)
    found = [one for one in firsts.values() if one.otherwise is not None]  # another row may be written in its place
    places = {id(one): len(firsts) + at for at, one in enumerate(found, 1)}
    instead = [places.get(id(one)) for one in firsts.values()]
    written = [_row_of(one) for one in [*firsts.values(), *[one.unless(b"") for one in found]]]
    columns = [list(column) for column in zip(*written, strict=True)]
    sql = statements(schema)["record_dispatches"]
    rows = await connection.fetch(sql, now, list(ids), list(tokens), instead, *columns)
    pairs = list(firsts)
    said = {pairs[at - 1] for (at,) in rows}
    return [(one.dispatch.id, one.dispatch.token) in said for one in records]


def _row_of(one: Record) -> tuple[Any, ...]:
    dispatch, after = one.dispatch, one.standing
    live = after.state in LIVE
    waits = live and (after.state != "uncertain" or bool(after.exit))
    tried = dispatch.standing.provider or after.provider
    same = after.provider == dispatch.standing.provider or not dispatch.standing.provider
    unsent = after.state in OVER_UNSENT and one.outcome != "policy"  # what was given up may have been sent
    return (
        *(one.outcome, after.state, shown(after.reason), shown(after.provider)),
        *(shown(one.reference) or None, after.possible_duplicates, after.attempts, shown(tried)),
        *(after.crossed_ms if one.outcome in SENT else 0, shown(one.evidence), live, after.due_ms if waits else None),
        *(shown(lane_of(after.provider, dispatch.notification.channel)), encode(after), same, unsent),
    )


async def witness(
    connection: Connection, witnesses: Sequence[Witness], now: int | None, schema: str
) -> list[State | None]:
    columns = [list(column) for column in zip(*[_word_of(one) for one in witnesses], strict=True)]
    moves = [list(column) for column in zip(*MOVES, strict=True)]
    rows = await connection.fetch(statements(schema)["witness_notifications"], now, *columns, *moves)
    return [state for _, state in sorted(rows, key=lambda row: row[0])]


def _word_of(one: Witness) -> tuple[Any, ...]:
    reference = shown(one.reference) or None
    return (one.id, one.says, shown(one.provider), reference, one.at_ms, shown(one.evidence))

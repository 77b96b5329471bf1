"""What may leave: the crossing, and the guards that it passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres.rows import shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.outbox import Crossed, Crossing, Gate, Held, Lost, Suppressed
from semel.values.stored import encode

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection


async def cross(connection: Connection, crossings: Sequence[Crossing], now: int | None, schema: str) -> list[Gate]:
    """In order, each seeing the guards that those before it have passed. Of one dispatch the first crossing counts."""
    firsts: dict[bytes, int] = {}
    for at, crossing in enumerate(crossings):
        firsts.setdefault(crossing.dispatch.id, at)
    places = list(firsts.values())
    columns = [list(column) for column in zip(*[_row_of(crossings[at]) for at in places], strict=True)]
    rows = await connection.fetch(statements(schema)["cross_dispatches"], now, *columns)
    gates: list[Gate] = [Lost()] * len(crossings)
    for at, gate, by in rows:
        gates[places[at - 1]] = _gate_of(gate, by)
    return gates


def _gate_of(gate: int, by: bytes) -> Gate:
    match gate:
        case 1:
            return Crossed()
        case 2:
            return Held(by)
        case _:
            return Suppressed(by)


def _row_of(crossing: Crossing) -> tuple[Any, ...]:
    dispatch, standing = crossing.dispatch, crossing.standing
    guard = dispatch.notification.guard
    window = 0 if guard is None else int(1000 * guard.window_s)
    return (
        *(dispatch.id, dispatch.token, dispatch.added_ms, dispatch.notification.guarded_by, window),
        *(
            bool(standing.doubt_ms),
            shown(standing.provider),
            standing.attempts,
            standing.possible_duplicates,
            encode(standing),
        ),
        crossing.request,
    )

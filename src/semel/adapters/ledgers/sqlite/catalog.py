"""The read side: what the ledger holds, newest first."""

from __future__ import annotations

import apsw

from semel.adapters.ledgers.sqlite.statements import Row, rows
from semel.ports import Entry

_LEASES = """
    select lower(hex(k)), handler, text, tenant, iif(state = 1, 'leased', 'waiting') as state, '', attempts, first, null
    from semel_lease where ?1 in ('', iif(state = 1, 'leased', 'waiting')) order by first desc limit ?2
"""

_RECORDS = """
    select lower(hex(r.k)), r.handler, r.text, r.tenant,
           case r.outcome when 1 then 'done' when 2 then 'dead' else 'uncertain' end,
           iif(r.outcome = 1, '', cast(r.result as text)), r.attempts, r.at, l.event
    from semel_record r left join semel_letter l on l.id = r.id
    {where} order by r.id desc limit ?1
"""

_WHERE = {
    "": "",
    "done": "where r.outcome = 1",
    "dead": "where r.outcome <> 1 and r.outcome = 2",
    "uncertain": "where r.outcome <> 1 and r.outcome = 3",
}


def entries(connection: apsw.Connection, state: str | None, limit: int) -> list[Entry]:
    found: list[Row] = []
    if state in (None, "leased", "waiting"):
        found += rows(connection, _LEASES, state or "", limit)
    if (where := _WHERE.get(state or "")) is not None:
        found += rows(connection, _RECORDS.format(where=where), limit)
    return [Entry(*row) for row in found[:limit]]

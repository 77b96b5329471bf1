"""Programs for comparison: the minimum that a careful author could write by hand.

`semel bench --peers bench/peers.py` loads this file. Each function prepares its database, does its work and returns the
seconds that the work took. They use the SQLite library, settings and batches of Semel's own ledger. They have
no conflicts, ordering, retries, dead letters or handlers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import apsw

Row = tuple[Any, ...]  # k, token, until, attempts, fp, tenant, handler, text

SETTINGS = (  # those of src/semel/ledgers/sqlite/database.py
    "journal_mode=wal",
    "synchronous=full",
    f"cache_size=-{64 * 1024}",
    f"mmap_size={4 * 1024**3}",
    "wal_autocheckpoint=8000",
    f"journal_size_limit={8_000 * 4096}",
)
# Rows in order of arrival beside an index of keys: when rows are this wide, twice as fast as WITHOUT ROWID.
RECORD = """
    create table record (k blob primary key, token integer not null, until integer not null, attempts integer not null,
        fp blob, tenant text not null, handler text not null, text text not null, outcome integer, result blob
    ) strict
"""
SLIM = """
    create table record (k blob primary key, token integer not null, until integer not null, fp blob, result blob
    ) strict
"""


def bare_sql(path: str, batches: Sequence[Sequence[Row]]) -> float:
    """Two phases for each batch: claim, commit; settle, commit. All columns of a record."""
    return _two_phases(_open(path, RECORD), batches, "outcome = 1, ")


def clustered_sql(path: str, batches: Sequence[Sequence[Row]]) -> float:
    """The same in one tree, ordered by key: WITHOUT ROWID."""
    return _two_phases(_open(path, RECORD.replace(") strict", ") without rowid, strict")), batches, "outcome = 1, ")


def slim_sql(path: str, batches: Sequence[Sequence[Row]]) -> float:
    """The same with only the columns that a decision needs: no attempts, no outcome, no columns for operators."""
    slim = [[(k, token, until, fp) for k, token, until, _, fp, *_ in batch] for batch in batches]
    return _two_phases(_open(path, SLIM), slim, "")


def validated_loop(path: str, bodies: Sequence[bytes]) -> float:
    """The usual hand-written consumer: a pydantic model, one event at a time, one commit for each phase."""
    from pydantic import BaseModel, ConfigDict, Field

    class Body(BaseModel):
        model_config = ConfigDict(extra="allow")
        eventTime: int  # noqa: N815 - as on the wire
        conversationId: str  # noqa: N815
        participantId: str  # noqa: N815
        sessionId: str  # noqa: N815

    class Detail(BaseModel):
        model_config = ConfigDict(extra="allow")
        topicName: str  # noqa: N815
        eventBody: Body  # noqa: N815

    class Envelope(BaseModel):
        model_config = ConfigDict(extra="allow")
        id: str
        detail_type: str = Field(alias="detail-type")
        source: str
        detail: Detail

    connection = _open(path, RECORD)
    claim = f"insert into record values ({','.join('?' * 8)},null,null) on conflict do nothing returning k"
    settle = "update record set outcome = 1, until = ?, result = ? where k = ? and token = ? returning k"
    begun = time.perf_counter()
    for token, body in enumerate(bodies):
        detail = Envelope.model_validate_json(body).detail
        said = detail.eventBody
        key = f"{detail.topicName}|{said.participantId}|{said.sessionId}|{said.eventTime}"
        k = blake2b(key.encode(), digest_size=16).digest()
        fp = blake2b(body, digest_size=16).digest()
        connection.execute("begin immediate")
        won = connection.execute(claim, (k, token, 25_000, 1, fp, "", "peer", key)).fetchall()
        connection.execute("commit")
        if won:
            connection.execute("begin immediate")
            connection.execute(settle, (38 * 86_400_000, None, k, token)).fetchall()
            connection.execute("commit")
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def _two_phases(connection: apsw.Connection, batches: Sequence[Sequence[Row]], outcome: str) -> float:
    size, width = len(batches[0]), len(batches[0][0])
    unset = ",null,null" if outcome else ",null"
    row = f"({','.join('?' * width)}{unset})"
    claim = f"insert into record values {','.join([row] * size)} on conflict do nothing returning k"
    settle = (
        f"update record set {outcome}until = v.column3, result = v.column4"
        f" from (values {','.join(['(?,?,?,?)'] * size)}) v"
        " where k = v.column1 and token = v.column2 returning k"
    )
    begun = time.perf_counter()
    for batch in batches:
        connection.execute("begin immediate")
        won = connection.execute(claim, [value for row in batch for value in row]).fetchall()
        connection.execute("commit")
        connection.execute("begin immediate")
        settled = connection.execute(
            settle, [value for k, token, until, *_ in batch for value in (k, token, until, None)]
        ).fetchall()
        connection.execute("commit")
        if not len(won) == len(settled) == size:
            raise AssertionError("the peer lost a row: its time means nothing")
    seconds = time.perf_counter() - begun
    connection.close()
    return seconds


def _open(path: str, schema: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    for pragma in SETTINGS:
        connection.execute(f"pragma {pragma}")
    connection.execute(schema)
    return connection

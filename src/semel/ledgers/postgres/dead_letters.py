"""Decisions on dead letters, and the dead-letter store of another ledger. Each function is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.ledgers.postgres.pool import Changed, insist
from semel.ledgers.postgres.rows import DEAD, UNCERTAIN, shown, split
from semel.ledgers.postgres.statements import statements
from semel.values.attempts import one_more
from semel.values.claim import Lease, Settlement
from semel.values.event import dump, load
from semel.values.outcome import Reject, Uncertain

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

REPLAYED, DISCARDED = 1, 2


class _DeadLetter(NamedTuple):
    """A row that an operator may decide about."""

    id: int
    at: int
    aliases: bytes | None  # all keys, where the inbox gave it up
    keep_ms: int
    tenant: str
    handler: str
    text: str
    fp: bytes | None
    event: bytes | None
    decode_options: bytes | None
    lane: str | None  # None: a handler gave it up
    only_handler: str | None

    @property
    def others(self) -> list[bytes]:
        return list(split(self.aliases))


class _Request(NamedTuple):
    """The decision of an operator."""

    what: int
    reason: str
    by: str
    force: bool = False


class _Moment(NamedTuple):
    """The time of a decision, its token, and the id of the inbox item that a replay creates."""

    at: int
    token: int
    id: int


async def replay(
    connection: Connection, k: bytes, reason: str, by: str, now: int | None, schema: str, *, force: bool = False
) -> bool:
    """Withdraw the record and put the event into the inbox.

    A key that another record answers by now is not dead. With `force` the record of a success is withdrawn too; no
    event is kept for a success, so nothing goes to the inbox."""
    return await insist(lambda: _decide(connection, k, _Request(REPLAYED, reason, by, force), now, schema))


async def discard(connection: Connection, k: bytes, reason: str, by: str, now: int | None, schema: str) -> bool:
    """Mark a dead letter as discarded. Its record stays and answers duplicates."""
    return await insist(lambda: _decide(connection, k, _Request(DISCARDED, reason, by), now, schema))


async def _decide(connection: Connection, k: bytes, request: _Request, now: int | None, schema: str) -> bool:
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        undecided = [_DeadLetter(*row) for row in await connection.fetch(sql["lock_undecided"], k)]
        if not undecided and not request.force:
            return False
        answering = await connection.fetchrow(sql["lock_key"], k)
        moment = _Moment(*(await connection.fetchrow(sql["moment"], now) or (0, 0, 0)))
        forced = request.force and answering is not None and answering[2] and answering[1] > moment.at
        if forced and answering is not None:
            aliases = await connection.fetchval(sql["keep_done"], k, answering[0], moment.at)
            await _add_decision(connection, k, answering[0], request, moment, sql)
            await connection.execute(sql["forget_record"], [k, *split(aliases)], answering[0])
            answering = None
        if not undecided:
            return bool(forced)
        last = await connection.fetchval(sql["last_letter"], k) if answering is None else answering[0]
        dead_letter = _chosen(undecided, last)
        if (
            request.what == REPLAYED
            and answering is not None
            and answering[0] != dead_letter.id
            and answering[1] > moment.at
        ):
            return False
        await connection.execute(sql["decide"], dead_letter.id, moment.at)
        await _add_decision(connection, k, dead_letter.id, request, moment, sql)
        if request.what == REPLAYED:
            await connection.execute(sql["forget_record"], [k, *dead_letter.others], dead_letter.id)
            if dead_letter.event is not None and not load(dead_letter.decode_options).foreign:
                await _return_to_inbox(connection, k, dead_letter, moment.id, moment.at, schema)
            # else its handler runs elsewhere: the next delivery of the event is granted
    return True


async def _add_decision(
    connection: Connection, k: bytes, id: int, request: _Request, moment: _Moment, sql: dict[str, str]
) -> None:
    texts = (shown(request.reason), shown(request.by))
    await connection.execute(sql["add_decision"], id, k, request.what, moment.token, moment.at, *texts)


def _chosen(undecided: Sequence[_DeadLetter], answering: int | None) -> _DeadLetter:
    """Return the one that answers its key now; else the newest one."""
    return max(undecided, key=lambda dead_letter: (dead_letter.id == answering, dead_letter.at, dead_letter.id))


async def _return_to_inbox(
    connection: Connection, k: bytes, dead_letter: _DeadLetter, id: int, now: int, schema: str
) -> None:
    """Put the event into the inbox.

    If a handler gave it up, the item is for that handler alone. If the inbox gave it up, the item is as it was, and
    its inbox keys move with it."""
    sql = statements(schema)
    keys = [k, *dead_letter.others] if dead_letter.lane is None else dead_letter.others or [k]
    keys = list(dict.fromkeys(keys))
    if dead_letter.lane is None:
        numbers = dict.fromkeys(sorted(keys), 0)
        for digest, n in await connection.fetch(sql["lock_inbox_keys"], keys):
            numbers[digest] = n + 1
        many = len(numbers)
        columns = ([*numbers], [*numbers.values()], [id] * many, [dead_letter.fp] * many, [None] * many)
        if len(await connection.fetch(sql["add_inbox_keys"], *columns)) < many:
            raise Changed
    else:
        await connection.execute(sql["move_keys"], keys, dead_letter.id, id)
    several = None if keys == [k] else b"".join(keys)
    lane, only = (
        (dead_letter.handler, dead_letter.handler)
        if dead_letter.lane is None
        else (dead_letter.lane, dead_letter.only_handler or "")
    )
    row = (
        id,
        now,
        dead_letter.keep_ms,
        k,
        several,
        lane,
        dead_letter.tenant,
        only,
        dead_letter.text,
        dead_letter.event,
        dead_letter.decode_options,
    )
    await connection.execute(sql["add_replayed"], *row)


# ------------------------------------------------------------------------------- dead-letter store of another ledger


class _Kept(NamedTuple):
    """A dead letter of another ledger."""

    id: int | None  # None: not written yet
    source: int
    decided: bool
    event: bytes | None


async def keep(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> None:
    """Keep dead letters of another ledger. They need a decision and answer no claim here.

    Every write carries the token of the lease in that ledger. A dead letter of a holder that vanished is replaced by
    the one that the next holder keeps for the same event."""
    if settlements:
        await insist(lambda: _keep(connection, settlements, now, schema))


async def withdraw(connection: Connection, leases: Sequence[Lease], schema: str) -> None:
    if leases:
        pairs = sorted({(lease.claim.digest, lease.token) for lease in leases})
        columns = [list(column) for column in zip(*pairs, strict=True)]
        await insist(lambda: connection.execute(statements(schema)["withdraw"], *columns))


async def _keep(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> None:
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        at = await connection.fetchval(sql["lock_letterbox"], now)
        kept: dict[bytes, list[_Kept]] = {}
        for id, k, *rest in await connection.fetch(sql["kept"], [item.lease.claim.digest for item in settlements]):
            kept.setdefault(k, []).append(_Kept(id, *rest))
        added, gone = _chosen_kept(settlements, kept)
        if gone:
            await connection.execute(sql["forget_kept"], gone)
        if added:
            columns = [list(column) for column in zip(*[_row(item, at) for item in added], strict=True)]
            await connection.execute(sql["keep"], at, *columns)


def _chosen_kept(
    settlements: Sequence[Settlement], kept: dict[bytes, list[_Kept]]
) -> tuple[list[Settlement], list[int]]:
    """Return the settlements to write and the rows that they replace, as if they had arrived one after the other."""
    added: dict[tuple[bytes, int, bytes | None], Settlement] = {}
    gone: list[int] = []
    for settlement in settlements:
        k, token = settlement.lease.claim.digest, settlement.lease.token
        event = settlement.dead_letter.event if settlement.dead_letter is not None else None
        stored = kept.setdefault(k, [])
        same = [item for item in stored if not item.decided and item.event == event]
        here = any(item.source == token and item.event == event for item in stored)  # also if it is decided
        if here or any(item.source > token for item in same):
            continue  # it is stored already, or a later holder's is
        for item in same:
            stored.remove(item)
            added.pop((k, item.source, event), None)
            gone += [] if item.id is None else [item.id]
        stored.append(_Kept(None, token, False, event))
        added[k, token, event] = settlement
    return list(added.values()), gone


def _row(settlement: Settlement, at: int) -> tuple[Any, ...]:
    claim, outcome, dead_letter = settlement.lease.claim, settlement.outcome, settlement.dead_letter
    assert isinstance(outcome, (Reject, Uncertain))
    before, attempts = (dead_letter.attempt_log, dead_letter.attempts) if dead_letter is not None else ((), 1)
    return (
        *(claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
        *(DEAD if isinstance(outcome, Reject) else UNCERTAIN, shown(outcome.reason), claim.fingerprint),
        *(attempts, claim.retention_ms),
        *(shown(claim.tenant), shown(claim.handler), shown(claim.text)),
        *((dead_letter.event, dump(dead_letter.decode_options) or None) if dead_letter is not None else (None, None)),
        *(settlement.lease.token, one_more(before, attempts, at, outcome.reason)),
    )

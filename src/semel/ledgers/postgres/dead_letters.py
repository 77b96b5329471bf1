"""Decisions on dead letters, and the dead-letter store of another ledger. Each function is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.ledgers.entries import DISCARDED, REPLAYED
from semel.ledgers.postgres.pool import Changed, insist
from semel.ledgers.postgres.rows import columns_of, storable_text
from semel.ledgers.postgres.statements import statements
from semel.values.attempts import one_more
from semel.values.claim import Lease, Settlement
from semel.values.event import dump, load
from semel.values.key import split_digests
from semel.values.outcome import Reject, Uncertain
from semel.values.outcome_codec import DEAD, UNCERTAIN

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection


class DeadLetterRow(NamedTuple):
    """An undecided dead letter."""

    id: int
    settled_ms: int
    aliases: bytes | None  # all keys, if the inbox gave it up
    retention_ms: int
    tenant: str
    handler: str
    key_text: str
    fingerprint: bytes | None
    event: bytes | None
    decode_options: bytes | None
    lane: str | None  # None: a handler gave it up
    only_handler: str | None


class OperatorDecision(NamedTuple):
    """The decision of an operator about the dead letters of one key."""

    digest: bytes
    decision: int  # REPLAYED or DISCARDED
    reason: str
    by: str
    force: bool = False


async def replay(
    connection: Connection, digest: bytes, reason: str, by: str, now: int | None, schema: str, *, force: bool = False
) -> bool:
    """Withdraw the record and put the event into the inbox.

    A key that another record answers by now is not dead. With `force` the record of a success is withdrawn too; no
    event is kept for a success, so nothing goes to the inbox."""
    request = OperatorDecision(digest, REPLAYED, reason, by, force)
    return await insist(lambda: _decide(connection, request, now, schema))


async def discard(connection: Connection, digest: bytes, reason: str, by: str, now: int | None, schema: str) -> bool:
    """Mark a dead letter as discarded. Its record stays and answers duplicates."""
    return await insist(lambda: _decide(connection, OperatorDecision(digest, DISCARDED, reason, by), now, schema))


async def _decide(connection: Connection, request: OperatorDecision, now: int | None, schema: str) -> bool:
    sql, digest = statements(schema), request.digest
    async with connection.transaction(isolation="read_committed"):
        undecided = [DeadLetterRow(*row) for row in await connection.fetch(sql["lock_undecided"], digest)]
        if not undecided and not request.force:
            return False
        settled = await connection.fetchrow(sql["lock_settled_key"], digest)
        now_ms, token, item_id = await connection.fetchrow(sql["next_decision"], now) or (0, 0, 0)
        answering, until_ms, is_done = settled or (None, 0, False)
        written = (request.decision, token, now_ms, storable_text(request.reason), storable_text(request.by))
        forced = request.force and is_done and until_ms > now_ms
        if forced:
            aliases = await connection.fetchval(sql["add_replayed_success"], digest, answering, now_ms)
            await connection.execute(sql["add_decision"], answering, digest, *written)
            await connection.execute(sql["delete_settled_keys"], [digest, *split_digests(aliases)], answering)
            answering, until_ms = None, 0
        if not undecided:
            return bool(forced)
        # The dead letter that answers its key now, or the newest one.
        current = await connection.fetchval(sql["newest_dead_letter"], digest) if answering is None else answering
        dead_letter = max(undecided, key=lambda row: (row.id == current, row.settled_ms, row.id))
        is_replayed = request.decision == REPLAYED
        if is_replayed and until_ms > now_ms and answering != dead_letter.id:
            return False
        await connection.execute(sql["set_decided"], dead_letter.id, now_ms)
        await connection.execute(sql["add_decision"], dead_letter.id, digest, *written)
        if is_replayed:
            keys = [digest, *split_digests(dead_letter.aliases)]
            await connection.execute(sql["delete_settled_keys"], keys, dead_letter.id)
            if dead_letter.event is not None and not load(dead_letter.decode_options).foreign:
                await _return_to_inbox(connection, digest, dead_letter, item_id, now_ms, sql)
            # else its handler runs elsewhere: the next delivery of the event is granted
    return True


async def _return_to_inbox(
    connection: Connection, digest: bytes, dead_letter: DeadLetterRow, id: int, now_ms: int, sql: dict[str, str]
) -> None:
    """Put the event into the inbox.

    If a handler gave it up, the item is for that handler alone. If the inbox gave it up, the item is as it was, and
    its inbox keys move with it."""
    aliases = split_digests(dead_letter.aliases)
    if dead_letter.lane is None:
        keys = list(dict.fromkeys([digest, *aliases]))
        lane = only_handler = dead_letter.handler
        numbers = dict.fromkeys(sorted(keys), 0)
        for key, number in await connection.fetch(sql["lock_inbox_keys"], keys):
            numbers[key] = number + 1
        rows = [(key, number, id, dead_letter.fingerprint, None) for key, number in numbers.items()]
        if len(await connection.fetch(sql["add_inbox_keys"], *columns_of(rows))) < len(rows):
            raise Changed
    else:
        keys = list(dict.fromkeys(aliases or [digest]))
        lane, only_handler = dead_letter.lane, dead_letter.only_handler or ""
        await connection.execute(sql["move_inbox_keys"], keys, dead_letter.id, id)
    await connection.execute(
        sql["add_replayed_item"],
        *(id, now_ms, dead_letter.retention_ms, digest, None if keys == [digest] else b"".join(keys)),
        *(lane, dead_letter.tenant, only_handler, dead_letter.key_text, dead_letter.event, dead_letter.decode_options),
    )


# ------------------------------------------------------------------------------- dead-letter store of another ledger


class KeptDeadLetter(NamedTuple):
    """A dead letter of another ledger."""

    id: int | None  # None: not written yet
    origin_token: int
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
        sql = statements(schema)["withdraw_dead_letters"]
        await insist(lambda: connection.execute(sql, *columns_of(pairs)))


async def _keep(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> None:
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        now_ms = await connection.fetchval(sql["lock_dead_letter_store"], now)
        kept: dict[bytes, list[KeptDeadLetter]] = {}
        digests = [settlement.lease.claim.digest for settlement in settlements]
        for id, digest, *rest in await connection.fetch(sql["kept_dead_letters"], digests):
            kept.setdefault(digest, []).append(KeptDeadLetter(id, *rest))
        added, gone = _replacements(settlements, kept)
        if gone:
            await connection.execute(sql["delete_dead_letters"], gone)
        if added:
            rows = [_dead_letter_row(settlement, now_ms) for settlement in added]
            await connection.execute(sql["keep_dead_letters"], now_ms, *columns_of(rows))


def _replacements(
    settlements: Sequence[Settlement], kept: dict[bytes, list[KeptDeadLetter]]
) -> tuple[list[Settlement], list[int]]:
    """Return the settlements to write and the rows that they replace, as if they had arrived one after the other."""
    added: dict[tuple[bytes, int, bytes | None], Settlement] = {}
    gone: list[int] = []
    for settlement in settlements:
        digest, token = settlement.lease.claim.digest, settlement.lease.token
        event = settlement.dead_letter.event if settlement.dead_letter is not None else None
        stored = kept.setdefault(digest, [])
        same = [item for item in stored if not item.decided and item.event == event]
        here = any(item.origin_token == token and item.event == event for item in stored)  # also if it is decided
        if here or any(item.origin_token > token for item in same):
            continue  # it is stored already, or a later holder's is
        for item in same:
            stored.remove(item)
            added.pop((digest, item.origin_token, event), None)
            gone += [] if item.id is None else [item.id]
        stored.append(KeptDeadLetter(None, token, False, event))
        added[digest, token, event] = settlement
    return list(added.values()), gone


def _dead_letter_row(settlement: Settlement, now_ms: int) -> tuple[Any, ...]:
    claim, outcome, dead_letter = settlement.lease.claim, settlement.outcome, settlement.dead_letter
    assert isinstance(outcome, (Reject, Uncertain))
    before, attempts = (dead_letter.attempt_log, dead_letter.attempts) if dead_letter is not None else ((), 1)
    return (
        *(claim.digest, b"".join([alias.digest for alias in claim.aliases]) or None),
        *(DEAD if isinstance(outcome, Reject) else UNCERTAIN, storable_text(outcome.reason), claim.fingerprint),
        *(attempts, claim.retention_ms),
        *(storable_text(claim.tenant), storable_text(claim.handler), storable_text(claim.text)),
        *((dead_letter.event, dump(dead_letter.decode_options) or None) if dead_letter is not None else (None, None)),
        *(settlement.lease.token, one_more(before, attempts, now_ms, outcome.reason)),
    )

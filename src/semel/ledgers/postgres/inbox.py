"""Reads and writes of the inbox, as functions of a connection outside a transaction.

The keys of an accepted item's claims identify it until it is finished; by then its record is in the ledger. Both are
read by one snapshot, so a redelivery always finds at least one of them. An item that is given up becomes a dead letter
with the same id. Its keys stay, so duplicates are answered; the dead letter answers no claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from semel.ledgers.postgres.pool import Changed, insist
from semel.ledgers.postgres.rows import columns_of, storable_text
from semel.ledgers.postgres.statements import statements
from semel.values.event import dump, load
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, InboxEnding, Postponed, Taken
from semel.values.inbox_rules import ACCEPTED, ArrivalKeys, identify, keys_of, longest_retention_ms, refusal
from semel.values.outcome import Final
from semel.values.outcome_codec import decode_outcome

if TYPE_CHECKING:
    from asyncpg import Record

    from semel.ledgers.postgres.pool import Connection

TAKE_MAX = 2**31 - 1  # items in one take
DELAY_MAX_MS = 2**53  # a longer delay never ends

FINISHED, POSTPONED, GIVEN_UP = 1, 2, 3
EXPIRED = 0  # outcome of a dead letter whose retention has ended: it no longer answers, but its row exists


class StoredKey(NamedTuple):
    """A row of the ledger or the inbox for one key."""

    number: int | None  # number of the row in the inbox; None: a row of the ledger
    id: int
    fingerprint: bytes | None
    order_position: bytes | None
    outcome: Final | None = None
    expired: bool = False

    @property
    def in_inbox(self) -> bool:
        return self.number is not None


class NewItem(NamedTuple):
    """An arrival with its keys."""

    arrival: Arrival
    digest: bytes
    keys: ArrivalKeys
    repeats: bool  # it shares a key with an earlier arrival of its batch


StoredKeys: TypeAlias = dict[bytes, list[StoredKey]]

# ----------------------------------------------------------------------------------------------------------- accept


async def accept(connection: Connection, arrivals: Sequence[Arrival], now: int | None, schema: str) -> list[Acceptance]:
    """Accept new arrivals and refuse known ones, in one round trip.

    An arrival that is accepted although one of its keys is known, or shared within its batch, takes another
    transaction."""
    if not arrivals:
        return []
    items = _new_items(arrivals)
    keys = [(at, digest, *key) for at, item in enumerate(items, 1) for digest, key in item.keys.items()]
    columns = (*_item_columns(items), [item.repeats for item in items], *columns_of(keys))
    row = await insist(lambda: connection.fetchrow(statements(schema)["accept"], now, *columns))
    assert row is not None
    accepted = {at - 1 for at in row["accepted"] or ()}
    if len(accepted) == len(items):
        return [ACCEPTED] * len(items)
    stored = _stored_before(row)
    ids: list[int] = row["ids"] or [0] * len(items)  # 0: nothing was written, and no id was used
    for at in accepted:
        _add(stored, items[at], ids[at])
    rest = [at for at in range(len(items)) if at not in accepted]
    remaining = [(ids[at], items[at]) for at in rest]
    decided, new = _decide(remaining, stored)
    if new:
        if row["ids"] is None:
            numbers = await connection.fetch(statements(schema)["next_ids"], len(rest))
            remaining = [(id, item) for (id,), (_, item) in zip(numbers, remaining, strict=True)]
        decided = await insist(lambda: _accept_locked(connection, remaining, row["accepted_ms"], schema))
    results = [ACCEPTED] * len(items)
    for at, result in zip(rest, decided, strict=True):
        results[at] = result
    return results


def _new_items(arrivals: Sequence[Arrival]) -> list[NewItem]:
    seen: set[bytes] = set()
    items: list[NewItem] = []
    for arrival in arrivals:
        keys = keys_of(arrival.claims)
        repeats = not seen.isdisjoint(keys)
        seen.update(keys)
        items.append(NewItem(arrival, identify(arrival.claims, keys), keys, repeats))
    return items


def _item_columns(items: Sequence[NewItem]) -> tuple[list[Any], ...]:
    """Return the columns digest, digests, lane, retention_ms, tenant, key_text, event, decode_options, traceparent."""
    return (
        [item.digest for item in items],
        [b"".join(item.keys) if len(item.keys) > 1 else None for item in items],
        [storable_text(item.arrival.lane) for item in items],
        [longest_retention_ms(item.arrival.claims) for item in items],
        [storable_text(item.arrival.tenant) for item in items],
        [storable_text(item.arrival.claims[0].text) for item in items],
        [item.arrival.event for item in items],
        [dump(item.arrival.decode_options) or None for item in items],
        [storable_text(item.arrival.trace) or None for item in items],
    )


def _stored_before(row: Record) -> StoredKeys:
    """Return the known keys, without the rows that this batch wrote."""
    if row["known_digests"] is None:
        return {}
    own = set(row["ids"] or ())
    names = ("digests", "numbers", "ids", "fingerprints", "positions", "outcomes", "reasons")
    known = zip(*[row[f"known_{name}"] for name in names], strict=True)
    return _stored_keys(columns for columns in known if columns[1] is None or columns[2] not in own)


def _stored_keys(rows: Iterable[Iterable[Any]]) -> StoredKeys:
    stored: StoredKeys = {}
    for digest, number, id, fingerprint, order_position, outcome, reason in rows:
        decoded = decode_outcome(outcome, reason) if outcome else None
        key = StoredKey(number, id, fingerprint, order_position, decoded, outcome == EXPIRED)
        stored.setdefault(digest, []).append(key)
    return stored


def _add(stored: StoredKeys, item: NewItem, id: int) -> None:
    for digest, key in item.keys.items():
        rows = stored.setdefault(digest, [])
        number = max([row.number for row in rows if row.number is not None], default=-1) + 1
        rows.append(StoredKey(number, id, key.fingerprint, key.order_position))


def _decide(
    items: Sequence[tuple[int, NewItem]], stored: StoredKeys
) -> tuple[list[Acceptance], list[tuple[int, NewItem]]]:
    """Decide in order. Each arrival sees the items accepted before it; `stored` is updated."""
    results: list[Acceptance] = []
    accepted: list[tuple[int, NewItem]] = []
    for id, item in items:
        live = {digest: [row for row in stored.get(digest, ()) if not row.expired] for digest in item.keys}
        refused = refusal(item.arrival.claims, live)
        if refused is None:
            _add(stored, item, id)
            accepted.append((id, item))
        results.append(refused or ACCEPTED)
    return results, accepted


async def _accept_locked(
    connection: Connection, items: Sequence[tuple[int, NewItem]], now: int, schema: str
) -> list[Acceptance]:
    """Accept with the rows of all keys locked, so that no row is added or deleted concurrently."""
    sql = statements(schema)
    digests = sorted({digest for _, item in items for digest in item.keys})
    async with connection.transaction(isolation="read_committed"):
        locked = {tuple(row) for row in await connection.fetch(sql["lock_inbox_keys"], digests)}
        stored = _stored_keys(await connection.fetch(sql["known_keys"], digests, now))
        if locked != {(digest, row.number) for digest, rows in stored.items() for row in rows if row.in_inbox}:
            raise Changed
        results, accepted = _decide(items, stored)
        if accepted:
            ids = [id for id, _ in accepted]
            new = set(ids)
            keys = [(digest, *row[:4]) for digest, rows in stored.items() for row in rows if row.id in new]
            added = await connection.fetch(sql["add_inbox_keys"], *columns_of(sorted(keys)))
            if len(added) < len(keys):
                raise Changed
            await connection.execute(sql["add_inbox_items"], now, ids, *_item_columns([item for _, item in accepted]))
    return results


# -------------------------------------------------------------------------------------------------- take and finish


async def is_due(connection: Connection, lanes: Iterable[str], now: int | None, schema: str) -> bool:
    """True if a take would find an item."""
    names = [storable_text(lane) for lane in lanes]
    return await connection.fetchval(statements(schema)["is_inbox_item_due"], names, now) is not None


async def take(
    connection: Connection, wanted: Mapping[str, int], lease_ms: int, now: int | None, schema: str
) -> list[Taken]:
    lanes = {storable_text(lane): lane for lane in wanted}
    limits = [min(max(wanted[lane], 0), TAKE_MAX) for lane in lanes.values()]
    sql = statements(schema)["take_inbox_items"]
    rows = await insist(lambda: connection.fetch(sql, list(lanes), limits, lease_ms, now))
    rows.sort(key=lambda row: row[1])  # tokens are in the order of the due times
    return [
        Taken(id, token, lanes[lane], event, tenant, load(decode_options), only_handler, traceparent or "", *rest)
        for id, token, lane, event, tenant, decode_options, only_handler, traceparent, *rest in rows
    ]


async def finish(connection: Connection, endings: Sequence[InboxEnding], now: int | None, schema: str) -> list[bool]:
    """End items whose token is current. The first of several endings of one token counts."""
    if not endings:
        return []
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    columns = columns_of([(id, token, *_encode_ending(first[id, token])) for id, token in sorted(first)])
    rows = await insist(lambda: connection.fetch(statements(schema)["finish_inbox_items"], *columns, now))
    current = {(id, token) for id, token in rows}
    results: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        results.append(pair in current)
        current.discard(pair)
    return results


def _encode_ending(ending: InboxEnding) -> tuple[int, int, str]:
    match ending:
        case Finished():
            return FINISHED, 0, ""
        case Postponed(after_ms=after_ms, reason=reason):
            return POSTPONED, min(max(after_ms, 0), DELAY_MAX_MS), storable_text(reason)
        case _:
            return GIVEN_UP, 0, storable_text(ending.reason)


async def depths(connection: Connection, now: int | None, schema: str) -> list[Depth]:
    return [Depth(*row) for row in await connection.fetch(statements(schema)["inbox_depths"], now)]

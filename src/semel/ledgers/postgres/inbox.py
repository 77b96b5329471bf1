"""Reads and writes of the inbox, as functions of a connection outside a transaction.

The keys of an accepted item's claims identify it until it is finished; by then its record is in the ledger. Both are
read by one snapshot, so a redelivery always finds at least one of them. An item that is given up becomes a dead letter
with the same id. Its keys stay, so duplicates are answered; the dead letter answers no claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from semel.ledgers.postgres.pool import Changed, insist
from semel.ledgers.postgres.rows import shown
from semel.ledgers.postgres.statements import statements
from semel.values.claim import Claim
from semel.values.event import dump, load
from semel.values.inbox import WAITS, Acceptance, Arrival, Depth, Finished, InboxEnding, Postponed, Taken
from semel.values.key import DIGEST_BYTES

if TYPE_CHECKING:
    from asyncpg import Record

    from semel.ledgers.postgres.pool import Connection

ACCEPTED = Acceptance("accepted")
CONFLICT = Acceptance("conflict", "the key is known with another payload")
DONE = Acceptance("duplicate", "done")
POSITION_BYTES = 8

_OVER, _DONE, _DEAD = 0, 1, 2  # codes in the store; every other ended outcome is uncertain


class KnownKey(NamedTuple):
    """The stored state of one key, in the ledger or in the inbox."""

    n: int | None  # number of the row in the inbox; None: a row of the ledger
    id: int
    fingerprint: bytes | None
    place: bytes | None
    outcome: int | None = None  # None: it is not over
    reason: bytes | None = None


class ArrivalKey(NamedTuple):
    """Fingerprint and place of one key of an arrival."""

    fingerprint: bytes | None
    place: bytes | None


KnownKeys: TypeAlias = dict[bytes, list[KnownKey]]
Keys: TypeAlias = dict[bytes, ArrivalKey]  # of one arrival

NO_CLAIM = ArrivalKey(None, None)  # for the key of several claims together


def keys_of(claims: Sequence[Claim]) -> Keys:
    """Return all keys of an arrival."""
    keys: Keys = {}
    for claim in claims:
        key = ArrivalKey(claim.fingerprint, _place(claim))
        keys[claim.digest] = key
        for alias in claim.aliases:
            keys[alias.digest] = key
    return keys


def key_of_several(claims: Sequence[Claim]) -> bytes:
    """Return the key of an arrival with several claims."""
    return blake2b(b"".join(sorted(claim.digest for claim in claims)), digest_size=DIGEST_BYTES).digest()


def refusal(claims: Sequence[Claim], facts: Mapping[bytes, Sequence[KnownKey]]) -> Acceptance | None:
    """Return why an arrival is not accepted; None if it is. Every claim is checked: one conflict decides."""
    results = [_known_as(claim, facts) for claim in claims]
    if CONFLICT in results:
        return CONFLICT
    refused = [result for result in results if result is not None]
    return max(refused, key=_weight) if len(refused) == len(claims) else None


def _known_as(claim: Claim, facts: Mapping[bytes, Sequence[KnownKey]]) -> Acceptance | None:
    """Return the stored result of one claim; None if there is none, so that the arrival is needed.

    The ledger is checked before the inbox. An item covers a claim if it is the same event by its keys and its place:
    with another place in the order the item might be stale where this claim is not."""
    digests = (claim.digest, *[alias.digest for alias in claim.aliases])
    known = [fact for digest in digests for fact in facts.get(digest, ())]
    ledger = [fact for fact in known if fact.n is None]
    if any(_differ(fact.fingerprint, claim.fingerprint) for fact in ledger):
        return CONFLICT
    for fact in ledger:
        if fact.outcome is not None:
            return _ended(fact)
    inbox = [fact for fact in known if fact.n is not None and fact.outcome != _OVER]
    if any(_differ(fact.fingerprint, claim.fingerprint) for fact in inbox):
        return CONFLICT
    same = [fact for fact in inbox if fact.place == _place(claim)]
    if any(fact.outcome is None for fact in same):
        return WAITS
    return _ended(same[0]) if same else None


def _ended(fact: KnownKey) -> Acceptance:
    if fact.outcome == _DONE:
        return DONE
    return Acceptance(
        "duplicate", f"{'dead' if fact.outcome == _DEAD else 'uncertain'}: {(fact.reason or b'').decode()}"
    )


def _weight(result: Acceptance) -> int:
    """Rank the results of several claims: waiting first, then uncertain, then dead, then done."""
    return (result is WAITS) * 4 + result.reason.startswith("uncertain: ") * 2 + (result is not DONE)


def _differ(first: bytes | None, second: bytes | None) -> bool:
    return first is not None and second is not None and first != second


def _place(claim: Claim) -> bytes | None:
    if claim.order is None:
        return None
    return claim.order.subject + claim.order.position.to_bytes(POSITION_BYTES, "big", signed=True)


MOST = 2**31 - 1  # items in one take
LATEST_MS = 2**53  # a longer wait has no end

FINISHED, POSTPONED, GIVEN_UP = 1, 2, 3


class _NewItem(NamedTuple):
    """An arrival, as it is written."""

    arrival: Arrival
    k: bytes  # its key
    keys: Keys
    first: bool  # the first arrival of its batch with these keys

    @property
    def several(self) -> bytes | None:
        return b"".join(self.keys) if len(self.keys) > 1 else None


# ----------------------------------------------------------------------------------------------------------- accept


async def accept(connection: Connection, arrivals: Sequence[Arrival], now: int | None, schema: str) -> list[Acceptance]:
    """Accept new arrivals and refuse known ones, in one round trip.

    An arrival that is accepted although one of its keys is known, or shared within its batch, takes another
    transaction."""
    if not arrivals:
        return []
    items = _new_items(arrivals)
    row = await insist(lambda: connection.fetchrow(statements(schema)["accept"], now, *_columns(items)))
    assert row is not None
    fresh = {at - 1 for at in row["fresh"] or ()}
    if len(fresh) == len(items):
        return [ACCEPTED] * len(items)
    facts = _found(row)
    ids: list[int] = row["ids"] or [0] * len(items)  # 0: nothing was written, and no id was used
    for at in fresh:
        _add(facts, items[at], ids[at])
    rest = [at for at in range(len(items)) if at not in fresh]
    others = [(ids[at], items[at]) for at in rest]
    decided, accepted = _decide(others, facts)
    if accepted:
        if row["ids"] is None:
            found = await connection.fetch(statements(schema)["next_numbers"], len(rest))
            others = [(number, item) for (number,), (_, item) in zip(found, others, strict=True)]
        decided = await insist(lambda: _accept_beside(connection, others, row["now"], schema))
    results = [ACCEPTED] * len(items)
    for at, result in zip(rest, decided, strict=True):
        results[at] = result
    return results


def _new_items(arrivals: Sequence[Arrival]) -> list[_NewItem]:
    seen: set[bytes] = set()
    items: list[_NewItem] = []
    for arrival in arrivals:
        keys = keys_of(arrival.claims)
        k = arrival.claims[0].digest
        first = seen.isdisjoint(keys)
        seen.update(keys)
        if len(arrival.claims) > 1:
            k = key_of_several(arrival.claims)
            keys.setdefault(k, NO_CLAIM)  # operators can find the item by this key, too
        items.append(_NewItem(arrival, k, keys, first))
    return items


def _columns(items: Sequence[_NewItem]) -> tuple[list[Any], ...]:
    keys = [(at, k, *key) for at, item in enumerate(items, 1) for k, key in item.keys.items()]
    return (
        *_rows(items),
        [len(one.keys) if one.first else 0 for one in items],
        *map(list, zip(*keys, strict=True)),
    )


def _rows(items: Sequence[_NewItem]) -> tuple[list[Any], ...]:
    """Return the columns k, keys, lane, keep, tenant, text, event, reading, trace."""
    return (
        [one.k for one in items],
        [one.several for one in items],
        [shown(one.arrival.lane) for one in items],
        [_kept_ms(one.arrival.claims) for one in items],
        [shown(one.arrival.tenant) for one in items],
        [shown(one.arrival.claims[0].text) for one in items],
        [one.arrival.event for one in items],
        [dump(one.arrival.decode_options) or None for one in items],
        [shown(one.arrival.trace) or None for one in items],
    )


def _kept_ms(claims: Sequence[Claim]) -> int:
    """Return the longest retention of an arrival's keys."""
    kept_ms = 0
    for claim in claims:
        kept_ms = max(kept_ms, claim.retention_ms)
        for alias in claim.aliases:
            kept_ms = max(kept_ms, alias.retention_ms)
    return kept_ms


def _found(row: Record) -> KnownKeys:
    """Return the known keys, without the rows that this batch wrote."""
    if row["known_k"] is None:
        return {}
    own = set(row["ids"] or ())
    names = ("known_k", "known_n", "known_id", "known_fp", "known_place", "known_outcome", "known_reason")
    return _facts(
        found for found in zip(*[row[name] for name in names], strict=True) if found[1] is None or found[2] not in own
    )


def _facts(found: Iterable[Iterable[Any]]) -> KnownKeys:
    facts: KnownKeys = {}
    for k, *known in found:
        facts.setdefault(k, []).append(KnownKey(*known))
    return facts


def _add(facts: KnownKeys, item: _NewItem, id: int) -> None:
    """Add the keys of a new item to the known keys."""
    for k, key in item.keys.items():
        known = facts.setdefault(k, [])
        n = max([fact.n for fact in known if fact.n is not None], default=-1) + 1
        known.append(KnownKey(n, id, key.fingerprint, key.place))


def _decide(
    items: Sequence[tuple[int, _NewItem]], facts: KnownKeys
) -> tuple[list[Acceptance], list[tuple[int, _NewItem]]]:
    """Decide in order. Each arrival sees the items accepted before it; `facts` is updated."""
    results: list[Acceptance] = []
    accepted: list[tuple[int, _NewItem]] = []
    for id, item in items:
        refused = refusal(item.arrival.claims, facts)
        if refused is None:
            _add(facts, item, id)
            accepted.append((id, item))
        results.append(refused or ACCEPTED)
    return results, accepted


async def _accept_beside(
    connection: Connection, items: Sequence[tuple[int, _NewItem]], now: int, schema: str
) -> list[Acceptance]:
    """Accept with the rows of all keys locked, so that no row is added or deleted concurrently."""
    sql = statements(schema)
    digests = sorted({k for _, item in items for k in item.keys})
    async with connection.transaction(isolation="read_committed"):
        locked = {tuple(row) for row in await connection.fetch(sql["lock_inbox_keys"], digests)}
        facts = _facts(await connection.fetch(sql["known"], digests, now))
        if locked != {(k, fact.n) for k, known in facts.items() for fact in known if fact.n is not None}:
            raise Changed
        results, accepted = _decide(items, facts)
        if accepted:
            new = {id for id, _ in accepted}
            rows = [(k, *fact[:4]) for k, known in facts.items() for fact in known if fact.id in new]
            rows.sort()
            added = await connection.fetch(sql["add_inbox_keys"], *map(list, zip(*rows, strict=True)))
            if len(added) < len(rows):
                raise Changed
            ids = [id for id, _ in accepted]
            await connection.execute(sql["add_to_inbox"], now, ids, *_rows([item for _, item in accepted]))
    return results


# -------------------------------------------------------------------------------------------------- take and finish


async def is_due(connection: Connection, lanes: Iterable[str], now: int | None, schema: str) -> bool:
    """True if a take would find an item."""
    return await connection.fetchval(statements(schema)["is_due"], [shown(lane) for lane in lanes], now) is not None


async def take(
    connection: Connection, wanted: Mapping[str, int], lease_ms: int, now: int | None, schema: str
) -> list[Taken]:
    lanes = {shown(lane): (lane, min(max(room, 0), MOST)) for lane, room in wanted.items()}
    rooms = [room for _, room in lanes.values()]
    rows = await insist(lambda: connection.fetch(statements(schema)["take"], list(lanes), rooms, lease_ms, now))
    rows.sort(key=lambda row: row[1])  # tokens are in the order of the due times
    return [
        Taken(id, token, lanes[lane][0], event, tenant, load(decode_options), only, trace or "", lapses, accepted, k)
        for id, token, lane, event, tenant, decode_options, only, trace, lapses, accepted, k in rows
    ]


async def finish(connection: Connection, endings: Sequence[InboxEnding], now: int | None, schema: str) -> list[bool]:
    """End items whose token is current. The first of several endings of one token counts."""
    if not endings:
        return []
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    rows = [(id, token, *_columns_of(first[id, token])) for id, token in sorted(first)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    found = await insist(lambda: connection.fetch(statements(schema)["finish"], *columns, now))
    held = {(id, token) for id, token in found}
    results: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        results.append(pair in held)
        held.discard(pair)
    return results


def _columns_of(ending: InboxEnding) -> tuple[int, int, str]:
    match ending:
        case Finished():
            return FINISHED, 0, ""
        case Postponed(after_ms=after_ms, reason=reason):
            return POSTPONED, min(max(after_ms, 0), LATEST_MS), shown(reason)
        case _:
            return GIVEN_UP, 0, shown(ending.reason)


async def depths(connection: Connection, now: int | None, schema: str) -> list[Depth]:
    return [Depth(*row) for row in await connection.fetch(statements(schema)["depths"], now)]

"""Reads and writes of the inbox, as functions of a connection. Writes run inside an immediate transaction.

The keys of an accepted item's claims identify it until it is finished; by then its record is in the ledger. Both are
read under one lock, so a redelivery always finds at least one of them. An item that is given up becomes a record with
the same id. Its keys stay, so duplicates are answered; the record answers no claim.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import apsw

from semel.ledgers.sqlite.claims import DEAD, digests_of, known_of, split, storable
from semel.ledgers.sqlite.statements import SQL, Row, insert_many, rows, select_in
from semel.values.claim import Claim
from semel.values.claim_rules import Known, State
from semel.values.event import dump, load
from semel.values.inbox import WAITS, Acceptance, Arrival, Depth, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.key import DIGEST_BYTES
from semel.values.outcome import Done, Final, Reject

WAITING = 1  # state of an item that is not taken
NO_TOKEN = 0  # token of an item that was never taken

ACCEPTED = Acceptance("accepted")
CONFLICT = Acceptance("conflict", "the key is known with another payload")
DONE = Acceptance("duplicate", "done")
POSITION_BYTES = 8


class _Item(NamedTuple):
    """The inbox's state of one key."""

    fingerprint: bytes | None
    place: bytes | None
    died: str | None  # why the item was given up; None: it waits


_Keys: TypeAlias = dict[bytes, _Item]  # of one arrival
_Items: TypeAlias = dict[bytes, list[_Item]]

# ----------------------------------------------------------------------------------------------------------- accept


def accept(connection: apsw.Connection, arrivals: Sequence[Arrival], now: int) -> list[Acceptance]:
    """Read the stored state of all keys, decide in order, write the new items."""
    keys = [_keys_of(arrival.claims) for arrival in arrivals]
    digests = [digest for own in keys for digest in own]
    known = known_of(connection, digests)
    items = _items_of(connection, digests, now)
    met = {*known, *items}
    results: list[Acceptance] = []
    fresh: list[tuple[Arrival, _Keys]] = []
    for arrival, own in zip(arrivals, keys, strict=True):
        refusal = None if met.isdisjoint(own) else _refusal(arrival.claims, known, items, now)
        if refusal is None:
            fresh.append((arrival, own))
            met.update(own)
            for digest, item in own.items():
                items.setdefault(digest, []).append(item)
        results.append(refusal or ACCEPTED)
    if fresh:
        _write(connection, fresh, now)
    return results


def _keys_of(claims: Sequence[Claim]) -> _Keys:
    """Return all keys of an arrival, each with its state once the arrival is accepted."""
    keys: _Keys = {}
    for claim in claims:
        item = _Item(claim.fingerprint, _place(claim), None)
        for digest in digests_of(claim):
            keys[digest] = item
    return keys


def _items_of(connection: apsw.Connection, digests: Sequence[bytes], now: int) -> _Items:
    found: _Items = {}
    for k, fp, place, died, expires in select_in(connection, SQL["letters_by_key"], digests):
        if died is None or expires > now:
            found.setdefault(k, []).append(_Item(fp, place, None if died is None else died.decode()))
    return found


def _refusal(claims: Sequence[Claim], known: dict[bytes, Known], items: _Items, now: int) -> Acceptance | None:
    """Return why an arrival is not accepted; None if it is. Every claim is checked: one conflict decides."""
    results = [_known_as(claim, known, items, now) for claim in claims]
    if CONFLICT in results:
        return CONFLICT
    refused = [result for result in results if result is not None]
    return max(refused, key=_weight) if len(refused) == len(claims) else None


def _known_as(claim: Claim, known: dict[bytes, Known], items: _Items, now: int) -> Acceptance | None:
    """Return the stored result of one claim; None if there is none, so that the arrival is needed.

    The ledger is checked before the inbox. An item covers a claim if it is the same event by its keys and its place:
    with another place in the order the item might be stale where this claim is not.
    """
    outcome: Final | None = None
    for digest in digests_of(claim):
        state = known.get(digest)
        if state is None or (state.state is State.SETTLED and state.until_ms <= now):
            continue
        if _differ(state.fingerprint, claim.fingerprint):
            return CONFLICT
        outcome = state.outcome if outcome is None else outcome
    if outcome is not None:
        return _settled(outcome)
    candidates = [item for digest in digests_of(claim) for item in items.get(digest, ())]
    if any(_differ(item.fingerprint, claim.fingerprint) for item in candidates):
        return CONFLICT
    same = [item for item in candidates if item.place == _place(claim)]
    if any(item.died is None for item in same):
        return WAITS
    return Acceptance("duplicate", f"dead: {same[0].died}") if same else None


def _settled(outcome: Final) -> Acceptance:
    match outcome:
        case Done():
            return DONE
        case Reject():
            return Acceptance("duplicate", f"dead: {outcome.reason}")
        case _:
            return Acceptance("duplicate", f"uncertain: {outcome.reason}")


def _weight(result: Acceptance) -> int:
    """Rank the results of several claims: waiting first, then uncertain, then dead, then done."""
    return (result is WAITS) * 4 + result.reason.startswith("uncertain: ") * 2 + (result is not DONE)


def _differ(first: bytes | None, second: bytes | None) -> bool:
    return first is not None and second is not None and first != second


def _place(claim: Claim) -> bytes | None:
    if claim.order is None:
        return None
    return claim.order.subject + claim.order.position.to_bytes(POSITION_BYTES, "big", signed=True)


def _write(connection: apsw.Connection, fresh: Sequence[tuple[Arrival, _Keys]], now: int) -> None:
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(fresh),))
    items: list[Row] = []
    events: list[Row] = []
    keys: list[Row] = []
    for id, (arrival, own) in enumerate(fresh, last + 1):
        first, *others = arrival.claims
        k, several = first.digest, None
        if len(own) > 1:
            k = arrival_key(arrival.claims) if others else k
            own.setdefault(k, _Item(None, None, None))  # operators can find the item by this key, too
            several = b"".join(own)
        items.append(
            (
                *(id, k, several, arrival.lane, NO_TOKEN, WAITING, now, 0, now, _kept_ms(arrival.claims)),
                *(arrival.tenant, "", first.text),
            )
        )
        events.append((id, arrival.event, dump(arrival.decode_options) or None, arrival.trace or None))
        keys += [(digest, id, item.fingerprint, item.place) for digest, item in own.items()]
    insert_many(connection, SQL["add_to_inbox"], items)
    insert_many(connection, SQL["add_events"], events)
    insert_many(connection, SQL["add_keys"], keys)


def arrival_key(claims: Sequence[Claim]) -> bytes:
    """Return the key of an arrival with several claims."""
    return blake2b(b"".join(sorted(claim.digest for claim in claims)), digest_size=DIGEST_BYTES).digest()


def _kept_ms(claims: Sequence[Claim]) -> int:
    """Return the longest retention of an arrival's keys."""
    kept_ms = 0
    for claim in claims:
        kept_ms = max(kept_ms, claim.retention_ms)
        for alias in claim.aliases:
            kept_ms = max(kept_ms, alias.retention_ms)
    return kept_ms


# -------------------------------------------------------------------------------------------------- take and finish


def is_due(connection: apsw.Connection, lanes: Iterable[str], now: int) -> bool:
    return rows(connection, SQL["is_due"], json.dumps(list(lanes)), now) != []


def take(connection: apsw.Connection, wanted: Mapping[str, int], lease_ms: int, now: int) -> list[Taken]:
    due = [row for lane, room in wanted.items() for row in rows(connection, SQL["due"], lane, now, room)]
    if not due:
        return []
    due.sort(key=lambda row: row[1])  # the rows of each lane are in order already
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(due),))
    taken = [
        Taken(id, token, lane, event, tenant, load(decode_options), only, trace or "", lapses, accepted, k)
        for token, (id, _, lane, tenant, only, lapses, accepted, event, decode_options, trace, k) in enumerate(
            due, last + 1
        )
    ]
    insert_many(connection, SQL["take"], [(item.id, item.token, now + lease_ms) for item in taken])
    return taken


def finish(connection: apsw.Connection, endings: Sequence[InboxEnding], now: int) -> list[bool]:
    """End items whose token is current. The first of several endings of one token counts."""
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    held = _forget(connection, [pair for pair, ending in first.items() if isinstance(ending, Finished)])
    held |= _postpone(connection, [ending for ending in first.values() if isinstance(ending, Postponed)], now)
    for pair, ending in first.items():
        if isinstance(ending, GivenUp) and _give_up(connection, ending, now):
            held.add(pair)
    results: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        results.append(pair in held)
        held.discard(pair)
    return results


def _forget(connection: apsw.Connection, pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    gone = insert_many(connection, SQL["finish"], pairs)
    for _ in select_in(connection, SQL["forget_events"], [row[0] for row in gone]):
        pass
    keys = [(digest, id) for id, _, k, several in gone for digest in (split(several) if several else (k,))]
    for _ in select_in(connection, SQL["forget_keys"], [k for k, _ in keys], [id for _, id in keys]):
        pass
    return {(id, token) for id, token, _, _ in gone}


def _postpone(connection: apsw.Connection, endings: Sequence[Postponed], now: int) -> set[tuple[int, int]]:
    postponed = [
        (item.taken.id, item.taken.token, now + max(0, item.after_ms), storable(item.reason).decode())
        for item in endings
    ]
    return {(id, token) for id, token in insert_many(connection, SQL["postpone"], postponed)}


def _give_up(connection: apsw.Connection, ending: GivenUp, now: int) -> bool:
    """Turn an item into a dead letter, like one that a handler gave up."""
    gone = rows(connection, SQL["give_up"], ending.taken.id, ending.taken.token)
    for id, k, keys, lapses, keep, tenant, lane, only, text in gone:
        reason = storable(ending.reason)
        record = (id, k, keys, DEAD, reason, None, lapses, now, now + keep, tenant, only or lane, text)
        insert_many(connection, SQL["add_records"], [record])
        connection.execute(SQL["keep_given_up"], (id, lane, only))
        for _ in select_in(connection, SQL["forget_events"], [id]):
            pass
    return gone != []


def depths(connection: apsw.Connection, now: int) -> list[Depth]:
    return [Depth(*row) for row in rows(connection, SQL["depths"], now)]

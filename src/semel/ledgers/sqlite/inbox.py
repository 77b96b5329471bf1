"""Reads and writes of the inbox, as functions of a connection. Writes run inside an immediate transaction.

The keys of an accepted item's claims identify it until it is finished; by then its record is in the ledger. Both are
read under one lock, so a redelivery always finds at least one of them. An item that is given up becomes a record with
the same id. Its keys stay, so duplicates are answered; the record answers no claim.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import apsw

from semel.ledgers.sqlite.claims import known_keys
from semel.ledgers.sqlite.statements import SQL, Row, rows, select_many, write_many
from semel.values.claim_rules import KeyState
from semel.values.event import dump, load
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.inbox_rules import ACCEPTED, ArrivalKeys, identify, keys_of, longest_retention_ms, refusal
from semel.values.key import split_digests
from semel.values.outcome import Final, Reject
from semel.values.outcome_codec import DEAD, storable

WAITING = 1  # state of an item that is not taken
NO_TOKEN = 0  # token of an item that was never taken


class KnownRow(NamedTuple):
    """A lease, record or inbox item under one key, for `refusal`."""

    in_inbox: bool
    fingerprint: bytes | None
    order_position: bytes | None
    outcome: Final | None


# ----------------------------------------------------------------------------------------------------------- accept


def accept(connection: apsw.Connection, arrivals: Sequence[Arrival], now: int) -> list[Acceptance]:
    """Read the stored state of all keys, decide in order, write the new items."""
    keys_by_arrival = [keys_of(arrival.claims) for arrival in arrivals]
    known = _known_rows(connection, [digest for keys in keys_by_arrival for digest in keys], now)
    results: list[Acceptance] = []
    fresh: list[tuple[Arrival, ArrivalKeys]] = []
    for arrival, keys in zip(arrivals, keys_by_arrival, strict=True):
        refused = None if known.keys().isdisjoint(keys) else refusal(arrival.claims, known)
        if refused is None:
            fresh.append((arrival, keys))
            for digest, key in keys.items():
                known.setdefault(digest, []).append(KnownRow(True, key.fingerprint, key.order_position, None))
        results.append(refused or ACCEPTED)
    if fresh:
        _write(connection, fresh, now)
    return results


def _known_rows(connection: apsw.Connection, digests: Sequence[bytes], now: int) -> dict[bytes, list[KnownRow]]:
    """Return what the ledger and the inbox have under these keys, without rows whose retention is over."""
    known = {
        digest: [KnownRow(False, key.fingerprint, None, key.outcome)]
        for digest, key in known_keys(connection, digests).items()
        if key.state is not KeyState.SETTLED or key.until_ms > now
    }
    for digest, fingerprint, position, reason, expires_ms in select_many(connection, SQL["inbox_keys"], digests):
        if reason is None or expires_ms > now:
            outcome = None if reason is None else Reject(reason.decode())
            known.setdefault(digest, []).append(KnownRow(True, fingerprint, position, outcome))
    return known


def _write(connection: apsw.Connection, fresh: Sequence[tuple[Arrival, ArrivalKeys]], now: int) -> None:
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(fresh),))
    items: list[Row] = []
    events: list[Row] = []
    keys: list[Row] = []
    for id, (arrival, own) in enumerate(fresh, last + 1):
        digest = identify(arrival.claims, own)
        items.append(
            (
                *(id, digest, b"".join(own) if len(own) > 1 else None, arrival.lane, NO_TOKEN, WAITING, now, 0, now),
                *(longest_retention_ms(arrival.claims), arrival.tenant, "", arrival.claims[0].text),
            )
        )
        events.append((id, arrival.event, dump(arrival.decode_options) or None, arrival.trace or None))
        keys += [(key, id, *columns) for key, columns in own.items()]
    write_many(connection, SQL["add_inbox_items"], items)
    write_many(connection, SQL["add_inbox_events"], events)
    write_many(connection, SQL["add_inbox_keys"], keys)


# -------------------------------------------------------------------------------------------------- take and finish


def is_due(connection: apsw.Connection, lanes: Iterable[str], now: int) -> bool:
    return rows(connection, SQL["is_due"], json.dumps(list(lanes)), now) != []


def take(connection: apsw.Connection, lanes: Mapping[str, int], lease_ms: int, now: int) -> list[Taken]:
    due = [row for lane, limit in lanes.items() for row in rows(connection, SQL["due_inbox_items"], lane, now, limit)]
    if not due:
        return []
    due.sort(key=lambda row: row[1])  # stable: the rows of each lane are in order already
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(due),))
    taken = [
        Taken(id, token, lane, event, tenant, load(options), only, trace or "", expired_leases, accepted_ms, digest)
        for token, (id, _, lane, tenant, only, expired_leases, accepted_ms, event, options, trace, digest) in enumerate(
            due, last + 1
        )
    ]
    write_many(connection, SQL["take_inbox_items"], [(item.id, item.token, now + lease_ms) for item in taken])
    return taken


def finish(connection: apsw.Connection, endings: Sequence[InboxEnding], now: int) -> list[bool]:
    """End items whose token is current. The first of several endings of one token counts."""
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    held = _delete(connection, [pair for pair, ending in first.items() if isinstance(ending, Finished)])
    postponed = [
        (*pair, now + max(0, ending.after_ms), storable(ending.reason).decode())
        for pair, ending in first.items()
        if isinstance(ending, Postponed)
    ]
    held.update((id, token) for id, token in write_many(connection, SQL["postpone_inbox_items"], postponed))
    for pair, ending in first.items():
        if isinstance(ending, GivenUp) and _give_up(connection, ending, now):
            held.add(pair)
    results: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        results.append(pair in held)
        held.discard(pair)
    return results


def _delete(connection: apsw.Connection, pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Delete finished items with their events and keys. Returns the ids and tokens that were current."""
    deleted = write_many(connection, SQL["finish_inbox_items"], pairs)
    if deleted:
        select_many(connection, SQL["delete_inbox_events"], [row[0] for row in deleted])
        keys = [(key, id) for id, _, digest, digests in deleted for key in split_digests(digests) or (digest,)]
        write_many(connection, SQL["delete_inbox_keys"], keys)
    return {(id, token) for id, token, _, _ in deleted}


def _give_up(connection: apsw.Connection, ending: GivenUp, now: int) -> bool:
    """Turn an item into a dead letter, like one that a handler gave up."""
    deleted = rows(connection, SQL["give_up_inbox_item"], ending.taken.id, ending.taken.token)
    for id, digest, digests, expired_leases, retention_ms, tenant, lane, only, text in deleted:
        reason, handler, expires_ms = storable(ending.reason), only or lane, now + retention_ms
        record = (id, digest, digests, DEAD, reason, None, expired_leases, now, expires_ms, tenant, handler, text, None)
        write_many(connection, SQL["add_records"], [record])
        connection.execute(SQL["add_given_up_event"], (id, lane, only))
        select_many(connection, SQL["delete_inbox_events"], [id])
    return deleted != []


def depths(connection: apsw.Connection, now: int) -> list[Depth]:
    return [Depth(*row) for row in rows(connection, SQL["inbox_depths"], now)]

"""The inbox's reads and writes, as functions of a connection; those that write are inside an immediate transaction.

A letter that is accepted is known by the keys of its claims until it is finished, and by then its record is in the
ledger: both are looked at under one lock, so a redelivery always finds at least one of them. A letter that is given up
becomes a record, under the number that it had; its keys stay, so duplicates are answered, and no claim hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import apsw

from semel.adapters.ledgers.sqlite.statements import SQL, Row, insert_many, rows, select_in
from semel.adapters.ledgers.sqlite.store import DEAD, digests_of, known_of, split, storable
from semel.values.claim import Claim
from semel.values.decision import Known, State
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.key import DIGEST_BYTES
from semel.values.outcome import Done, Final, Reject
from semel.values.reading import dump, load

WAITING = 1  # the state of a letter in nobody's hands
NOBODY = 0  # the token of a letter that nobody has taken

ACCEPTED = Acceptance("accepted")
CONFLICT = Acceptance("conflict", "the key is known with another payload")
WAITS = Acceptance("duplicate", "waits in the inbox")
DONE = Acceptance("duplicate", "done")
POSITION_BYTES = 8


class _Letter(NamedTuple):
    """What the inbox knows of one key."""

    fingerprint: bytes | None
    place: bytes | None
    died: str | None  # why it was given up; None: it waits


_Keys: TypeAlias = dict[bytes, _Letter]  # of one arrival
_Letters: TypeAlias = dict[bytes, list[_Letter]]

# ----------------------------------------------------------------------------------------------------------- accept


def accept(connection: apsw.Connection, arrivals: Sequence[Arrival], now: int) -> list[Acceptance]:
    """Read what is known of all keys, decide in order, write what is new."""
    keys = [_keys_of(arrival.claims) for arrival in arrivals]
    digests = [digest for mine in keys for digest in mine]
    known = known_of(connection, digests)
    letters = _letters_of(connection, digests, now)
    met = {*known, *letters}
    answers: list[Acceptance] = []
    fresh: list[tuple[Arrival, _Keys]] = []
    for arrival, mine in zip(arrivals, keys, strict=True):
        refusal = None if met.isdisjoint(mine) else _refusal(arrival.claims, known, letters, now)
        if refusal is None:
            fresh.append((arrival, mine))
            met.update(mine)
            for digest, letter in mine.items():
                letters.setdefault(digest, []).append(letter)
        answers.append(refusal or ACCEPTED)
    if fresh:
        _write(connection, fresh, now)
    return answers


def _keys_of(claims: Sequence[Claim]) -> _Keys:
    """All keys of an arrival, and what the inbox knows of each once it is accepted."""
    keys: _Keys = {}
    for claim in claims:
        letter = _Letter(claim.fingerprint, _place(claim), None)
        for digest in digests_of(claim):
            keys[digest] = letter
    return keys


def _letters_of(connection: apsw.Connection, digests: Sequence[bytes], now: int) -> _Letters:
    found: _Letters = {}
    for k, fp, place, died, expires in select_in(connection, SQL["letters_by_key"], digests):
        if died is None or expires > now:
            found.setdefault(k, []).append(_Letter(fp, place, None if died is None else died.decode()))
    return found


def _refusal(claims: Sequence[Claim], known: dict[bytes, Known], letters: _Letters, now: int) -> Acceptance | None:
    """Why an arrival is not accepted; None when it is. Every claim is looked at: one conflict speaks for all."""
    answers = [_known_as(claim, known, letters, now) for claim in claims]
    if CONFLICT in answers:
        return CONFLICT
    told = [answer for answer in answers if answer is not None]
    return max(told, key=_weight) if len(told) == len(claims) else None


def _known_as(claim: Claim, known: dict[bytes, Known], letters: _Letters, now: int) -> Acceptance | None:
    """What becomes of one claim without this arrival; None: nothing, so it is needed.

    The ledger has the first word. A letter stands for a claim when it is the same event as far as keys can tell: with
    another place in the order it might be stale where this one is not.
    """
    outcome: Final | None = None
    for digest in digests_of(claim):
        one = known.get(digest)
        if one is None or (one.state is State.SETTLED and one.until_ms <= now):
            continue
        if _differ(one.fingerprint, claim.fingerprint):
            return CONFLICT
        outcome = one.outcome if outcome is None else outcome
    if outcome is not None:
        return _settled(outcome)
    about = [letter for digest in digests_of(claim) for letter in letters.get(digest, ())]
    if any(_differ(letter.fingerprint, claim.fingerprint) for letter in about):
        return CONFLICT
    same = [letter for letter in about if letter.place == _place(claim)]
    if any(letter.died is None for letter in same):
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


def _weight(answer: Acceptance) -> int:
    """What an arrival with several claims is told: what is not over yet, then what needs a person."""
    return (answer is WAITS) * 4 + answer.reason.startswith("uncertain: ") * 2 + (answer is not DONE)


def _differ(one: bytes | None, other: bytes | None) -> bool:
    return one is not None and other is not None and one != other


def _place(claim: Claim) -> bytes | None:
    if claim.order is None:
        return None
    return claim.order.subject + claim.order.position.to_bytes(POSITION_BYTES, "big", signed=True)


def _write(connection: apsw.Connection, fresh: Sequence[tuple[Arrival, _Keys]], now: int) -> None:
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(fresh),))
    letters: list[Row] = []
    events: list[Row] = []
    keys: list[Row] = []
    for id, (arrival, mine) in enumerate(fresh, last + 1):
        first, *others = arrival.claims
        k, several = first.digest, None
        if len(mine) > 1:
            k = arrival_key(arrival.claims) if others else k
            mine.setdefault(k, _Letter(None, None, None))  # it can be looked up by that, too
            several = b"".join(mine)
        letters.append(
            (
                *(id, k, several, arrival.lane, NOBODY, WAITING, now, 0, now, _kept_ms(arrival.claims)),
                *(arrival.tenant, "", first.text),
            )
        )
        events.append((id, arrival.event, dump(arrival.reading) or None, arrival.trace or None))
        keys += [(digest, id, letter.fingerprint, letter.place) for digest, letter in mine.items()]
    insert_many(connection, SQL["add_to_inbox"], letters)
    insert_many(connection, SQL["add_events"], events)
    insert_many(connection, SQL["add_keys"], keys)


def arrival_key(claims: Sequence[Claim]) -> bytes:
    """What an arrival with several claims is known by."""
    return blake2b(b"".join(sorted(claim.digest for claim in claims)), digest_size=DIGEST_BYTES).digest()


def _kept_ms(claims: Sequence[Claim]) -> int:
    """The longest retention of its keys."""
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
    due.sort(key=lambda row: row[1])  # of each lane they are in order already
    ((last,),) = rows(connection, SQL["last_token"])
    connection.execute(SQL["set_last_token"], (last + len(due),))
    taken = [
        Taken(id, token, lane, event, tenant, load(reading), only, trace or "", lapses, accepted, k)
        for token, (id, _, lane, tenant, only, lapses, accepted, event, reading, trace, k) in enumerate(due, last + 1)
    ]
    insert_many(connection, SQL["take"], [(one.id, one.token, now + lease_ms) for one in taken])
    return taken


def finish(connection: apsw.Connection, endings: Sequence[InboxEnding], now: int) -> list[bool]:
    """Of several endings of one token the first counts."""
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    held = _forget(connection, [pair for pair, ending in first.items() if isinstance(ending, Finished)])
    held |= _postpone(connection, [ending for ending in first.values() if isinstance(ending, Postponed)], now)
    for pair, ending in first.items():
        if isinstance(ending, GivenUp) and _give_up(connection, ending, now):
            held.add(pair)
    answers: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        answers.append(pair in held)
        held.discard(pair)
    return answers


def _forget(connection: apsw.Connection, pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    gone = insert_many(connection, SQL["finish"], pairs)
    for _ in select_in(connection, SQL["forget_events"], [row[0] for row in gone]):
        pass
    keys = [(digest, id) for id, _, k, several in gone for digest in (split(several) if several else (k,))]
    for _ in select_in(connection, SQL["forget_keys"], [k for k, _ in keys], [id for _, id in keys]):
        pass
    return {(id, token) for id, token, _, _ in gone}


def _postpone(connection: apsw.Connection, endings: Sequence[Postponed], now: int) -> set[tuple[int, int]]:
    later = [
        (one.taken.id, one.taken.token, now + max(0, one.after_ms), storable(one.reason).decode()) for one in endings
    ]
    return {(id, token) for id, token in insert_many(connection, SQL["postpone"], later)}


def _give_up(connection: apsw.Connection, ending: GivenUp, now: int) -> bool:
    """A letter for people, like one that a handler gave up."""
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

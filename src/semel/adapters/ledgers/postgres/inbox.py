"""The inbox's reads and writes, as functions of a connection outside a transaction.

A letter that is accepted is known by the keys of its claims until it is finished, and by then its record is in the
ledger: both are read by one snapshot, so a redelivery always finds at least one of them. A letter that is given up
becomes one for people, under the number that it had; its keys stay: duplicates are answered, and no claim hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.adapters.ledgers.postgres.acceptance import (
    ACCEPTED,
    NO_CLAIM,
    Fact,
    Facts,
    Keys,
    key_of_several,
    keys_of,
    refusal,
)
from semel.adapters.ledgers.postgres.repeating import Changed, insist
from semel.adapters.ledgers.postgres.rows import shown
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.claim import Claim
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, InboxEnding, Postponed, Taken
from semel.values.reading import dump, load

if TYPE_CHECKING:
    from asyncpg import Record

    from semel.adapters.ledgers.postgres.pool import Connection

MOST = 2**31 - 1  # letters in one take
LATEST_MS = 2**53  # a wait that is longer than this is for ever

FINISHED, POSTPONED, GIVEN_UP = 1, 2, 3


class _Letter(NamedTuple):
    """An arrival, as it is written."""

    arrival: Arrival
    k: bytes  # what it is known by
    keys: Keys
    first: bool  # of those in its batch that have a key in common

    @property
    def several(self) -> bytes | None:
        return b"".join(self.keys) if len(self.keys) > 1 else None


# ----------------------------------------------------------------------------------------------------------- accept


async def accept(connection: Connection, arrivals: Sequence[Arrival], now: int | None, schema: str) -> list[Acceptance]:
    """One round trip for what is new and for what is refused. What is accepted although something is known of it, or
    beside another one of its batch, takes a transaction of its own."""
    if not arrivals:
        return []
    letters = _letters(arrivals)
    row = await insist(lambda: connection.fetchrow(statements(schema)["accept"], now, *_columns(letters)))
    assert row is not None
    fresh = {at - 1 for at in row["fresh"] or ()}
    if len(fresh) == len(letters):
        return [ACCEPTED] * len(letters)
    facts = _told(row)
    ids: list[int] = row["ids"] or [0] * len(letters)  # 0: nothing was written, and no number was spent
    for at in fresh:
        _add(facts, letters[at], ids[at])
    rest = [at for at in range(len(letters)) if at not in fresh]
    others = [(ids[at], letters[at]) for at in rest]
    decided, accepted = _decide(others, facts)
    if accepted:
        if row["ids"] is None:
            found = await connection.fetch(statements(schema)["next_numbers"], len(rest))
            others = [(number, letter) for (number,), (_, letter) in zip(found, others, strict=True)]
        decided = await insist(lambda: _accept_beside(connection, others, row["now"], schema))
    answers = [ACCEPTED] * len(letters)
    for at, answer in zip(rest, decided, strict=True):
        answers[at] = answer
    return answers


def _letters(arrivals: Sequence[Arrival]) -> list[_Letter]:
    seen: set[bytes] = set()
    letters: list[_Letter] = []
    for arrival in arrivals:
        keys = keys_of(arrival.claims)
        k = arrival.claims[0].digest
        first = seen.isdisjoint(keys)
        seen.update(keys)
        if len(arrival.claims) > 1:
            k = key_of_several(arrival.claims)
            keys.setdefault(k, NO_CLAIM)  # it can be looked up by that, too
        letters.append(_Letter(arrival, k, keys, first))
    return letters


def _columns(letters: Sequence[_Letter]) -> tuple[list[Any], ...]:
    keys = [(at, k, *said) for at, letter in enumerate(letters, 1) for k, said in letter.keys.items()]
    return (
        *_rows(letters),
        [len(one.keys) if one.first else 0 for one in letters],
        *map(list, zip(*keys, strict=True)),
    )


def _rows(letters: Sequence[_Letter]) -> tuple[list[Any], ...]:
    """k, keys, lane, keep, tenant, text, event, reading, trace."""
    return (
        [one.k for one in letters],
        [one.several for one in letters],
        [shown(one.arrival.lane) for one in letters],
        [_kept_ms(one.arrival.claims) for one in letters],
        [shown(one.arrival.tenant) for one in letters],
        [shown(one.arrival.claims[0].text) for one in letters],
        [one.arrival.event for one in letters],
        [dump(one.arrival.reading) or None for one in letters],
        [shown(one.arrival.trace) or None for one in letters],
    )


def _kept_ms(claims: Sequence[Claim]) -> int:
    """The longest retention of its keys."""
    kept_ms = 0
    for claim in claims:
        kept_ms = max(kept_ms, claim.retention_ms)
        for alias in claim.aliases:
            kept_ms = max(kept_ms, alias.retention_ms)
    return kept_ms


def _told(row: Record) -> Facts:
    """What was found, without the rows of this very batch."""
    if row["known_k"] is None:
        return {}
    own = set(row["ids"] or ())
    names = ("known_k", "known_n", "known_id", "known_fp", "known_place", "known_outcome", "known_reason")
    return _facts(
        one for one in zip(*[row[name] for name in names], strict=True) if one[1] is None or one[2] not in own
    )


def _facts(found: Iterable[Iterable[Any]]) -> Facts:
    facts: Facts = {}
    for k, *known in found:
        facts.setdefault(k, []).append(Fact(*known))
    return facts


def _add(facts: Facts, letter: _Letter, id: int) -> None:
    """What is known once this letter is there."""
    for k, said in letter.keys.items():
        known = facts.setdefault(k, [])
        n = max([fact.n for fact in known if fact.n is not None], default=-1) + 1
        known.append(Fact(n, id, said.fingerprint, said.place))


def _decide(letters: Sequence[tuple[int, _Letter]], facts: Facts) -> tuple[list[Acceptance], list[tuple[int, _Letter]]]:
    """In order, each seeing what was accepted before it. `facts` follows along."""
    answers: list[Acceptance] = []
    accepted: list[tuple[int, _Letter]] = []
    for id, letter in letters:
        refused = refusal(letter.arrival.claims, facts)
        if refused is None:
            _add(facts, letter, id)
            accepted.append((id, letter))
        answers.append(refused or ACCEPTED)
    return answers, accepted


async def _accept_beside(
    connection: Connection, letters: Sequence[tuple[int, _Letter]], now: int, schema: str
) -> list[Acceptance]:
    """With the rows of all keys locked, so that nobody adds to them and none of them goes."""
    sql = statements(schema)
    digests = sorted({k for _, letter in letters for k in letter.keys})
    async with connection.transaction(isolation="read_committed"):
        locked = {tuple(row) for row in await connection.fetch(sql["lock_inbox_keys"], digests)}
        facts = _facts(await connection.fetch(sql["known"], digests, now))
        if locked != {(k, fact.n) for k, known in facts.items() for fact in known if fact.n is not None}:
            raise Changed
        answers, accepted = _decide(letters, facts)
        if accepted:
            mine = {id for id, _ in accepted}
            rows = [(k, *fact[:4]) for k, known in facts.items() for fact in known if fact.id in mine]
            rows.sort()
            added = await connection.fetch(sql["add_inbox_keys"], *map(list, zip(*rows, strict=True)))
            if len(added) < len(rows):
                raise Changed
            ids = [id for id, _ in accepted]
            await connection.execute(sql["add_to_inbox"], now, ids, *_rows([letter for _, letter in accepted]))
    return answers


# -------------------------------------------------------------------------------------------------- take and finish


async def is_due(connection: Connection, lanes: Iterable[str], now: int | None, schema: str) -> bool:
    """Whether a take would find anything."""
    return await connection.fetchval(statements(schema)["is_due"], [shown(lane) for lane in lanes], now) is not None


async def take(
    connection: Connection, wanted: Mapping[str, int], lease_ms: int, now: int | None, schema: str
) -> list[Taken]:
    asked = {shown(lane): (lane, min(max(room, 0), MOST)) for lane, room in wanted.items()}
    rooms = [room for _, room in asked.values()]
    rows = await insist(lambda: connection.fetch(statements(schema)["take"], list(asked), rooms, lease_ms, now))
    rows.sort(key=lambda row: row[1])  # tokens were given in the order in which they fell due
    return [
        Taken(id, token, asked[lane][0], event, tenant, load(reading), only, trace or "", lapses, accepted, k)
        for id, token, lane, event, tenant, reading, only, trace, lapses, accepted, k in rows
    ]


async def finish(connection: Connection, endings: Sequence[InboxEnding], now: int | None, schema: str) -> list[bool]:
    """Of several endings of one token the first counts."""
    if not endings:
        return []
    first = {(ending.taken.id, ending.taken.token): ending for ending in reversed(endings)}
    rows = [(id, token, *_how(first[id, token])) for id, token in sorted(first)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    found = await insist(lambda: connection.fetch(statements(schema)["finish"], *columns, now))
    held = {(id, token) for id, token in found}
    answers: list[bool] = []
    for ending in endings:
        pair = (ending.taken.id, ending.taken.token)
        answers.append(pair in held)
        held.discard(pair)
    return answers


def _how(ending: InboxEnding) -> tuple[int, int, str]:
    match ending:
        case Finished():
            return FINISHED, 0, ""
        case Postponed(after_ms=after_ms, reason=reason):
            return POSTPONED, min(max(after_ms, 0), LATEST_MS), shown(reason)
        case _:
            return GIVEN_UP, 0, shown(ending.reason)


async def depths(connection: Connection, now: int | None, schema: str) -> list[Depth]:
    return [Depth(*row) for row in await connection.fetch(statements(schema)["depths"], now)]

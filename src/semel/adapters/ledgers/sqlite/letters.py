"""What a person decides about a letter. Each function runs in one immediate transaction: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import apsw

from semel.adapters.ledgers.sqlite.inbox import NOBODY, WAITING
from semel.adapters.ledgers.sqlite.statements import SQL, insert_many, rows
from semel.adapters.ledgers.sqlite.store import split, storable
from semel.values.reading import load

REPLAYED, DISCARDED = 1, 2


class _Letter(NamedTuple):
    id: int
    aliases: bytes | None  # all keys, where the inbox gave it up
    keep_ms: int
    tenant: str
    handler: str
    text: str
    fp: bytes | None
    event: bytes | None
    reading: bytes | None
    lane: str | None  # None: a handler gave it up
    only_handler: str | None


def replay(connection: apsw.Connection, k: bytes, reason: str, by: str, now: int, *, force: bool = False) -> bool:
    """The record steps back, the event goes to the inbox. A key that another record answers by now is not dead; with
    `force` one of success steps back too. Of that no event was kept."""
    ((last,),) = rows(connection, SQL["last_token"])
    done = _done(connection, k, now) if force else None
    if done is not None:
        _step_back(connection, k, done, last, now, reason, by)
    letter = _undecided(connection, k)
    if letter is None or rows(connection, SQL["answered_by_another"], k, letter.id, now):
        return done is not None
    connection.execute(SQL["set_last_token"], (last + 1,))
    _step_back(connection, k, letter, last, now, reason, by)
    if letter.event is None or load(letter.reading).foreign:
        pass  # its handler lives elsewhere: whoever brings the event again is granted
    elif letter.lane is None:
        _to_its_handler(connection, k, letter, last + 1, now)
    else:
        _to_its_lane(connection, k, letter, last + 1, now)
    return True


def _step_back(
    connection: apsw.Connection, k: bytes, letter: _Letter, last: int, now: int, reason: str, by: str
) -> None:
    _decide(connection, k, letter, REPLAYED, last, now, reason, by)
    for digest in (k, *split(letter.aliases)):
        connection.execute(SQL["forget_done"], (digest, letter.id))


def discard(connection: apsw.Connection, k: bytes, reason: str, by: str, now: int) -> bool:
    """Its record stays, and answers."""
    letter = _undecided(connection, k)
    if letter is None:
        return False
    ((last,),) = rows(connection, SQL["last_token"])
    _decide(connection, k, letter, DISCARDED, last, now, reason, by)
    return True


def _undecided(connection: apsw.Connection, k: bytes) -> _Letter | None:
    found = rows(connection, SQL["undecided_letter"], k)
    return _Letter(*found[0]) if found else None


def _done(connection: apsw.Connection, k: bytes, now: int) -> _Letter | None:
    found = rows(connection, SQL["answering_done"], k, now)
    return _Letter(*found[0]) if found else None


def _decide(
    connection: apsw.Connection, k: bytes, letter: _Letter, what: int, last: int, now: int, reason: str, by: str
) -> None:
    connection.execute(SQL["decide"], (now, letter.id))
    said = [storable(text).decode() for text in (reason, by)]
    connection.execute(SQL["add_decision"], (letter.id, k, what, last, now, *said))


def _to_its_handler(connection: apsw.Connection, k: bytes, letter: _Letter, id: int, now: int) -> None:
    """For the one handler that gave it up, whoever else the event was for."""
    keys = [k, *split(letter.aliases)]
    _add(connection, k, letter, id, now, keys, lane=letter.handler, only=letter.handler)
    insert_many(connection, SQL["add_keys"], [(digest, id, letter.fp, None) for digest in dict.fromkeys(keys)])


def _to_its_lane(connection: apsw.Connection, k: bytes, letter: _Letter, id: int, now: int) -> None:
    """As it was when it was given up: the keys that it is known by move with it."""
    keys = list(split(letter.aliases)) or [k]
    _add(connection, k, letter, id, now, keys, lane=letter.lane, only=letter.only_handler)
    for digest in keys:
        connection.execute(SQL["move_key"], (digest, letter.id, id))


def _add(
    connection: apsw.Connection,
    k: bytes,
    letter: _Letter,
    id: int,
    now: int,
    keys: Iterable[bytes],
    *,
    lane: Any,
    only: Any,
) -> None:
    several = b"".join(keys)
    row = (
        *(id, k, None if several == k else several, lane, NOBODY, WAITING, now, 0, now, letter.keep_ms),
        *(letter.tenant, only, letter.text),
    )
    insert_many(connection, SQL["add_to_inbox"], [row])
    insert_many(connection, SQL["add_events"], [(id, letter.event, letter.reading, None)])

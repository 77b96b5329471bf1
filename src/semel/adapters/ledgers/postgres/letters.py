"""What a person decides about a letter. Each function is one transaction: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from semel.adapters.ledgers.postgres.repeating import Changed, insist
from semel.adapters.ledgers.postgres.rows import shown, split
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.reading import load

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

REPLAYED, DISCARDED = 1, 2


class _Letter(NamedTuple):
    id: int
    at: int
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

    @property
    def others(self) -> list[bytes]:
        return list(split(self.aliases))


class _Said(NamedTuple):
    """What a person said."""

    what: int
    reason: str
    by: str
    force: bool = False


class _Moment(NamedTuple):
    """When it was said, the number of the decision, and that of the letter that a replay makes."""

    at: int
    token: int
    id: int


async def replay(
    connection: Connection, k: bytes, reason: str, by: str, now: int | None, schema: str, *, force: bool = False
) -> bool:
    """The record steps back, the event goes to the inbox. A key that another record answers by now is not dead; with
    `force` one of success steps back too. Of that no event was kept."""
    return await insist(lambda: _decide(connection, k, _Said(REPLAYED, reason, by, force), now, schema))


async def discard(connection: Connection, k: bytes, reason: str, by: str, now: int | None, schema: str) -> bool:
    """Its record stays, and answers."""
    return await insist(lambda: _decide(connection, k, _Said(DISCARDED, reason, by), now, schema))


async def _decide(connection: Connection, k: bytes, said: _Said, now: int | None, schema: str) -> bool:
    sql = statements(schema)
    async with connection.transaction(isolation="read_committed"):
        undecided = [_Letter(*row) for row in await connection.fetch(sql["lock_undecided"], k)]
        if not undecided and not said.force:
            return False
        answering = await connection.fetchrow(sql["lock_key"], k)
        moment = _Moment(*(await connection.fetchrow(sql["moment"], now) or (0, 0, 0)))
        forced = said.force and answering is not None and answering[2] and answering[1] > moment.at
        if forced and answering is not None:
            aliases = await connection.fetchval(sql["keep_done"], k, answering[0], moment.at)
            await _note(connection, k, answering[0], said, moment, sql)
            await connection.execute(sql["forget_record"], [k, *split(aliases)], answering[0])
            answering = None
        if not undecided:
            return bool(forced)
        last = await connection.fetchval(sql["last_letter"], k) if answering is None else answering[0]
        letter = _chosen(undecided, last)
        if said.what == REPLAYED and answering is not None and answering[0] != letter.id and answering[1] > moment.at:
            return False
        await connection.execute(sql["decide"], letter.id, moment.at)
        await _note(connection, k, letter.id, said, moment, sql)
        if said.what == REPLAYED:
            await connection.execute(sql["forget_record"], [k, *letter.others], letter.id)
            if letter.event is not None and not load(letter.reading).foreign:
                await _to_the_inbox(connection, k, letter, moment.id, moment.at, schema)
            # else its handler lives elsewhere: whoever brings the event again is granted
    return True


async def _note(connection: Connection, k: bytes, id: int, said: _Said, moment: _Moment, sql: dict[str, str]) -> None:
    words = (shown(said.reason), shown(said.by))
    await connection.execute(sql["add_decision"], id, k, said.what, moment.token, moment.at, *words)


def _chosen(undecided: Sequence[_Letter], answering: int | None) -> _Letter:
    """The letter that answers its key now; else the newest one."""
    return max(undecided, key=lambda letter: (letter.id == answering, letter.at, letter.id))


async def _to_the_inbox(connection: Connection, k: bytes, letter: _Letter, id: int, now: int, schema: str) -> None:
    """Given up by a handler: for that one alone, whoever else the event was for. Given up by the inbox: as it was,
    and the keys that it is known by move with it."""
    sql = statements(schema)
    keys = [k, *letter.others] if letter.lane is None else letter.others or [k]
    keys = list(dict.fromkeys(keys))
    if letter.lane is None:
        numbers = dict.fromkeys(sorted(keys), 0)
        for digest, n in await connection.fetch(sql["lock_inbox_keys"], keys):
            numbers[digest] = n + 1
        many = len(numbers)
        columns = ([*numbers], [*numbers.values()], [id] * many, [letter.fp] * many, [None] * many)
        if len(await connection.fetch(sql["add_inbox_keys"], *columns)) < many:
            raise Changed
    else:
        await connection.execute(sql["move_keys"], keys, letter.id, id)
    several = None if keys == [k] else b"".join(keys)
    lane, only = (letter.handler, letter.handler) if letter.lane is None else (letter.lane, letter.only_handler or "")
    row = (id, now, letter.keep_ms, k, several, lane, letter.tenant, only, letter.text, letter.event, letter.reading)
    await connection.execute(sql["add_replayed"], *row)

"""Claims: nearly all are decided in one round trip, the rest under locks.

The statement `claim` grants keys that nobody knows, and brings what is known of the others; `judge` refuses by that.
What it would grant (a takeover, a retry that is due, a retention that is over), and what has aliases or a place in an
order, is decided once more under locks on all its rows, taken in the order of the keys: no two batches can wait for
each other, and what was judged is what is written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from semel.adapters.ledgers.postgres import settling
from semel.adapters.ledgers.postgres.pool import driver
from semel.adapters.ledgers.postgres.rows import digests_of, keeps_of, known, shown, unless_all_none
from semel.adapters.ledgers.postgres.statements import statements
from semel.values.claim import Busy, Claim, Granted, Lease, Settlement, Verdict
from semel.values.decision import Grant, Known, State, Subject, judge
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Release

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

TRIES = 30  # each means that somebody else was granted a key in between
LOCK_MS = 500  # a row may be held by a handler's transaction; less than the server's deadlock_timeout, so we give way
HELD_MS = 1_000  # when to ask again about such a row
BEGIN = f"begin isolation level read committed; set local lock_timeout = {LOCK_MS}"


async def claim(connection: Connection, claims: Sequence[Claim], now: int | None, schema: str) -> list[Verdict]:
    """A verdict for each claim, in order, as if they had come one after the other."""
    plain = _plain(claims)
    verdicts: dict[int, Verdict] = {}
    if plain:
        asyncpg = driver()
        refused = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
        with suppress(*refused):  # nothing was decided: under locks
            verdicts = await _at_once(connection, claims, plain, now, schema)
    rest = [at for at in range(len(claims)) if at not in verdicts]
    if rest:
        try:
            decided = await _under_locks(connection, [claims[at] for at in rest], now, schema)
        except Exception:
            await _give_back(connection, verdicts.values(), now, schema)
            raise
        verdicts.update(zip(rest, decided, strict=True))
    return [verdicts[at] for at in range(len(claims))]


async def _give_back(connection: Connection, verdicts: Iterable[Verdict], now: int | None, schema: str) -> None:
    """Nobody will hear of these grants: they must not count as attempts of holders that vanished."""
    unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
    if unused:
        with suppress(Exception):  # a connection that has died: they lapse
            await connection.execute("rollback")
            await settling.settle(connection, unused, now, schema)


async def spend_token(connection: Connection, schema: str) -> None:
    """The least that only a store which can be written will do."""
    await connection.fetch(statements(schema)["next_tokens"], 1, None)


def _plain(claims: Sequence[Claim]) -> list[int]:
    """Those with one key and no order, unless a claim beside them with more has the same key: that may come first."""
    if not any(claim.aliases or claim.order is not None for claim in claims):
        return list(range(len(claims)))
    special = {d for claim in claims if claim.aliases or claim.order is not None for d in digests_of(claim)}
    return [at for at, claim in enumerate(claims) if claim.digest not in special]


# --------------------------------------------------------------------------------------------------- one round trip


async def _at_once(
    connection: Connection, claims: Sequence[Claim], plain: Sequence[int], now: int | None, schema: str
) -> dict[int, Verdict]:
    """Verdicts by place. What has none yet must be decided under locks."""
    first: dict[bytes, int] = {}
    for at in plain:
        first.setdefault(claims[at].digest, at)
    asked = [claims[at] for at in first.values()]
    groups: dict[tuple[int, int, str, str], int] = {}
    places = [
        groups.setdefault((one.lease_ms, one.retention_ms, one.tenant, one.handler), len(groups) + 1) for one in asked
    ]
    leases, keeps, tenants, handlers = zip(*groups, strict=True)
    head, *rows = await connection.fetch(
        statements(schema)["claim"],
        [one.digest for one in asked],
        unless_all_none([one.fingerprint for one in asked]),
        [shown(one.text) for one in asked],
        leases,
        keeps,
        [shown(tenant) for tenant in tenants],
        [shown(handler) for handler in handlers],
        places if len(groups) > 1 else [],
        now,
    )
    time, keys, tokens, *_ = head
    granted: dict[bytes, int] = dict(zip(keys or (), tokens or (), strict=True))
    known_of = {row[3]: known(row[4:]) for row in rows}
    verdicts: dict[int, Verdict] = {}
    others: list[int] = []
    for at in plain:
        one = claims[at]
        token = granted.get(one.digest)
        if token is not None and first[one.digest] == at:
            verdicts[at] = Granted(Lease(one, token), 1, False, 0)
        else:
            others.append(at)
    if others:
        for digest, token in granted.items():
            one = claims[first[digest]]
            known_of[digest] = Known(token, State.LEASED, time + one.lease_ms, 1, time, one.fingerprint)
        verdicts.update(_refused(claims, others, known_of, time))
    return verdicts


def _refused(
    claims: Sequence[Claim], others: Sequence[int], known_of: dict[bytes, Known], now: int
) -> dict[int, Verdict]:
    """Verdicts by what was read. Whoever would be granted, and whoever comes after that, is not among them."""
    decided = [at for at in others if claims[at].digest in known_of]
    verdicts, grants = judge([claims[at] for at in decided], known_of, {}, now, count(1).__next__)
    open_keys = {grant.lease.claim.digest for grant in grants}
    return {at: verdict for at, verdict in zip(decided, verdicts, strict=True) if claims[at].digest not in open_keys}


# ------------------------------------------------------------------------------------------------------- under locks


async def _under_locks(connection: Connection, claims: Sequence[Claim], now: int | None, schema: str) -> list[Verdict]:
    asyncpg = driver()
    sql = statements(schema)
    lock = sql["lock_keys"]
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(random.uniform(0, 0.002 * attempt))
        try:
            await connection.execute(BEGIN)
            verdicts = await _judged(connection, claims, now, sql, lock)
            await connection.execute("commit" if verdicts is not None else "rollback")
        except asyncpg.LockNotAvailableError:
            lock = sql["lock_free_keys"]
            verdicts = None
            await connection.execute("rollback")
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            verdicts = None
            await connection.execute("rollback")
        if verdicts is not None:
            return verdicts
    raise LedgerUnavailable(f"PostgreSQL: keys changed hands {TRIES} times while they were being claimed: try again")


async def _judged(
    connection: Connection, claims: Sequence[Claim], now: int | None, sql: dict[str, str], lock: str
) -> list[Verdict] | None:
    """Lock, read, judge, write. None: somebody else was granted one of the keys meanwhile."""
    digests = sorted({digest for claim in claims for digest in digests_of(claim)})
    known_of = {row[0]: known(row[1:]) for row in await connection.fetch(lock, digests)}
    subjects = await _subjects(connection, claims, known_of, sql)
    if subjects is None:
        return None
    held = await _held(connection, digests, known_of, sql) if lock == sql["lock_free_keys"] else set()
    free = [claim for claim in claims if held.isdisjoint(digests_of(claim))]
    tokens = await connection.fetch(sql["next_tokens"], max(1, len(free)), now)
    replaced = {digest: one.token for digest, one in known_of.items()}
    verdicts, grants = judge(free, known_of, subjects, tokens[0][1], iter([row[0] for row in tokens]).__next__)
    if not await _write(connection, grants, replaced, sql):
        return None
    answers = iter(verdicts)
    return [next(answers) if held.isdisjoint(digests_of(claim)) else Busy(HELD_MS) for claim in claims]


async def _held(
    connection: Connection, digests: Sequence[bytes], known_of: dict[bytes, Known], sql: dict[str, str]
) -> set[bytes]:
    """Keys whose rows somebody else has locked for long."""
    return {row[0] for row in await connection.fetch(sql["read_keys"], digests)}.difference(known_of)


async def _subjects(
    connection: Connection, claims: Sequence[Claim], known_of: dict[bytes, Known], sql: dict[str, str]
) -> dict[bytes, Subject] | None:
    """Lock the subjects. Who acts on them is read after that: whoever renews must lock the subject too."""
    wanted = sorted({claim.order.subject for claim in claims if claim.order is not None})
    if not wanted:
        return {}
    await connection.execute(sql["make_subjects"], wanted)
    found = await connection.fetch(sql["lock_subjects"], wanted)
    if len(found) != len(wanted):
        return None  # purged in between
    subjects = {k: Subject(newest, holder, token) for k, newest, holder, token in found}
    holders = [one.holder for one in subjects.values() if one.holder is not None and one.holder not in known_of]
    for row in await connection.fetch(sql["read_keys"], holders) if holders else ():
        known_of[row[0]] = known(row[1:])
    return subjects


async def _write(
    connection: Connection, grants: Sequence[Grant], replaced: dict[bytes, int], sql: dict[str, str]
) -> bool:
    """False: a key that was not there is there now."""
    fresh: dict[bytes, tuple[Any, ...]] = {}
    taken: dict[bytes, tuple[Any, ...]] = {}
    for grant in grants:
        one, claim, keeps = grant.known, grant.lease.claim, keeps_of(grant.lease.claim)
        for digest in digests_of(claim):
            row = (
                *(digest, one.token, one.until_ms, one.first_ms, keeps[digest], one.attempts, one.suspect),
                *(one.fingerprint, None if digest == claim.digest else claim.digest),
                *(shown(claim.tenant), shown(claim.handler), shown(claim.text), one.tried or None),
            )
            if digest in replaced:
                taken[digest] = (*row, replaced[digest])
            else:
                fresh[digest] = row
    for rows, statement in ((taken, sql["replace_keys"]), (fresh, sql["add_keys"])):
        if rows:
            written = await connection.fetch(statement, *zip(*[rows[k] for k in sorted(rows)], strict=True))
            if len(written) != len(rows):
                return False
    order = [(g.lease.claim.order.subject, g.lease.claim.digest, g.lease.token) for g in grants if g.lease.claim.order]
    if order:
        await connection.execute(sql["hold_subjects"], *zip(*order, strict=True))
    return True

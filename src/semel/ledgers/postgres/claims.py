"""Claims, waiting for a held key, renewals and settlements.

Nearly all claims are decided in one round trip, the rest under locks. The statement `claim` grants unknown keys and
returns the stored state of the others; `judge` refuses claims by that state. A claim that `judge` would grant (a
takeover, a due retry, an ended retention), and a claim with aliases or a place in an order, is decided again under
locks on all its rows. The locks are taken in the order of the keys, so that two batches never wait for each other, and
the judged state is the written one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from semel.ledgers.postgres.pool import Pool, driver, faults, unavailable
from semel.ledgers.postgres.rows import (
    LEASED,
    RELEASE,
    RETRY,
    SETTLED,
    WAITING,
    columns_of,
    digests_of,
    encode_ending,
    known_key,
    retentions_of,
    storable_text,
    unless_all_none,
)
from semel.ledgers.postgres.statements import statements
from semel.values.attempts import cut
from semel.values.claim import Busy, Claim, Granted, Lease, Settlement, Verdict
from semel.values.claim_rules import Grant, KeyRecord, KeyState, Subject, judge
from semel.values.errors import LedgerUnavailable
from semel.values.event import dump as dump_options
from semel.values.outcome import Reject, Release, Retry, Uncertain
from semel.values.outcome_codec import DEAD, DONE, UNCERTAIN

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

TRIES = 30  # each retry means that another claim was granted one of the keys
LOCK_MS = 500  # wait for a row of a handler's transaction; less than deadlock_timeout: the claim gives up first
HELD_MS = 1_000  # delay before such a row is claimed again
BEGIN = f"begin isolation level read committed; set local lock_timeout = {LOCK_MS}"


async def claim(connection: Connection, claims: Sequence[Claim], now: int | None, schema: str) -> list[Verdict]:
    """Return a verdict for each claim, in order, as if the claims had arrived one after the other."""
    sql = statements(schema)
    # A plain claim that shares its key with another kind of claim of the batch is decided with that one, in order.
    special = {d for claim in claims if claim.aliases or claim.order is not None for d in claim.digests}
    plain = [at for at, claim in enumerate(claims) if claim.digest not in special]
    verdicts: dict[int, Verdict] = {}
    if plain:
        asyncpg = driver()
        refused = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
        with suppress(*refused):  # nothing was decided: decide under locks
            verdicts = await _claim_plain(connection, claims, plain, now, sql)
    rest = [at for at in range(len(claims)) if at not in verdicts]
    if rest:
        try:
            decided = await _claim_locked(connection, [claims[at] for at in rest], now, sql)
        except Exception:
            # No caller receives these grants: they must not count as attempts of vanished holders.
            unused = [Settlement(v.lease, Release()) for v in verdicts.values() if isinstance(v, Granted)]
            if unused:
                with suppress(Exception):  # the connection is dead: the leases expire
                    await connection.execute("rollback")
                    await settle(connection, unused, now, schema)
            raise
        verdicts.update(zip(rest, decided, strict=True))
    return [verdicts[at] for at in range(len(claims))]


async def spend_token(connection: Connection, schema: str) -> None:
    """Use up one token: the smallest write, which proves that the store accepts writes."""
    await connection.fetch(statements(schema)["next_tokens"], 1, None)


async def _claim_plain(
    connection: Connection, claims: Sequence[Claim], plain: Sequence[int], now: int | None, sql: dict[str, str]
) -> dict[int, Verdict]:
    """Decide claims with one key and no order in one round trip, and return verdicts by position.

    A claim without a verdict must be decided under locks: it would be granted although its key has a row, or an
    earlier claim of its key is one of those."""
    first: dict[bytes, int] = {}
    for at in plain:
        first.setdefault(claims[at].digest, at)
    unique = [claims[at] for at in first.values()]
    groups: dict[tuple[int, int, str, str], int] = {}
    group_numbers = [
        groups.setdefault((item.lease_ms, item.retention_ms, item.tenant, item.handler), len(groups) + 1)
        for item in unique
    ]
    leases, retentions, tenants, handlers = zip(*groups, strict=True)
    head, *rows = await connection.fetch(
        sql["claim"],
        [item.digest for item in unique],
        unless_all_none([item.fingerprint for item in unique]),
        [storable_text(item.text) for item in unique],
        leases,
        retentions,
        [storable_text(tenant) for tenant in tenants],
        [storable_text(handler) for handler in handlers],
        group_numbers if len(groups) > 1 else [],
        now,
    )
    now_ms, digests, tokens, *_ = head
    granted: dict[bytes, int] = dict(zip(digests or (), tokens or (), strict=True))
    verdicts: dict[int, Verdict] = {}
    others: list[int] = []
    for at in plain:
        item = claims[at]
        token = granted.get(item.digest)
        if token is not None and first[item.digest] == at:
            verdicts[at] = Granted(Lease(item, token), 1, False, 0)
        else:
            others.append(at)
    if others:
        known = {row[3]: known_key(row[4:]) for row in rows}
        for digest, token in granted.items():
            item = claims[first[digest]]
            known[digest] = KeyRecord(token, KeyState.LEASED, now_ms + item.lease_ms, 1, now_ms, item.fingerprint)
        judged = [at for at in others if claims[at].digest in known]
        refusals, grants = judge([claims[at] for at in judged], known, {}, now_ms, count(1).__next__)
        undecided = {grant.lease.claim.digest for grant in grants}
        verdicts |= {at: v for at, v in zip(judged, refusals, strict=True) if claims[at].digest not in undecided}
    return verdicts


async def _claim_locked(
    connection: Connection, claims: Sequence[Claim], now: int | None, sql: dict[str, str]
) -> list[Verdict]:
    asyncpg = driver()
    lock = sql["lock_keys"]
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(random.uniform(0, 0.002 * attempt))
        verdicts = None
        try:
            await connection.execute(BEGIN)
            verdicts = await _judge_locked(connection, claims, now, sql, lock)
            await connection.execute("commit" if verdicts is not None else "rollback")
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
            if isinstance(error, asyncpg.LockNotAvailableError):
                lock = sql["lock_free_keys"]
            verdicts = None
            await connection.execute("rollback")
        if verdicts is not None:
            return verdicts
    raise LedgerUnavailable(f"PostgreSQL: other claims took these keys {TRIES} times in a row: try again")


async def _judge_locked(
    connection: Connection, claims: Sequence[Claim], now: int | None, sql: dict[str, str], lock: str
) -> list[Verdict] | None:
    """Lock, read, decide, write. Returns None if another claim was granted one of the keys meanwhile."""
    digests = sorted({digest for claim in claims for digest in claim.digests})
    known = {row[0]: known_key(row[1:]) for row in await connection.fetch(lock, digests)}
    subjects = await _lock_subjects(connection, claims, known, sql)
    if subjects is None:
        return None
    held: set[bytes] = set()  # keys whose rows another transaction keeps locked
    if lock == sql["lock_free_keys"]:
        held = {row[0] for row in await connection.fetch(sql["read_keys"], digests)}.difference(known)
    free = [claim for claim in claims if held.isdisjoint(claim.digests)]
    tokens = await connection.fetch(sql["next_tokens"], max(1, len(free)), now)
    replaced = {digest: state.token for digest, state in known.items()}
    verdicts, grants = judge(free, known, subjects, tokens[0][1], iter([row[0] for row in tokens]).__next__)
    if not await _write_grants(connection, grants, replaced, sql):
        return None
    remaining = iter(verdicts)
    return [next(remaining) if held.isdisjoint(claim.digests) else Busy(HELD_MS) for claim in claims]


async def _lock_subjects(
    connection: Connection, claims: Sequence[Claim], known: dict[bytes, KeyRecord], sql: dict[str, str]
) -> dict[bytes, Subject] | None:
    """Lock the subjects, then read their holders: a renewal must lock the subject too."""
    digests = sorted({claim.order.subject for claim in claims if claim.order is not None})
    if not digests:
        return {}
    await connection.execute(sql["create_subjects"], digests)
    rows = await connection.fetch(sql["lock_subjects"], digests)
    if len(rows) != len(digests):
        return None  # purged in between
    subjects = {digest: Subject(newest, holder, token) for digest, newest, holder, token in rows}
    holders = [s.holder for s in subjects.values() if s.holder is not None and s.holder not in known]
    for row in await connection.fetch(sql["read_keys"], holders) if holders else ():
        known[row[0]] = known_key(row[1:])
    return subjects


async def _write_grants(
    connection: Connection, grants: Sequence[Grant], replaced: dict[bytes, int], sql: dict[str, str]
) -> bool:
    """Write the grants. Returns False if a key that was missing exists now."""
    new: dict[bytes, tuple[Any, ...]] = {}
    changed: dict[bytes, tuple[Any, ...]] = {}
    for grant in grants:
        state, claim, retentions = grant.known, grant.lease.claim, retentions_of(grant.lease.claim)
        for digest in digests_of(claim):
            row = (
                *(digest, state.token, state.until_ms, state.first_ms, retentions[digest]),
                *(state.attempts, state.suspect, state.fingerprint, None if digest == claim.digest else claim.digest),
                *(storable_text(claim.tenant), storable_text(claim.handler), storable_text(claim.text)),
                state.attempt_log or None,
            )
            if digest in replaced:
                changed[digest] = (*row, replaced[digest])
            else:
                new[digest] = row
    for rows, statement in ((changed, sql["replace_keys"]), (new, sql["add_keys"])):
        if rows:
            written = await connection.fetch(statement, *columns_of([rows[digest] for digest in sorted(rows)]))
            if len(written) != len(rows):
                return False
    holders = [
        (grant.lease.claim.order.subject, grant.lease.claim.digest, grant.lease.token)
        for grant in grants
        if grant.lease.claim.order is not None
    ]
    if holders:
        await connection.execute(sql["hold_subjects"], *columns_of(holders))
    return True


# ------------------------------------------------------------------------------------------- wait for a transaction

TURN_MS = 250  # longest time for which one waiter keeps a connection while others wait for it


def advisory_lock(digest: bytes) -> int:
    """Return the advisory lock of a key: 64 bits of its digest. Keys that share them only wait for each other."""
    return int.from_bytes(digest[:8], "big", signed=True)


async def wait_until_free(pool: Pool, claim: Claim, timeout_s: float) -> None:
    """Return when no transaction holds the key, or when the time is over.

    A handler's transaction holds an advisory lock on its key, which is released however the transaction ends. A
    waiter requests the same lock in shared mode and releases it at once. The number of waiting connections is bounded;
    a waiter that finds none free sleeps."""
    ends = time.monotonic() + timeout_s
    while (left_s := ends - time.monotonic()) > 0:
        try:
            connection = await pool.take(left_s)
        except LedgerUnavailable:
            if time.monotonic() >= ends:
                return  # all connections serve other waiters
            raise
        generation, broken = pool.generation, True
        try:
            wait_ms = max(1, min(TURN_MS, round((ends - time.monotonic()) * 1000)))
            is_free = await _can_lock(connection, advisory_lock(claim.digest), wait_ms)
            broken = False
        except faults() as error:
            raise unavailable(pool.options, error) from error
        finally:
            pool.give_back(connection, broken=broken, generation=generation)
        if is_free:
            return
        await asyncio.sleep(0)


async def _can_lock(connection: Connection, number: int, wait_ms: int) -> bool:
    asyncpg = driver()
    try:
        await connection.execute(
            f"begin; set local lock_timeout = {wait_ms}; select pg_advisory_xact_lock_shared({number}); commit"
        )
    except asyncpg.LockNotAvailableError:
        await connection.execute("rollback")
        return False
    return True


# ------------------------------------------------------------------------------------------------------------ renew

LOCK_S = 1.0  # longer than any claim locks a row: a row that is locked for longer is held by its own transaction
TRY_MS = 50  # wait for one locked row: the other leases of the batch run out meanwhile
PAUSE_S = 0.02


async def renew(connection: Connection, leases: Sequence[Lease], now: int | None, schema: str) -> list[bool]:
    """Extend leases: those with one key and no subject by one statement, the others one after the other.

    A row may be locked by the transaction that settles its lease; other renewals do not wait for it. Locked leases are
    retried, all of them within about one second: a slow transaction must not cost the others their leases."""
    sql = statements(schema)
    by_pair = {(lease.claim.digest, lease.token): lease for lease in leases}
    plain = sorted(pair for pair, lease in by_pair.items() if not lease.claim.aliases and lease.claim.order is None)
    results = dict.fromkeys(by_pair, False)
    remaining = [pair for pair in by_pair if pair not in set(plain)]  # locked, or not yet tried
    if plain:
        columns = columns_of([(*pair, by_pair[pair].claim.lease_ms) for pair in plain])
        rows = await connection.fetch(sql["renew_free"], *columns, now)
        results.update((plain[ordinal - 1], True) for ordinal, renewed in rows if renewed)
        remaining += [plain[ordinal - 1] for ordinal, renewed in rows if not renewed]
    ends = time.monotonic() + LOCK_S
    is_last = False
    while remaining:
        tried, remaining = remaining, []
        for pair in tried:
            lease = by_pair[pair]
            renewed = await _renew_whole(connection, lease, now, schema)
            if renewed is not None:
                results[pair] = renewed
            elif is_last:  # its own transaction is settling it: no other claim can take it meanwhile
                results[pair] = _is_held(lease, await connection.fetch(sql["read_keys"], digests_of(lease.claim)))
            else:
                remaining.append(pair)
        if remaining:
            await asyncio.sleep(PAUSE_S)
            is_last = time.monotonic() >= ends
    return [results[lease.claim.digest, lease.token] for lease in leases]


async def _renew_whole(connection: Connection, lease: Lease, now: int | None, schema: str) -> bool | None:
    """Renew a lease with all its keys and its subject. False: one of them was lost. None: one of them is locked."""
    asyncpg = driver()
    sql, digests = statements(schema), digests_of(lease.claim)
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"set local lock_timeout = {TRY_MS}")
            if not await hold(connection, lease, schema):
                return False
            if lease.claim.order is not None:
                subjects = await connection.fetch(sql["lock_subjects"], [lease.claim.order.subject])
                if not subjects or subjects[0][2] is None or subjects[0][3] != lease.token:
                    return False
            rows = [(digest, lease.token, lease.claim.lease_ms) for digest in digests]
            await connection.execute(sql["renew"], *columns_of(rows), now)
            return True
    except asyncpg.LockNotAvailableError:
        return None


def _is_held(lease: Lease, rows: Iterable[Any]) -> bool:
    """True if these are all rows of a lease that is neither lost nor settled."""
    states = [(token, state) for _, token, state, *_ in rows]
    return states == [(lease.token, LEASED)] * len(digests_of(lease.claim))


# ----------------------------------------------------------------------------------------------------------- settle


async def settle(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> list[bool]:
    """Settle a batch in one round trip, and a second one for leases that were not found.

    The first of several settlements of one lease counts; the others are compared with it."""
    results = [False] * len(settlements)
    remaining = list(range(len(settlements)))
    while remaining:
        first: dict[tuple[bytes, int], int] = {}
        repeats: list[int] = []
        for at in remaining:
            lease = settlements[at].lease
            if first.setdefault((lease.claim.digest, lease.token), at) != at:
                repeats.append(at)
        batch = [first[pair] for pair in sorted(first)]  # in the order of the keys, as every transaction locks them
        settled = await _settle(connection, [settlements[at] for at in batch], now, statements(schema))
        for at, result in zip(batch, settled, strict=True):
            results[at] = result
        remaining = repeats
    return results


async def _settle(
    connection: Connection, settlements: Sequence[Settlement], now: int | None, sql: dict[str, str]
) -> list[bool]:
    endings = [encode_ending(settlement.outcome) for settlement in settlements]
    written = await _write_endings(connection, settlements, endings, now, sql)
    if len(written) == len(settlements):
        return [True] * len(settlements)
    results = [False] * len(settlements)
    for ordinal in written:
        results[ordinal - 1] = True
    # A token may have settled before with this outcome: a lost reply was followed by a retry.
    missing = [at for at, result in enumerate(results) if not result and endings[at][0] != RELEASE]
    if missing:
        leases = [settlements[at].lease for at in missing]
        pairs = [(lease.claim.digest, lease.token) for lease in leases]
        for ordinal, *stored in await connection.fetch(sql["settled_before"], *columns_of(pairs)):
            at = missing[ordinal - 1]
            results[at] = _is_same_ending(stored, endings[at])
    return results


async def _write_endings(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    now: int | None,
    sql: dict[str, str],
) -> list[int]:
    """Write endings and return the ordinals, from 1, of those whose lease was current.

    One HOT update writes a batch in which every ending is Done or Retry of a claim with one key and no subject."""
    ordinals: list[int] | None
    delays_ms = [round((s.outcome.after or 0) * 1000) if type(s.outcome) is Retry else None for s in settlements]
    if all(
        code in (DONE, RETRY) and not s.lease.claim.aliases and s.lease.claim.order is None
        for s, (code, _) in zip(settlements, endings, strict=True)
    ):
        ordinals = await connection.fetchval(
            sql["settle"],
            [s.lease.claim.digest for s in settlements],
            [s.lease.token for s in settlements],
            unless_all_none([result for _, result in endings]),
            unless_all_none(delays_ms),
            now,
        )
        return ordinals or []
    rows: list[tuple[Any, ...]] = []
    for ordinal, (settlement, (code, result), delay_ms) in enumerate(
        zip(settlements, endings, delays_ms, strict=True), 1
    ):
        lease, outcome = settlement.lease, settlement.outcome
        own, *aliases = digests_of(lease.claim)
        failure = cut(outcome.reason) if isinstance(outcome, Retry | Reject | Uncertain) else None
        common = (len(aliases) + 1, code, result, delay_ms, failure)
        rows.append((ordinal, own, lease.token, True, *common, *_own_columns(settlement, code, aliases)))
        rows += [(ordinal, digest, lease.token, False, *common, *[None] * 7) for digest in aliases]
    columns = [unless_all_none(column) for column in columns_of(rows)]
    ordinals = await connection.fetchval(sql["settle_any"], *columns, now)
    return ordinals or []


def _own_columns(settlement: Settlement, code: int, aliases: Sequence[bytes]) -> tuple[Any, ...]:
    """Return subject, position, retention and aliases; for a dead letter also its reason, event and decode options."""
    claim, dead_letter = settlement.lease.claim, settlement.dead_letter
    order = (claim.order.subject, claim.order.position) if claim.order is not None else (None, None)
    if code not in (DEAD, UNCERTAIN):
        return (*order, claim.retention_ms, None, None, None, None)
    about = (*order, max(retentions_of(claim).values()), b"".join(aliases) or None)
    reason = storable_text(settlement.outcome.reason) if isinstance(settlement.outcome, Reject | Uncertain) else ""
    if dead_letter is None:
        return (*about, reason, None, None)
    return (*about, reason, dead_letter.event, dump_options(dead_letter.decode_options) or None)


async def hold(connection: Connection, lease: Lease, schema: str) -> bool:
    """Lock all rows of a lease until the transaction ends. Returns False if it was lost or settled before."""
    sql, digests = statements(schema), sorted(digests_of(lease.claim))
    if len(digests) == 1:
        return _is_held(lease, await connection.fetch(sql["lock_one_key"], digests[0]))
    return _is_held(lease, await connection.fetch(sql["lock_keys"], digests))


async def hold_after(before: str, connection: Connection, lease: Lease, schema: str) -> bool:
    """Like `hold`, after the statements in `before`, in one round trip. The command tag contains the number of rows."""
    digests = sorted(digests_of(lease.claim))
    # decode() does not depend on settings of the handler, as a literal would.
    listed = ", ".join([f"decode('{digest.hex()}', 'hex')" for digest in digests])
    tag = await connection.execute(
        f'{before}; select from "{schema}".key where digest in ({listed}) and token = {int(lease.token)} '
        f"and state = {LEASED} order by digest for update"
    )
    return tag == f"SELECT {len(digests)}"


async def settle_held(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> bool:
    """Settle leases whose rows are locked. Returns False if one of them changed."""
    ordered = sorted(settlements, key=lambda settlement: settlement.lease.claim.digest)
    endings = [encode_ending(settlement.outcome) for settlement in ordered]
    return len(await _write_endings(connection, ordered, endings, now, statements(schema))) == len(settlements)


async def settled_after_commit(connection: Connection, settlement: Settlement, schema: str) -> bool:
    """True if a settlement was committed although its reply was lost."""
    lease = settlement.lease
    row = await connection.fetchrow(statements(schema)["settled_after_commit"], lease.claim.digest, lease.token)
    return row is not None and _is_same_ending(list(row), encode_ending(settlement.outcome))


def _is_same_ending(stored: list[Any], ending: tuple[int, bytes | None]) -> bool:
    state, outcome, result = stored
    code, expected = ending
    if code <= UNCERTAIN:
        return bool(state == SETTLED and outcome == code and result == expected)
    return bool(code == RETRY and state == WAITING)

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
from semel.values.claim_rules import Grant, Known, State, Subject, judge
from semel.values.errors import LedgerUnavailable
from semel.values.event import dump as dump_options
from semel.values.outcome import Ending, Reject, Release, Retry, Uncertain
from semel.values.outcome_codec import DEAD, DONE, UNCERTAIN

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

TRIES = 30  # each retry means that another claim was granted one of the keys
LOCK_MS = 500  # wait for a row of a handler's transaction; less than deadlock_timeout: the claim gives up first
HELD_MS = 1_000  # delay before such a row is claimed again
BEGIN = f"begin isolation level read committed; set local lock_timeout = {LOCK_MS}"


async def claim(connection: Connection, claims: Sequence[Claim], now: int | None, schema: str) -> list[Verdict]:
    """Return a verdict for each claim, in order, as if the claims had arrived one after the other."""
    plain = _plain(claims)
    verdicts: dict[int, Verdict] = {}
    if plain:
        asyncpg = driver()
        refused = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
        with suppress(*refused):  # nothing was decided: decide under locks
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
    """Release grants that no caller receives: they must not count as attempts of vanished holders."""
    unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
    if unused:
        with suppress(Exception):  # the connection is dead: the leases lapse
            await connection.execute("rollback")
            await settle(connection, unused, now, schema)


async def spend_token(connection: Connection, schema: str) -> None:
    """Use up one token: the smallest write, which proves that the store accepts writes."""
    await connection.fetch(statements(schema)["next_tokens"], 1, None)


def _plain(claims: Sequence[Claim]) -> list[int]:
    """Return the claims with one key and no order. A claim that shares its key with another kind of claim of the batch
    is not among them: that one may come first."""
    if not any(claim.aliases or claim.order is not None for claim in claims):
        return list(range(len(claims)))
    special = {d for claim in claims if claim.aliases or claim.order is not None for d in digests_of(claim)}
    return [at for at, claim in enumerate(claims) if claim.digest not in special]


# --------------------------------------------------------------------------------------------------- one round trip


async def _at_once(
    connection: Connection, claims: Sequence[Claim], plain: Sequence[int], now: int | None, schema: str
) -> dict[int, Verdict]:
    """Return verdicts by position. A claim without a verdict must be decided under locks."""
    first: dict[bytes, int] = {}
    for at in plain:
        first.setdefault(claims[at].digest, at)
    unique = [claims[at] for at in first.values()]
    groups: dict[tuple[int, int, str, str], int] = {}
    places = [
        groups.setdefault((item.lease_ms, item.retention_ms, item.tenant, item.handler), len(groups) + 1)
        for item in unique
    ]
    leases, keeps, tenants, handlers = zip(*groups, strict=True)
    head, *rows = await connection.fetch(
        statements(schema)["claim"],
        [item.digest for item in unique],
        unless_all_none([item.fingerprint for item in unique]),
        [storable_text(item.text) for item in unique],
        leases,
        keeps,
        [storable_text(tenant) for tenant in tenants],
        [storable_text(handler) for handler in handlers],
        places if len(groups) > 1 else [],
        now,
    )
    time, keys, tokens, *_ = head
    granted: dict[bytes, int] = dict(zip(keys or (), tokens or (), strict=True))
    known_of = {row[3]: known_key(row[4:]) for row in rows}
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
        for digest, token in granted.items():
            item = claims[first[digest]]
            known_of[digest] = Known(token, State.LEASED, time + item.lease_ms, 1, time, item.fingerprint)
        verdicts.update(_refused(claims, others, known_of, time))
    return verdicts


def _refused(
    claims: Sequence[Claim], others: Sequence[int], known_of: dict[bytes, Known], now: int
) -> dict[int, Verdict]:
    """Return the refusals that the state read allows. A claim that would be granted, and every later claim of its key,
    is not among them."""
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
    raise LedgerUnavailable(f"PostgreSQL: other claims took these keys {TRIES} times in a row: try again")


async def _judged(
    connection: Connection, claims: Sequence[Claim], now: int | None, sql: dict[str, str], lock: str
) -> list[Verdict] | None:
    """Lock, read, decide, write. Returns None if another claim was granted one of the keys meanwhile."""
    digests = sorted({digest for claim in claims for digest in digests_of(claim)})
    known_of = {row[0]: known_key(row[1:]) for row in await connection.fetch(lock, digests)}
    subjects = await _subjects(connection, claims, known_of, sql)
    if subjects is None:
        return None
    held = await _held(connection, digests, known_of, sql) if lock == sql["lock_free_keys"] else set()
    free = [claim for claim in claims if held.isdisjoint(digests_of(claim))]
    tokens = await connection.fetch(sql["next_tokens"], max(1, len(free)), now)
    replaced = {digest: state.token for digest, state in known_of.items()}
    verdicts, grants = judge(free, known_of, subjects, tokens[0][1], iter([row[0] for row in tokens]).__next__)
    if not await _write(connection, grants, replaced, sql):
        return None
    remaining = iter(verdicts)
    return [next(remaining) if held.isdisjoint(digests_of(claim)) else Busy(HELD_MS) for claim in claims]


async def _held(
    connection: Connection, digests: Sequence[bytes], known_of: dict[bytes, Known], sql: dict[str, str]
) -> set[bytes]:
    """Return the keys whose rows another transaction keeps locked."""
    return {row[0] for row in await connection.fetch(sql["read_keys"], digests)}.difference(known_of)


async def _subjects(
    connection: Connection, claims: Sequence[Claim], known_of: dict[bytes, Known], sql: dict[str, str]
) -> dict[bytes, Subject] | None:
    """Lock the subjects, then read their holders: a renewal must lock the subject too."""
    wanted = sorted({claim.order.subject for claim in claims if claim.order is not None})
    if not wanted:
        return {}
    await connection.execute(sql["create_subjects"], wanted)
    found = await connection.fetch(sql["lock_subjects"], wanted)
    if len(found) != len(wanted):
        return None  # purged in between
    subjects = {k: Subject(newest, holder, token) for k, newest, holder, token in found}
    holders = [s.holder for s in subjects.values() if s.holder is not None and s.holder not in known_of]
    for row in await connection.fetch(sql["read_keys"], holders) if holders else ():
        known_of[row[0]] = known_key(row[1:])
    return subjects


async def _write(
    connection: Connection, grants: Sequence[Grant], replaced: dict[bytes, int], sql: dict[str, str]
) -> bool:
    """Write the grants. Returns False if a key that was missing exists now."""
    fresh: dict[bytes, tuple[Any, ...]] = {}
    taken: dict[bytes, tuple[Any, ...]] = {}
    for grant in grants:
        state, claim, keeps = grant.known, grant.lease.claim, retentions_of(grant.lease.claim)
        for digest in digests_of(claim):
            row = (
                *(digest, state.token, state.until_ms, state.first_ms, keeps[digest], state.attempts, state.suspect),
                *(state.fingerprint, None if digest == claim.digest else claim.digest),
                *(
                    storable_text(claim.tenant),
                    storable_text(claim.handler),
                    storable_text(claim.text),
                    state.attempt_log or None,
                ),
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


# ------------------------------------------------------------------------------------------- wait for a transaction

TURN_MS = 250  # longest time for which one waiter keeps a connection while others wait for it


def lock_of(digest: bytes) -> int:
    """Return the advisory lock of a key: 64 bits of its digest. Keys that share them only wait for each other."""
    return int.from_bytes(digest[:8], "big", signed=True)


async def held_until(pool: Pool, claim: Claim, timeout_s: float) -> None:
    """Return when no transaction holds the key, or when the time is over.

    A handler's transaction holds an advisory lock on its key, which is released however the transaction ends. A
    waiter requests the same lock in shared mode and releases it at once. The number of waiting connections is bounded;
    a waiter that finds none free sleeps."""
    number = lock_of(claim.digest)
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
            free = await _is_free(connection, number, wait_ms)
            broken = False
        except faults() as error:
            raise unavailable(pool.options, error) from error
        finally:
            pool.give_back(connection, broken=broken, generation=generation)
        if free:
            return
        await asyncio.sleep(0)


async def _is_free(connection: Connection, number: int, wait_ms: int) -> bool:
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
    by_pair = {(lease.claim.digest, lease.token): lease for lease in leases}
    plain = sorted(pair for pair, lease in by_pair.items() if _is_plain(lease))
    results = dict.fromkeys(by_pair, False)
    locked = [pair for pair in by_pair if pair not in set(plain)]  # or not yet tried
    if plain:
        rows = await connection.fetch(
            statements(schema)["renew_free"],
            [digest for digest, _ in plain],
            [token for _, token in plain],
            [by_pair[pair].claim.lease_ms for pair in plain],
            now,
        )
        results.update((plain[i - 1], True) for i, renewed in rows if renewed)
        locked += [plain[i - 1] for i, renewed in rows if not renewed]
    ends = time.monotonic() + LOCK_S
    is_last = False
    while locked:
        attempt_log, locked = locked, []
        for pair in attempt_log:
            renewed = await _renew_whole(connection, by_pair[pair], now, schema)
            if renewed is not None:
                results[pair] = renewed
            elif is_last:  # its own transaction is settling it: no other claim can take it meanwhile
                results[pair] = await _is_held(connection, by_pair[pair], schema)
            else:
                locked.append(pair)
        if locked:
            await asyncio.sleep(PAUSE_S)
            is_last = time.monotonic() >= ends
    return [results[lease.claim.digest, lease.token] for lease in leases]


def _is_plain(lease: Lease) -> bool:
    return not lease.claim.aliases and lease.claim.order is None


async def _renew_whole(connection: Connection, lease: Lease, now: int | None, schema: str) -> bool | None:
    """Renew a lease with all its keys and its subject. False: one of them was lost. None: one of them is locked."""
    asyncpg = driver()
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"set local lock_timeout = {TRY_MS}")
            return await _renew_locked(connection, lease, now, statements(schema), schema)
    except asyncpg.LockNotAvailableError:
        return None


async def _is_held(connection: Connection, lease: Lease, schema: str) -> bool:
    """True if the last committed state still holds the lease."""
    digests = digests_of(lease.claim)
    found = await connection.fetch(statements(schema)["read_keys"], digests)
    return [(token, state) for _, token, state, *_ in found] == [(lease.token, LEASED)] * len(digests)


async def _renew_locked(
    connection: Connection, lease: Lease, now: int | None, sql: dict[str, str], schema: str
) -> bool:
    if not await hold(connection, lease, schema):
        return False
    if lease.claim.order is not None:
        held = await connection.fetch(sql["lock_subjects"], [lease.claim.order.subject])
        if not held or held[0][2] is None or held[0][3] != lease.token:
            return False
    digests = digests_of(lease.claim)
    many = len(digests)
    await connection.execute(sql["renew"], digests, [lease.token] * many, [lease.claim.lease_ms] * many, now)
    return True


# ----------------------------------------------------------------------------------------------------------- settle


async def settle(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> list[bool]:
    """Settle a batch in one round trip, and a second one for leases that were not found.

    The first of several settlements of one lease counts; the others are compared with it."""
    results = [False] * len(settlements)
    waiting = list(range(len(settlements)))
    while waiting:
        first: dict[tuple[bytes, int], int] = {}
        repeats: list[int] = []
        for at in waiting:
            lease = settlements[at].lease
            if first.setdefault((lease.claim.digest, lease.token), at) != at:
                repeats.append(at)
        places = [first[pair] for pair in sorted(first)]  # in the order of the keys, as every transaction locks them
        settled = await _settle(connection, [settlements[at] for at in places], now, schema)
        for at, result in zip(places, settled, strict=True):
            results[at] = result
        waiting = repeats
    return results


async def _settle(
    connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str
) -> list[bool]:
    endings = [encode_ending(settlement.outcome) for settlement in settlements]
    write = _settle_simple if _are_simple(settlements, endings) else _settle_any
    found = await write(connection, settlements, endings, now, schema)
    if len(found) == len(settlements):
        return [True] * len(settlements)
    results = [False] * len(settlements)
    for i in found:
        results[i - 1] = True
    missing = [at for at, result in enumerate(results) if not result and endings[at][0] != RELEASE]
    for at in await _settled_before(connection, settlements, endings, missing, schema):
        results[at] = True
    return results


def _are_simple(settlements: Sequence[Settlement], endings: Sequence[tuple[int, bytes | None]]) -> bool:
    return all(
        code in (DONE, RETRY) and not s.lease.claim.aliases and s.lease.claim.order is None
        for s, (code, _) in zip(settlements, endings, strict=True)
    )


async def _settle_simple(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    now: int | None,
    schema: str,
) -> list[int]:
    found: list[int] | None = await connection.fetchval(
        statements(schema)["settle"],
        [s.lease.claim.digest for s in settlements],
        [s.lease.token for s in settlements],
        unless_all_none([result for _, result in endings]),
        unless_all_none([_delay_ms(s.outcome) for s in settlements]),
        now,
    )
    return found or []


async def _settle_any(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    now: int | None,
    schema: str,
) -> list[int]:
    rows: list[tuple[Any, ...]] = []
    for i, (settlement, (code, result)) in enumerate(zip(settlements, endings, strict=True), 1):
        lease, delay_ms = settlement.lease, _delay_ms(settlement.outcome)
        own, *others = digests_of(lease.claim)
        same = (len(others) + 1, code, result, delay_ms, _failure(settlement.outcome))
        rows.append((i, own, lease.token, True, *same, *_about(settlement, code, others)))
        rows += [(i, digest, lease.token, False, *same, *_NOTHING) for digest in others]
    columns = [unless_all_none(list(column)) for column in zip(*rows, strict=True)]
    found: list[int] | None = await connection.fetchval(statements(schema)["settle_any"], *columns, now)
    return found or []


def _failure(outcome: Ending) -> bytes | None:
    """Return the reason of a failed attempt, for the attempt log."""
    return cut(outcome.reason) if isinstance(outcome, Retry | Reject | Uncertain) else None


_NOTHING = (None,) * 7  # the settlement's columns in the row of an alias


def _about(settlement: Settlement, code: int, others: Sequence[bytes]) -> tuple[Any, ...]:
    """Return subject, position, retention and aliases; for a dead letter also its reason, event and decode options."""
    claim, dead_letter = settlement.lease.claim, settlement.dead_letter
    place = (claim.order.subject, claim.order.position) if claim.order is not None else (None, None)
    if code not in (DEAD, UNCERTAIN):
        return (*place, claim.retention_ms, None, None, None, None)
    about = (*place, max(retentions_of(claim).values()), b"".join(others) or None)
    reason = storable_text(settlement.outcome.reason) if isinstance(settlement.outcome, Reject | Uncertain) else ""
    if dead_letter is None:
        return (*about, reason, None, None)
    return (*about, reason, dead_letter.event, dump_options(dead_letter.decode_options) or None)


async def _settled_before(
    connection: Connection,
    settlements: Sequence[Settlement],
    endings: Sequence[tuple[int, bytes | None]],
    missing: Sequence[int],
    schema: str,
) -> list[int]:
    """Return the settlements whose token settled before with this outcome: a lost reply was followed by a retry."""
    if not missing:
        return []
    leases = [settlements[at].lease for at in missing]
    rows = await connection.fetch(
        statements(schema)["settled_before"],
        [lease.claim.digest for lease in leases],
        [lease.token for lease in leases],
    )
    return [at for i, *found in rows if _is_same_ending(found, endings[at := missing[i - 1]])]


async def hold(connection: Connection, lease: Lease, schema: str) -> bool:
    """Lock all rows of a lease until the transaction ends. Returns False if it was lost or settled before."""
    digests = sorted(digests_of(lease.claim))
    if len(digests) == 1:
        found = await connection.fetch(statements(schema)["lock_one_key"], digests[0])
    else:
        found = await connection.fetch(statements(schema)["lock_keys"], digests)
    return [(token, state) for _, token, state, *_ in found] == [(lease.token, LEASED)] * len(digests)


async def hold_after(before: str, connection: Connection, lease: Lease, schema: str) -> bool:
    """Like `hold`, after the statements in `before`, in one round trip. The command tag contains the number of rows."""
    digests = sorted(digests_of(lease.claim))
    listed = ", ".join(
        [f"decode('{digest.hex()}', 'hex')" for digest in digests]
    )  # independent of the handler's settings
    token, state = int(lease.token), LEASED
    found = await connection.execute(
        f'{before}; select from "{schema}".key where digest in ({listed}) and token = {token} and state = {state} '
        "order by digest for update"
    )
    return found == f"SELECT {len(digests)}"


async def settle_held(connection: Connection, settlements: Sequence[Settlement], now: int | None, schema: str) -> bool:
    """Settle leases whose rows are locked. Returns False if one of them changed."""
    ordered = sorted(settlements, key=lambda settlement: settlement.lease.claim.digest)
    endings = [encode_ending(settlement.outcome) for settlement in ordered]
    write = _settle_simple if _are_simple(ordered, endings) else _settle_any
    return len(await write(connection, ordered, endings, now, schema)) == len(settlements)


async def settled_after_commit(connection: Connection, settlement: Settlement, schema: str) -> bool:
    """True if a settlement was committed although its reply was lost."""
    lease = settlement.lease
    row = await connection.fetchrow(statements(schema)["settled_after_commit"], lease.claim.digest, lease.token)
    return row is not None and _is_same_ending(list(row), encode_ending(settlement.outcome))


def _is_same_ending(found: list[Any], ending: tuple[int, bytes | None]) -> bool:
    state, outcome, result = found
    code, expected = ending
    if code <= UNCERTAIN:
        return bool(state == SETTLED and outcome == code and result == expected)
    return bool(code == RETRY and state == WAITING)


def _delay_ms(outcome: Ending) -> int | None:
    return round((outcome.after or 0) * 1000) if type(outcome) is Retry else None

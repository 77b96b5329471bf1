"""Claims, settlements, renewals and the purge, as functions of a connection inside an immediate transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import apsw

from semel.ledgers.sqlite.statements import SQL, Row, rows, select_many, write_many
from semel.values.attempts import line
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.claim_rules import Grant, KeyRecord, KeyState, Subject, judge
from semel.values.event import dump
from semel.values.key import split_digests
from semel.values.outcome import Done, Reject, Release, Retry, Uncertain
from semel.values.outcome_codec import DONE, decode_outcome, encode_outcome, storable

EXAMINED = 10  # records that a purge examines for each key that it may delete: most may have a longer retention

_FINAL = (Done, Reject, Uncertain)
_STATES = {int(state): state for state in KeyState}

# ------------------------------------------------------------------------------------------------------------ claim


def claim(connection: apsw.Connection, claims: Sequence[Claim], now: int) -> list[Verdict]:
    """Read the stored state of all keys, decide, write the grants."""
    digests: list[bytes] = []
    ordered: list[bytes] = []
    for claim in claims:
        digests.append(claim.digest)
        if claim.aliases:
            digests += [alias.digest for alias in claim.aliases]
        if claim.order is not None:
            ordered.append(claim.order.subject)
    known = known_keys(connection, digests)
    subjects = _read_subjects(connection, ordered, known) if ordered else {}
    ((token,),) = connection.execute(SQL["last_token"])
    verdicts, grants = judge(claims, known, subjects, now, count(token + 1).__next__)
    if grants:
        connection.execute(SQL["set_last_token"], (token + len(grants),))
        _write_grants(connection, grants)
    return verdicts


def touch(connection: apsw.Connection, now: int) -> None:
    """Write a row without meaning. Taking a lock succeeds on a full disk; writing a row does not."""
    connection.execute(SQL["touch"], (now,))


def known_keys(connection: apsw.Connection, digests: Sequence[bytes]) -> dict[bytes, KeyRecord]:
    """Return the stored state of these keys. An open key hides its settled record, whose retention is over."""
    known: dict[bytes, KeyRecord] = {}
    for digest, token, state, until_ms, attempts, first_ms, fingerprint, suspect, outcome, result, log in select_many(
        connection, SQL["known_keys"], digests
    ):
        if outcome is None:
            known[digest] = KeyRecord(
                token, _STATES[state], until_ms, attempts, first_ms, fingerprint, bool(suspect), None, log or b""
            )
        elif digest not in known:
            ended = decode_outcome(outcome, result)
            known[digest] = KeyRecord(token, KeyState.SETTLED, until_ms, attempts, first_ms, fingerprint, False, ended)
    return known


def _read_subjects(
    connection: apsw.Connection, digests: Sequence[bytes], known: dict[bytes, KeyRecord]
) -> dict[bytes, Subject]:
    """Return the subjects, and add the keys that hold them to `known`."""
    found = select_many(connection, SQL["subjects"], list(dict.fromkeys(digests)))
    subjects = {digest: Subject(newest, holder, token) for digest, newest, holder, token in found}
    holders = [s.holder for s in subjects.values() if s.holder is not None and s.holder not in known]
    known |= known_keys(connection, holders)
    return subjects


def _write_grants(connection: apsw.Connection, grants: Sequence[Grant]) -> None:
    fresh: list[Row] = []
    subjects: list[Row] = []
    attempt_logs: list[Row] = []
    for grant in grants:
        known, claim = grant.known, grant.lease.claim
        for digest, replaced in zip(claim.digests if claim.aliases else (claim.digest,), grant.replaced, strict=True):
            alias_of = None if digest == claim.digest else claim.digest
            if replaced is not None:
                _replace_lease(connection, digest, alias_of, replaced, known)
                continue
            fresh.append(
                (
                    *(digest, known.token, 1, known.until_ms, known.attempts, known.first_ms, known.suspect),
                    *(known.fingerprint, claim.retention_ms, claim.tenant, claim.handler, claim.text, alias_of),
                )
            )
            if known.attempt_log:
                attempt_logs.append((known.attempt_log, digest, known.token))
        if claim.order is not None:
            subjects.append((claim.order.subject, None, claim.digest, known.token, 0))
    if fresh:
        write_many(connection, SQL["add_leases"], fresh)
    for row in attempt_logs:
        connection.execute(SQL["set_attempt_log"], row)
    if subjects:
        write_many(connection, SQL["hold_subjects"], subjects)


def _replace_lease(
    connection: apsw.Connection, digest: bytes, alias_of: bytes | None, replaced: int, known: KeyRecord
) -> None:
    connection.execute(
        SQL["replace_lease"],
        (
            *(known.token, known.until_ms, known.attempts, known.first_ms, known.fingerprint, int(known.suspect)),
            *(alias_of, known.attempt_log or None, digest, replaced),
        ),
    )
    if connection.changes() != 1:  # unreachable inside an immediate transaction; a broken store must not grant twice
        raise apsw.ConstraintError("a lease changed its holder while it was being granted")


# ----------------------------------------------------------------------------------------------------------- settle


def settle(connection: apsw.Connection, settlements: Sequence[Settlement], now: int) -> list[bool]:
    """End leases whose token is current. A final outcome moves the key from its lease to a record."""
    final: list[Settlement] = []
    pairs: list[tuple[bytes, int]] = []
    for settlement in settlements:
        lease = settlement.lease
        if isinstance(settlement.outcome, _FINAL) and (not lease.claim.aliases or _has_all_keys(connection, lease)):
            final.append(settlement)
            pairs.append((lease.claim.digest, lease.token))
    ended: dict[tuple[bytes, int], Row] = {}
    for digest, token, *columns in write_many(connection, SQL["end_leases"], pairs):
        ended[digest, token] = tuple(columns)
    if ended:
        _write_records(connection, final, ended, now)
    results: list[bool] = []
    for settlement in settlements:
        lease = settlement.lease
        if isinstance(settlement.outcome, _FINAL) and ended.pop((lease.claim.digest, lease.token), None) is not None:
            results.append(True)
        else:  # also a second settlement of the token in this batch: its outcome is compared
            results.append(_settle_one(connection, settlement, now))
    return results


def _write_records(
    connection: apsw.Connection, final: Sequence[Settlement], ended: dict[tuple[bytes, int], Row], now: int
) -> None:
    """Write the records of ended leases. The first settlement of a token counts."""
    records: list[Row] = []
    done: list[Row] = []
    aliases: list[Row] = []
    written: set[int] = set()
    for settlement in final:
        lease = settlement.lease
        claim, token = lease.claim, lease.token
        columns = ended.get((claim.digest, token))
        if columns is None or token in written:
            continue
        written.add(token)
        attempts, fingerprint, attempt_log = columns
        outcome, result = encode_outcome(settlement.outcome)
        if outcome != DONE:
            attempt_log = (attempt_log or b"") + line(attempts, now, (result or b"").decode())
        if attempt_log:
            connection.execute(SQL["add_attempt_log"], (token, attempt_log))
        expires_ms = last_expires_ms = now + claim.retention_ms
        done.append((claim.digest, token, expires_ms))
        alias_digests = None
        if claim.aliases:
            alias_digests = b"".join([alias.digest for alias in claim.aliases])
            for alias in claim.aliases:
                aliases.append((alias.digest, token))
                done.append((alias.digest, token, now + alias.retention_ms))
                last_expires_ms = max(last_expires_ms, now + alias.retention_ms)  # an alias may outlive its key
        records.append(
            (
                *(token, claim.digest, alias_digests, outcome, result, fingerprint, attempts, now, last_expires_ms),
                *(claim.tenant, claim.handler, claim.text, None),
            )
        )
        if (dead_letter := settlement.dead_letter) is not None:
            options = dump(dead_letter.decode_options) or None
            connection.execute(SQL["add_dead_letter"], (token, dead_letter.event, options))
        if claim.order is not None:
            _free_subject(connection, lease, now, applied=outcome == DONE)
    if aliases:
        write_many(connection, SQL["end_leases"], aliases)
    write_many(connection, SQL["add_records"], records)
    write_many(connection, SQL["add_done"], done)


def _settle_one(connection: apsw.Connection, settlement: Settlement, now: int) -> bool:
    """Settle an outcome that is not final, or a final one whose lease was not found."""
    lease, outcome = settlement.lease, settlement.outcome
    match outcome:
        case Retry():
            return _wait(connection, lease, outcome, now)
        case Release():
            return _release(connection, lease, now)
        case _:  # True if the token settled before with this outcome: a lost reply was followed by a retry
            found = rows(connection, SQL["settled_under"], lease.token)
            return found == [(lease.claim.digest, *encode_outcome(outcome))]


def _wait(connection: apsw.Connection, lease: Lease, retry: Retry, now: int) -> bool:
    until_ms, reason = now + round((retry.after or 0) * 1000), storable(retry.reason).decode()
    for attempts, earlier in rows(connection, SQL["attempt_log"], lease.claim.digest, lease.token):
        attempt_log = (earlier or b"") + line(attempts, now, retry.reason)
        if _write_each_key(connection, lease, SQL["wait"], until_ms, reason, attempt_log):
            _free_subject(connection, lease, now, applied=False)
            return True
    return rows(connection, SQL["is_waiting"], lease.claim.digest, lease.token) != []


def _release(connection: apsw.Connection, lease: Lease, now: int) -> bool:
    """Undo the claim: a first attempt leaves nothing, a later one leaves its earlier attempts.

    A released lease cannot be settled, renewed or released again.
    """
    held = any(_write_each_key(connection, lease, SQL[name]) for name in ("release_first", "release_later"))
    if held:
        _free_subject(connection, lease, now, applied=False)
    return held


def _write_each_key(connection: apsw.Connection, lease: Lease, sql: str, *values: Any) -> bool:
    """Run a write that ends in `digest = ? and token = ? …` for all keys of a lease. False if its own key has another
    token."""
    if not _has_all_keys(connection, lease):
        return False
    for digest in lease.claim.digests:
        connection.execute(sql, (*values, digest, lease.token))
        if digest == lease.claim.digest and connection.changes() != 1:
            return False
    return True


def _has_all_keys(connection: apsw.Connection, lease: Lease) -> bool:
    """An alias identifies the same effect: a lease that lost one of its keys is lost."""
    return all(rows(connection, SQL["has_key"], alias.digest, lease.token) for alias in lease.claim.aliases)


def is_held(connection: apsw.Connection, lease: Lease) -> bool:
    """True if the lease has not ended yet."""
    return rows(connection, SQL["is_held"], lease.claim.digest, lease.token) != []


def _free_subject(connection: apsw.Connection, lease: Lease, now: int, applied: bool) -> None:
    order = lease.claim.order
    if order is None:
        return
    until_ms = now + lease.claim.retention_ms
    if applied:
        connection.execute(SQL["apply_position"], (order.subject, order.position, until_ms))
    connection.execute(SQL["free_subject"], (until_ms, order.subject, lease.token))


# ------------------------------------------------------------------------------------------------- renew and purge


def renew(connection: apsw.Connection, leases: Sequence[Lease], now: int) -> list[bool]:
    results: list[bool] = []
    for lease in leases:
        claim = lease.claim
        order_held = claim.order is None or rows(connection, SQL["has_subject"], claim.order.subject, lease.token) != []
        results.append(order_held and _write_each_key(connection, lease, SQL["renew"], now + claim.lease_ms))
    return results


def purge(connection: apsw.Connection, limit: int, now: int) -> int:
    """Delete keys whose retention is over. Live leases, suspect leases and undecided dead letters stay.

    Records are in the order of time, so the oldest are due first. Handlers may have different retentions: the purge
    resumes where it stopped, examines a bounded number of records at a time, and starts over at the end.
    """
    ((position,),) = rows(connection, SQL["purge_position"])
    examined = rows(connection, SQL["examine_records"], position, limit * EXAMINED)
    over = [row for row in examined if row[4] is not None and row[4] <= now][:limit]
    for record_id, digest, aliases, has_more, _ in over:
        digests = (digest, *split_digests(aliases))
        for key in digests:
            connection.execute(SQL["delete_done"], (key, record_id))
        delete_record(connection, record_id, digests if has_more else ())
    last = over if len(over) == limit else examined if len(examined) == limit * EXAMINED else []
    connection.execute(SQL["set_purge_position"], (last[-1][0] if last else 0,))
    remaining = limit - len(over)
    abandoned = rows(connection, SQL["delete_abandoned"], now, remaining)
    connection.execute(SQL["delete_subjects"], (now, remaining))
    return len(over) + len(abandoned)


def delete_record(connection: apsw.Connection, record_id: int, digests: Iterable[bytes]) -> None:
    """Delete a record. With its digests, also its dead letter, attempt log, decision and inbox keys."""
    connection.execute(SQL["delete_record"], (record_id,))
    keys = [(digest, record_id) for digest in digests]
    if keys:
        for name in ("delete_dead_letter", "delete_attempt_log", "delete_decision"):
            connection.execute(SQL[name], (record_id,))
        write_many(connection, SQL["delete_inbox_keys"], keys)

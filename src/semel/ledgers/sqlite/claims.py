"""Claims, settlements, renewals and the purge, as functions of a connection inside an immediate transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, TypeAlias

import apsw

from semel.ledgers.sqlite.statements import SQL, Row, insert_many, rows, select_in
from semel.values.attempts import line
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.claim_rules import Grant, Known, State, Subject, judge
from semel.values.event import dump
from semel.values.key import split_digests
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.outcome_codec import DONE, decode_outcome, encode_outcome, storable

SWEEP = 10  # records examined for each key that a purge may delete: records that are not due are skipped

_FINAL = (Done, Reject, Uncertain)
_Ended: TypeAlias = dict[tuple[bytes, int], tuple[int, bytes | None, bytes | None]]

# ------------------------------------------------------------------------------------------------------------ claim


def claim(connection: apsw.Connection, claims: Sequence[Claim], now: int) -> list[Verdict]:
    """Read the stored state of all keys, decide, write the grants."""
    digests = [digest for claim in claims for digest in claim.digests]
    known = known_of(connection, digests)
    subjects = _subjects(connection, claims, known)
    ((token,),) = rows(connection, SQL["last_token"])
    verdicts, grants = judge(claims, known, subjects, now, count(token + 1).__next__)
    if grants:
        connection.execute(SQL["set_last_token"], (token + len(grants),))
        _write_grants(connection, grants)
    return verdicts


def touch(connection: apsw.Connection, now: int) -> None:
    """Write a row without meaning. Taking a lock succeeds on a full disk; writing a row does not."""
    connection.execute("insert or replace into semel_meta values ('touched', ?)", (now,))


def known_of(connection: apsw.Connection, digests: Sequence[bytes]) -> dict[bytes, Known]:
    """Return the settled, leased and waiting state of these keys."""
    found = select_in(connection, SQL["settled"], digests)
    known = {
        k: Known(token, State.SETTLED, expires, attempts, at, fp, outcome=decode_outcome(outcome, result))
        for k, expires, token, outcome, result, fp, attempts, at in found
    }
    _add_leases(connection, digests, known)
    return known


def _add_leases(connection: apsw.Connection, digests: Sequence[bytes], known: dict[bytes, Known]) -> None:
    found = select_in(connection, SQL["leases"], digests)
    for k, token, state, until, attempts, first, fp, suspect, attempt_log in found:
        known[k] = Known(token, State(state), until, attempts, first, fp, bool(suspect), attempt_log=attempt_log or b"")


def _subjects(connection: apsw.Connection, claims: Sequence[Claim], known: dict[bytes, Known]) -> dict[bytes, Subject]:
    wanted = list({claim.order.subject for claim in claims if claim.order is not None})
    if not wanted:
        return {}
    found = select_in(connection, SQL["subjects"], wanted)
    subjects = {k: Subject(newest, holder, token) for k, newest, holder, token in found}
    holders = [s.holder for s in subjects.values() if s.holder is not None and s.holder not in known]
    _add_leases(connection, holders, known)
    return subjects


def _write_grants(connection: apsw.Connection, grants: Sequence[Grant]) -> None:
    fresh: list[Row] = []
    attempt_log: list[Row] = []
    for grant in grants:
        known, claim = grant.known, grant.lease.claim
        for digest, replaced in zip(claim.digests, grant.replaced, strict=True):
            owner = None if digest == claim.digest else claim.digest
            if replaced is None:
                row = (
                    digest,
                    known.token,
                    1,
                    known.until_ms,
                    known.attempts,
                    known.first_ms,
                    known.suspect,
                    known.fingerprint,
                    claim.retention_ms,
                    claim.tenant,
                    claim.handler,
                    claim.text,
                    owner,
                )
                fresh.append(row)
                if known.attempt_log:
                    attempt_log.append((known.attempt_log, digest, known.token))
            else:
                _replace_lease(connection, digest, owner, replaced, known)
    insert_many(connection, SQL["add_leases"], fresh)
    for row in attempt_log:
        connection.execute(SQL["set_tried"], row)
    subjects = [
        (grant.lease.claim.order.subject, None, grant.lease.claim.digest, grant.lease.token, 0)
        for grant in grants
        if grant.lease.claim.order is not None
    ]
    insert_many(connection, SQL["hold_subjects"], subjects)


def _replace_lease(
    connection: apsw.Connection, digest: bytes, owner: bytes | None, replaced: int, known: Known
) -> None:
    connection.execute(
        SQL["replace_lease"],
        (
            *(known.token, known.until_ms, known.attempts, known.first_ms, known.fingerprint, int(known.suspect)),
            *(owner, known.attempt_log or None, digest, replaced),
        ),
    )
    if connection.changes() != 1:  # unreachable inside an immediate transaction; a broken store must not grant twice
        raise apsw.ConstraintError("a lease changed its holder while it was being granted")


# ----------------------------------------------------------------------------------------------------------- settle


def settle(connection: apsw.Connection, settlements: Sequence[Settlement], now: int) -> list[bool]:
    """End leases whose token is current. A final outcome moves the key from the hot table to the record."""
    final = [
        s
        for s in settlements
        if isinstance(s.outcome, _FINAL) and (not s.lease.claim.aliases or _has_all_keys(connection, s.lease))
    ]
    ended = _end_leases(connection, final)
    _write_records(connection, final, ended, now)
    return [
        # a second settlement of a token in the batch is not in `ended` any more: its outcome is compared
        (isinstance(s.outcome, _FINAL) and ended.pop((s.lease.claim.digest, s.lease.token), None) is not None)
        or _settle_one(connection, s, now)
        for s in settlements
    ]


def _end_leases(connection: apsw.Connection, final: Sequence[Settlement]) -> _Ended:
    """Delete the leases. Returns the attempts, the fingerprint and the attempt log of each (key, token) that was
    current."""
    ended = {
        (k, token): (attempts, fp, attempt_log)
        for k, token, attempts, fp, attempt_log in insert_many(
            connection, SQL["end_leases"], [(s.lease.claim.digest, s.lease.token) for s in final]
        )
    }
    aliases = [
        (alias.digest, s.lease.token)
        for s in final
        for alias in s.lease.claim.aliases
        if (s.lease.claim.digest, s.lease.token) in ended
    ]
    insert_many(connection, SQL["end_leases"], aliases)
    return ended


def _write_records(connection: apsw.Connection, final: Sequence[Settlement], ended: _Ended, now: int) -> None:
    records: list[Row] = []
    done: list[Row] = []
    written: set[int] = set()
    for settlement in final:
        lease = settlement.lease
        claim, token = lease.claim, lease.token
        lease_row = ended.get((claim.digest, token))
        if lease_row is None or token in written:
            continue
        written.add(token)
        attempts, fp, attempt_log = lease_row
        code, result = encode_outcome(settlement.outcome)
        if code != DONE:
            attempt_log = (attempt_log or b"") + line(attempts, now, reason_of(settlement.outcome))
        if attempt_log:
            connection.execute(SQL["add_tried"], (token, attempt_log))
        expires = swept = now + claim.retention_ms
        aliases = None
        if claim.aliases:
            aliases = b"".join([alias.digest for alias in claim.aliases])
            swept = max(swept, *[now + alias.retention_ms for alias in claim.aliases])  # an alias may outlive its key
        row = (
            token,
            claim.digest,
            aliases,
            code,
            result,
            fp,
            attempts,
            now,
            swept,
            claim.tenant,
            claim.handler,
            claim.text,
        )
        records.append(row)
        done.append((claim.digest, token, expires))
        if claim.aliases:
            done.extend([(alias.digest, token, now + alias.retention_ms) for alias in claim.aliases])
        if settlement.dead_letter is not None:
            dead_letter = settlement.dead_letter
            connection.execute(SQL["add_letter"], (token, dead_letter.event, dump(dead_letter.decode_options) or None))
        if claim.order is not None:
            _free_subject(connection, lease, now, applied=code == DONE)
    insert_many(connection, SQL["add_records"], records)
    insert_many(connection, SQL["add_done"], done)


def _settle_one(connection: apsw.Connection, settlement: Settlement, now: int) -> bool:
    """Settle an outcome that is not final, or a final one whose lease was not found: lost, or settled before."""
    lease, outcome = settlement.lease, settlement.outcome
    match outcome:
        case Retry():
            return _wait(connection, lease, outcome, now)
        case Release():
            return _release(connection, lease, now)
        case _:
            return _is_settled_alike(connection, lease, outcome)


def _is_settled_alike(connection: apsw.Connection, lease: Lease, outcome: Ending) -> bool:
    """True if the token settled before with this outcome: a lost reply was followed by a retry."""
    found = rows(connection, SQL["settled_under"], lease.token)
    return found == [(lease.claim.digest, *encode_outcome(outcome))]


def _wait(connection: apsw.Connection, lease: Lease, retry: Retry, now: int) -> bool:
    until, reason = now + round((retry.after or 0) * 1000), storable(retry.reason).decode()
    for attempts, before in rows(connection, SQL["attempt_log"], lease.claim.digest, lease.token):
        attempt_log = (before or b"") + line(attempts, now, retry.reason)
        if _on_each_key(connection, lease, SQL["wait"], until, reason, attempt_log):
            _free_subject(connection, lease, now, applied=False)
            return True
    return rows(connection, SQL["is_waiting"], lease.claim.digest, lease.token) != []


def _release(connection: apsw.Connection, lease: Lease, now: int) -> bool:
    """Undo the claim: a first attempt leaves nothing, a later one leaves its earlier attempts.

    A released lease cannot be settled, renewed or released again.
    """
    first, later = SQL["release_first"], SQL["release_later"]
    held = _on_each_key(connection, lease, first) or _on_each_key(connection, lease, later)
    if held:
        _free_subject(connection, lease, now, applied=False)
    return held


def _on_each_key(connection: apsw.Connection, lease: Lease, sql: str, *values: Any) -> bool:
    """Run a write that ends in `k = ? and token = ? …` for all keys of a lease; its own key decides the result."""
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


def _has_subject(connection: apsw.Connection, lease: Lease) -> bool:
    order = lease.claim.order
    return order is None or rows(connection, SQL["has_subject"], order.subject, lease.token) != []


def _free_subject(connection: apsw.Connection, lease: Lease, now: int, applied: bool) -> None:
    order = lease.claim.order
    if order is None:
        return
    until = now + lease.claim.retention_ms
    if applied:
        connection.execute(SQL["apply_position"], (order.subject, order.position, until))
    connection.execute(SQL["free_subject"], (until, order.subject, lease.token))


# ------------------------------------------------------------------------------------------------- renew and purge


def renew(connection: apsw.Connection, leases: Sequence[Lease], now: int) -> list[bool]:
    return [
        _has_subject(connection, lease) and _on_each_key(connection, lease, SQL["renew"], now + lease.claim.lease_ms)
        for lease in leases
    ]


def purge(connection: apsw.Connection, limit: int, now: int) -> int:
    """Delete keys whose retention is over. Live leases, suspect leases and undecided dead letters stay.

    Records are in order of time, so the oldest are due first. Handlers may have different retentions: the purge
    resumes where it stopped, examines a bounded number of records at a time, and starts over at the end.
    """
    ((swept,),) = rows(connection, SQL["last_swept"])
    examined = rows(connection, SQL["sweep"], swept, limit * SWEEP)
    over = [row for row in examined if row[4] is not None and row[4] <= now][:limit]
    for record, k, aliases, has_more, _ in over:
        for digest in (k, *split_digests(aliases)):
            connection.execute(SQL["forget_done"], (digest, record))
        connection.execute(SQL["forget_record"], (record,))
        if has_more:
            _forget_dead_letter(connection, record, (k, *split_digests(aliases)))
    last = over if len(over) == limit else examined if len(examined) == limit * SWEEP else []
    swept = last[-1][0] if last else 0
    connection.execute(SQL["set_last_swept"], (swept,))
    left = limit - len(over)
    abandoned = rows(connection, SQL["forget_abandoned"], now, left)
    connection.execute(SQL["forget_subjects"], (now, left))
    return len(over) + len(abandoned)


def _forget_dead_letter(connection: apsw.Connection, record: int, digests: Iterable[bytes]) -> None:
    """Delete a dead letter with its attempt log, its decision and its keys in the inbox."""
    connection.execute(SQL["forget_letter"], (record,))
    connection.execute(SQL["forget_tried"], (record,))
    connection.execute(SQL["forget_decision"], (record,))
    for digest in digests:
        connection.execute(SQL["forget_key"], (digest, record))


def reason_of(outcome: Ending) -> str:
    """Return why an attempt failed; empty for a success."""
    return outcome.reason if isinstance(outcome, (Retry, Reject, Uncertain)) else ""

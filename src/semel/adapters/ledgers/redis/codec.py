"""Batches as arguments of the scripts, and their answers as values. The layouts are drawn in lua/*.lua."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Any

from semel.adapters.ledgers.redis.placement import LETTERS, RECORD, SUBJECT, Places
from semel.adapters.ledgers.redis.resp import END, length_of, script_call
from semel.adapters.ledgers.redis.scripts import SCRIPTS
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Settlement, Stale, Verdict
from semel.values.outcome import NOTHING, Done, Ending, Final, Reject, Release, Retry, Uncertain
from semel.values.tried import cut

TEXT_MAX_BYTES = 4096  # of a key's text, which is for people
OFFSET = 2**63  # positions are sent without a sign
TOKEN_BYTES = 7
LAYOUTS_MAX = 1024
TOKEN_BITS = 11  # of each millisecond

RETRY, DONE_NULL, DEAD, UNCERTAIN, DONE, RELEASE = 2, 3, 4, 5, 6, 7
PRINT, ORDER, DOUBT = 1, 2, 4  # flags of a claim
HAS_ORDER, HAS_LETTER = 1, 2  # flags of a settlement

_CLAIM = Layout(">HH")
_ROUTE = Layout(">BBBH")
_GRANTED = Layout(">7sHB6s")
_SETTLED = Layout(">BI")


class Times:
    """What every script is told about time: nothing, as it asks its server; or, in tests, the time of a clock."""

    def __init__(self, now: bytes, grace_ms: int) -> None:
        self.now = now
        self.grace = b"%d" % grace_ms


def six(number: int) -> bytes:
    return number.to_bytes(6, "big")


def seven(token: int) -> bytes:
    return token.to_bytes(TOKEN_BYTES, "big")


# ------------------------------------------------------------------------------------------------------------ claim


def pack_claims(
    places: Places, claims: Sequence[Claim], bucket: int, nonce: bytes, times: Times, strict: bytes
) -> bytes:
    """One call of claim.lua. `bucket`: the tag that all keys of the batch have; in a Cluster only."""
    profiles: dict[tuple[int, int, str, str], tuple[int, bytes, bytes]] = {}  # number, routes with and without print
    keys = [places.counters[bucket] if places.in_cluster else places.counter]
    arguments: list[bytes] = []
    routes: list[bytes] = []
    records = places.spread_records if places.spreads_all else None
    for at, claim in enumerate(claims):
        digest, fingerprint = claim.digest, claim.fingerprint
        mine = (claim.lease_ms, claim.retention_ms, claim.tenant, claim.handler)
        profile = profiles.get(mine)
        if profile is None:
            number = len(profiles)
            profile = profiles[mine] = (number, bytes((number, PRINT, 0)), bytes((number, 0, 0)))
        keys.append(records[digest[0]] + digest if records is not None else places.record(claim, digest))
        text = claim.text.encode(errors="replace")
        size = len(text)
        if size > TEXT_MAX_BYTES:
            text = text[:TEXT_MAX_BYTES].decode(errors="ignore").encode()
            size = len(text)
        if claim.order is None and not claim.aliases:
            if fingerprint is not None:
                layout, front = PRINTED_CLAIMS[size]
                arguments.append(layout.pack(front, at, 1, fingerprint, size, text, END))
                routes.append(profile[1])
            else:
                layout, front = PLAIN_CLAIMS[size]
                arguments.append(layout.pack(front, at, 1, size, text, END))
                routes.append(profile[2])
        else:
            flags, data = _with_more_keys(places, claim, at, text, keys)
            routes.append(bytes((profile[0], flags, len(claim.aliases))))
            arguments.append(length_of(data) + data + END)
    step, residue = (b"16", b"%d" % bucket) if places.in_cluster else (b"1", b"0")
    simple = b"1" if claims and len(keys) == len(claims) + 1 == len(set(keys)) else b"0"
    head = [times.now, step, residue, times.grace, nonce, strict, simple, b"".join(routes), b"%d" % len(profiles)]
    for lease_ms, retention_ms, tenant, handler in profiles:
        head.append(six(lease_ms) + six(retention_ms) + _counted(_text(tenant)) + _counted(_text(handler)))
    return script_call(SCRIPTS["claim"].sha, keys, head, arguments)


class _Layouts(dict[int, tuple[Layout, bytes]]):
    """One call of `pack` for a whole argument; most texts of a handler have the same length."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self._parts = parts

    def __missing__(self, size: int) -> tuple[Layout, bytes]:
        parts = f"{self._parts}H{size}s"
        head = b"$%d\r\n" % Layout(f">{parts}").size
        made = (Layout(f">{len(head)}s{parts}2s"), head)
        if len(self) < LAYOUTS_MAX:
            self[size] = made
        return made


PRINTED_CLAIMS, PLAIN_CLAIMS = _Layouts("HH16s"), _Layouts("HH")


def _with_more_keys(places: Places, claim: Claim, at: int, text: bytes, keys: list[bytes]) -> tuple[int, bytes]:
    keys += [places.record(claim, alias.digest) for alias in claim.aliases]
    flags = PRINT if claim.fingerprint is not None else 0
    position = b""
    if claim.order is not None:
        keys.append(places.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
        position = (claim.order.position + OFFSET).to_bytes(8, "big")
        flags |= ORDER | (DOUBT if claim.doubt_first else 0)
    return flags, _CLAIM.pack(at, 1) + position + (claim.fingerprint or b"") + _counted(text)


def _text(words: str) -> bytes:
    return words.encode(errors="replace")[:0xFFFF]


def _counted(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def unpack_verdicts(answer: bytes, claims: Sequence[Claim], step: int) -> list[Verdict]:
    if len(answer) == 1 + TOKEN_BYTES and answer[0] & 7 == 1 and len(claims) >= 1:
        token = int.from_bytes(answer[1:], "big") - step  # all were granted for the first time
        return [Granted(Lease(claim, token := token + step), 1, False, 0) for claim in claims]
    verdicts: list[Verdict] = []
    at = 0
    for claim in claims:
        code = answer[at]
        at += 1
        if code & 0b11001111 == 1:  # the head of a fresh record
            verdicts.append(Granted(Lease(claim, int.from_bytes(answer[at : at + 7], "big")), 1, False, 0))
            at += 7
        elif code == 83:  # S
            state, size = _SETTLED.unpack_from(answer, at)
            at += 5 + size
            verdicts.append(Settled(final(state, answer[at - size : at])))
        elif code == 66:  # B
            verdicts.append(Busy(int.from_bytes(answer[at : at + 6], "big")))
            at += 6
        elif code == 71:  # G
            token, attempts, takeover, age = _GRANTED.unpack_from(answer, at)
            lease = Lease(claim, int.from_bytes(token, "big"))
            verdicts.append(Granted(lease, attempts, bool(takeover), int.from_bytes(age, "big")))
            at += 16
        elif code == 84:  # T
            verdicts.append(Stale(int.from_bytes(answer[at : at + 8], "big") - OFFSET))
            at += 8
        else:
            verdicts.append(Conflict())
    return verdicts


def final(state: int, payload: bytes) -> Final:
    match state:
        case 3:
            return NOTHING
        case 6:
            return Done(payload)
        case 4:
            return Reject(payload.decode())
        case _:
            return Uncertain(payload.decode())


# ----------------------------------------------------------------------------------------------------------- settle


def pack_settlements(
    places: Places, settlements: Sequence[Settlement], bucket: int, times: Times, strict: bytes, letter: Any
) -> bytes:
    """One call of settle.lua. `letter` makes what is kept of a dead or uncertain event."""
    retentions: dict[int, int] = {}
    keys = [places.counters[bucket] if places.in_cluster else places.counter]
    arguments: list[bytes] = []
    routes: list[bytes] = []
    records = places.spread_records if places.spreads_all else None
    for settlement in settlements:
        lease, outcome = settlement.lease, settlement.outcome
        token, claim = lease.token, lease.claim
        digest = claim.digest
        retention = retentions.get(claim.retention_ms)
        if retention is None:
            retention = retentions[claim.retention_ms] = len(retentions)
        keys.append(records[digest[0]] + digest if records is not None else places.record(claim, digest))
        several = claim.order is not None or claim.aliases
        if outcome is NOTHING and not several:
            arguments.append(b"$7\r\n" + token.to_bytes(TOKEN_BYTES, "big") + END)
            routes.append(_ROUTE.pack(DONE_NULL, 0, 0, retention))
            continue
        kind, payload = _ending(outcome)
        flags, more = _more_keys_of(places, claim, retentions, keys) if several else (0, b"")
        kept = None
        if kind in (DEAD, UNCERTAIN):
            kept = letter(settlement, kind)
            place = places.head(claim, digest)
            keys += (place + LETTERS + digest, place + (b"dead" if kind == DEAD else b"uncertain"))
            flags |= HAS_LETTER
        routes.append(_ROUTE.pack(kind, flags, len(claim.aliases), retention))
        data = seven(token) + more + payload
        arguments.append(length_of(data) + data + END)
        if kept is not None:
            arguments.append(length_of(kept) + kept + END)
    simple = b"1" if len(keys) == len(settlements) + 1 == len(set(keys)) else b"0"
    head = [times.now, times.grace, strict, simple, b"".join(routes), b"%d" % len(retentions)]
    head += [b"%d" % ms for ms in retentions]
    return script_call(SCRIPTS["settle"].sha, keys, head, arguments)


def _more_keys_of(places: Places, claim: Claim, retentions: dict[int, int], keys: list[bytes]) -> tuple[int, bytes]:
    keys += [places.record(claim, alias.digest) for alias in claim.aliases]
    numbers = [retentions.setdefault(alias.retention_ms, len(retentions)) for alias in claim.aliases]
    more = b"".join([number.to_bytes(2, "big") for number in numbers])
    if claim.order is None:
        return 0, more
    keys.append(places.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
    return HAS_ORDER, more + (claim.order.position + OFFSET).to_bytes(8, "big")


def _ending(outcome: Ending) -> tuple[int, bytes]:
    if outcome is NOTHING:  # most handlers return nothing
        return DONE_NULL, b""
    match outcome:
        case Done(result):
            return (DONE_NULL, b"") if result == b"null" else (DONE, result)
        case Retry():
            return RETRY, six(round((outcome.after or 0) * 1000)) + cut(outcome.reason)
        case Reject():
            return DEAD, storable(outcome.reason)
        case Uncertain(reason):
            return UNCERTAIN, storable(reason)
        case Release():
            return RELEASE, b""


def storable(text: str) -> bytes:
    """Words of a person or of an exception: half a character in them must not keep a settle from being written."""
    return text.encode(errors="replace")


# ------------------------------------------------------------------------------------------------------------ renew


def pack_renewals(places: Places, leases: Sequence[Lease], bucket: int, times: Times, strict: bytes) -> bytes:
    keys = [places.counters[bucket] if places.in_cluster else places.counter]
    arguments: list[bytes] = []
    for lease in leases:
        claim = lease.claim
        keys.append(places.head(claim, claim.digest) + RECORD + claim.digest)
        keys += [places.record(claim, alias.digest) for alias in claim.aliases]
        if claim.order is not None:
            keys.append(places.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
        data = seven(lease.token) + six(claim.lease_ms) + six(claim.retention_ms)
        data += bytes((len(claim.aliases), claim.order is not None))
        arguments.append(length_of(data) + data + END)
    return script_call(SCRIPTS["renew"].sha, keys, [times.now, times.grace, strict], arguments)


def unpack_answers(answer: bytes) -> list[bool]:
    if b"0" not in answer:
        return [True] * len(answer)
    return [code == 49 for code in answer]  # "1"

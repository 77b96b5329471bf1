"""Encodes batches as arguments of the Lua scripts and decodes their replies. lua/*.lua documents the layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha1
from importlib.resources import files
from struct import Struct as Layout

from msgspec import Struct

from semel.ledgers.redis.placement import DEAD_LETTERS, RECORD, SUBJECT, KeyNames
from semel.values.attempts import cut
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Settlement, Stale, Verdict
from semel.values.outcome import NOTHING, Done, Ending, Final, Reject, Release, Retry, Uncertain

# Commands are packed here as RESP bytes: packing by the client library costs more than running the script.

END = b"\r\n"
LENGTHS = [b"$%d\r\n" % length for length in range(1024)]


def length_of(part: bytes) -> bytes:
    size = len(part)
    return LENGTHS[size] if size < 1024 else b"$%d\r\n" % size


def command(*parts: bytes | str | int) -> bytes:
    """Pack one command."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        out += (length_of(data), data, END)
    return b"".join(out)


def script_call(sha: bytes, keys: Sequence[bytes], head: Iterable[bytes], arguments: Sequence[bytes]) -> bytes:
    """Pack EVALSHA. `arguments` already have their length and end."""
    front = list(head)
    parts = 3 + len(keys) + len(front) + len(arguments)
    count = b"%d" % len(keys)
    return b"".join(
        [
            b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n" % (parts, sha, len(count), count),
            *[LENGTHS[len(key)] + key + END for key in keys],
            *[argument(part) for part in front],
            *arguments,
        ]
    )


def argument(part: bytes) -> bytes:
    return length_of(part) + part + END


NAMES = ("claim", "settle", "renew", "purge", "decide", "undo")


class Script(Struct, frozen=True):
    source: bytes
    sha: bytes  # 40 hexadecimal digits


def _read(name: str) -> bytes:
    return files(__package__).joinpath("lua", f"{name}.lua").read_bytes()


def _script(name: str) -> Script:
    source = _read("record") + b"\n" + _read(name)
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


SCRIPTS = {name: _script(name) for name in NAMES}


TEXT_MAX_BYTES = 4096  # of a key's text, which is only displayed
OFFSET = 2**63  # positions are sent unsigned
TOKEN_BYTES = 7
LAYOUTS_MAX = 1024
TOKEN_BITS = 11  # of each millisecond

RETRY, DONE_NULL, DEAD, UNCERTAIN, DONE, RELEASE = 2, 3, 4, 5, 6, 7
FINGERPRINT, ORDER, DOUBT = 1, 2, 4  # flags of a claim
HAS_ORDER, HAS_DEAD_LETTER = 1, 2  # flags of a settlement

_CLAIM = Layout(">HH")
_ROUTE = Layout(">BBBH")
_GRANTED = Layout(">7sHB6s")
_SETTLED = Layout(">BI")


class Times:
    """The time arguments of every script: empty, because the script reads the server's time, or a test's clock."""

    def __init__(self, now: bytes, grace_ms: int) -> None:
        self.now = now
        self.grace = b"%d" % grace_ms


def six(number: int) -> bytes:
    return number.to_bytes(6, "big")


def seven(token: int) -> bytes:
    return token.to_bytes(TOKEN_BYTES, "big")


# ------------------------------------------------------------------------------------------------------------ claim


def pack_claims(
    names: KeyNames, claims: Sequence[Claim], bucket: int, nonce: bytes, times: Times, strict: bytes
) -> bytes:
    """Pack one call of claim.lua. `bucket` is the tag of all its keys, in a Cluster only."""
    profiles: dict[tuple[int, int, str, str], tuple[int, bytes, bytes]] = {}  # number, two routes
    keys = [names.counters[bucket] if names.in_cluster else names.counter]
    arguments: list[bytes] = []
    routes: list[bytes] = []
    records = names.spread_records if names.spreads_all else None
    for at, claim in enumerate(claims):
        digest, fingerprint = claim.digest, claim.fingerprint
        settings = (claim.lease_ms, claim.retention_ms, claim.tenant, claim.handler)
        profile = profiles.get(settings)
        if profile is None:
            number = len(profiles)
            profile = profiles[settings] = (number, bytes((number, FINGERPRINT, 0)), bytes((number, 0, 0)))
        keys.append(records[digest[0]] + digest if records is not None else names.record(claim, digest))
        text = claim.text.encode(errors="replace")
        size = len(text)
        if size > TEXT_MAX_BYTES:
            text = text[:TEXT_MAX_BYTES].decode(errors="ignore").encode()
            size = len(text)
        if claim.order is None and not claim.aliases:
            if fingerprint is not None:
                layout, front = FINGERPRINTED_CLAIMS[size]
                arguments.append(layout.pack(front, at, 1, fingerprint, size, text, END))
                routes.append(profile[1])
            else:
                layout, front = PLAIN_CLAIMS[size]
                arguments.append(layout.pack(front, at, 1, size, text, END))
                routes.append(profile[2])
        else:
            flags, data = _with_more_keys(names, claim, at, text, keys)
            routes.append(bytes((profile[0], flags, len(claim.aliases))))
            arguments.append(argument(data))
    step, residue = (b"16", b"%d" % bucket) if names.in_cluster else (b"1", b"0")
    simple = b"1" if claims and len(keys) == len(claims) + 1 == len(set(keys)) else b"0"
    head = [times.now, step, residue, times.grace, nonce, strict, simple, b"".join(routes), b"%d" % len(profiles)]
    for lease_ms, retention_ms, tenant, handler in profiles:
        head.append(six(lease_ms) + six(retention_ms) + _counted(_text(tenant)) + _counted(_text(handler)))
    return script_call(SCRIPTS["claim"].sha, keys, head, arguments)


class _Layouts(dict[int, tuple[Layout, bytes]]):
    """Layouts by text size, so that one `pack` builds a whole argument. Most texts of a handler have the same size."""

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


FINGERPRINTED_CLAIMS, PLAIN_CLAIMS = _Layouts("HH16s"), _Layouts("HH")


def _with_more_keys(names: KeyNames, claim: Claim, at: int, text: bytes, keys: list[bytes]) -> tuple[int, bytes]:
    keys += [names.record(claim, alias.digest) for alias in claim.aliases]
    flags = FINGERPRINT if claim.fingerprint is not None else 0
    position = b""
    if claim.order is not None:
        keys.append(names.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
        position = (claim.order.position + OFFSET).to_bytes(8, "big")
        flags |= ORDER | (DOUBT if claim.doubt_first else 0)
    return flags, _CLAIM.pack(at, 1) + position + (claim.fingerprint or b"") + _counted(text)


def _text(text: str) -> bytes:
    return text.encode(errors="replace")[:0xFFFF]


def _counted(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def unpack_verdicts(reply: bytes, claims: Sequence[Claim], step: int) -> list[Verdict]:
    if len(reply) == 1 + TOKEN_BYTES and reply[0] & 7 == 1 and len(claims) >= 1:
        token = int.from_bytes(reply[1:], "big") - step  # all claims are first grants
        return [Granted(Lease(claim, token := token + step), 1, False, 0) for claim in claims]
    verdicts: list[Verdict] = []
    at = 0
    for claim in claims:
        code = reply[at]
        at += 1
        if code & 0b11001111 == 1:  # the head of a fresh record
            verdicts.append(Granted(Lease(claim, int.from_bytes(reply[at : at + 7], "big")), 1, False, 0))
            at += 7
        elif code == 83:  # S
            state, size = _SETTLED.unpack_from(reply, at)
            at += 5 + size
            verdicts.append(Settled(final(state, reply[at - size : at])))
        elif code == 66:  # B
            verdicts.append(Busy(int.from_bytes(reply[at : at + 6], "big")))
            at += 6
        elif code == 71:  # G
            token, attempts, takeover, age = _GRANTED.unpack_from(reply, at)
            lease = Lease(claim, int.from_bytes(token, "big"))
            verdicts.append(Granted(lease, attempts, bool(takeover), int.from_bytes(age, "big")))
            at += 16
        elif code == 84:  # T
            verdicts.append(Stale(int.from_bytes(reply[at : at + 8], "big") - OFFSET))
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
    names: KeyNames,
    settlements: Sequence[Settlement],
    bucket: int,
    times: Times,
    strict: bytes,
    pack_dead_letter: Callable[[Settlement, int], bytes],
) -> bytes:
    """Pack one call of settle.lua."""
    retentions: dict[int, int] = {}
    keys = [names.counters[bucket] if names.in_cluster else names.counter]
    arguments: list[bytes] = []
    routes: list[bytes] = []
    records = names.spread_records if names.spreads_all else None
    for settlement in settlements:
        lease, outcome = settlement.lease, settlement.outcome
        token, claim = lease.token, lease.claim
        digest = claim.digest
        retention = retentions.get(claim.retention_ms)
        if retention is None:
            retention = retentions[claim.retention_ms] = len(retentions)
        keys.append(records[digest[0]] + digest if records is not None else names.record(claim, digest))
        several = claim.order is not None or claim.aliases
        if outcome is NOTHING and not several:
            arguments.append(b"$7\r\n" + token.to_bytes(TOKEN_BYTES, "big") + END)
            routes.append(_ROUTE.pack(DONE_NULL, 0, 0, retention))
            continue
        kind, payload = _ending(outcome)
        flags, more = _alias_and_subject_keys(names, claim, retentions, keys) if several else (0, b"")
        dead_letter = None
        if kind in (DEAD, UNCERTAIN):
            dead_letter = pack_dead_letter(settlement, kind)
            head = names.head(claim, digest)
            keys += (head + DEAD_LETTERS + digest, head + (b"dead" if kind == DEAD else b"uncertain"))
            flags |= HAS_DEAD_LETTER
        routes.append(_ROUTE.pack(kind, flags, len(claim.aliases), retention))
        data = seven(token) + more + payload
        arguments.append(argument(data))
        if dead_letter is not None:
            arguments.append(argument(dead_letter))
    simple = b"1" if len(keys) == len(settlements) + 1 == len(set(keys)) else b"0"
    front = [times.now, times.grace, strict, simple, b"".join(routes), b"%d" % len(retentions)]
    front += [b"%d" % ms for ms in retentions]
    return script_call(SCRIPTS["settle"].sha, keys, front, arguments)


def _alias_and_subject_keys(
    names: KeyNames, claim: Claim, retentions: dict[int, int], keys: list[bytes]
) -> tuple[int, bytes]:
    keys += [names.record(claim, alias.digest) for alias in claim.aliases]
    numbers = [retentions.setdefault(alias.retention_ms, len(retentions)) for alias in claim.aliases]
    more = b"".join([number.to_bytes(2, "big") for number in numbers])
    if claim.order is None:
        return 0, more
    keys.append(names.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
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
    """Encode a text of an operator or an exception. A lone surrogate must not prevent a settle."""
    return text.encode(errors="replace")


# ------------------------------------------------------------------------------------------------------------ renew


def pack_renewals(names: KeyNames, leases: Sequence[Lease], bucket: int, times: Times, strict: bytes) -> bytes:
    keys = [names.counters[bucket] if names.in_cluster else names.counter]
    arguments: list[bytes] = []
    for lease in leases:
        claim = lease.claim
        keys.append(names.head(claim, claim.digest) + RECORD + claim.digest)
        keys += [names.record(claim, alias.digest) for alias in claim.aliases]
        if claim.order is not None:
            keys.append(names.head(claim, claim.order.subject) + SUBJECT + claim.order.subject)
        data = seven(lease.token) + six(claim.lease_ms) + six(claim.retention_ms)
        data += bytes((len(claim.aliases), claim.order is not None))
        arguments.append(argument(data))
    return script_call(SCRIPTS["renew"].sha, keys, [times.now, times.grace, strict], arguments)


def unpack_answers(reply: bytes) -> list[bool]:
    if b"0" not in reply:
        return [True] * len(reply)
    return [code == 49 for code in reply]  # "1"

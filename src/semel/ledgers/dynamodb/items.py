"""The items of the table, and their conversion from and to values. The keys of the table are binary:

    pk                   sk           item
    digest of a key      k            the key: its lease or its outcome; for an alias a copy with `owner`
    digest of a key      l + token    a dead letter: a dead or uncertain event, until its retention after a decision
    digest of a subject  s            the newest applied position, and the lease that holds the subject

`token` and `version` (incremented by every change) identify the version of an item. `until_ms` is the logical end of
its state and is checked on every read. `expires_ms` is the time after which the item is not needed any more; `ttl` is
the same for DynamoDB's time to live, in seconds and never earlier. Both are written together with the value they belong
to. Leases, live or expired, have neither: they wait for the next claim. Undecided dead letters have neither: they wait
for an operator.

`attempt_log` lists the failed attempts as [at_ms, reason] and, once another attempt was granted, its number. A settle
appends to it without reading; until the next grant the number is the item's own `attempts`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from semel.ledgers.dynamodb.expressions import Appended, Item, storable
from semel.ports import Entry
from semel.values.attempts import FailedAttempt, cut, line
from semel.values.attempts import load as load_attempts
from semel.values.claim import Claim, Settlement
from semel.values.claim_rules import KeyRecord, KeyState, Subject
from semel.values.event import dump as dump_decode_options
from semel.values.outcome import NOTHING, Done, Ending, Final, Reject, Uncertain

KEY, SUBJECT, DEAD_LETTER = b"k", b"s", b"l"
FREE = 0  # the state of an unknown key: only its last token and its generation are kept
DONE, DEAD, UNCERTAIN = 1, 2, 3
ENDINGS = {DEAD: "dead", UNCERTAIN: "uncertain"}

SHARDS = 4  # of the index of dead letters: one partition of an index takes about a thousand writes a second
REASON_MAX = 8_000  # characters; an item holds 400 KB in all
KEY_TEXT_MAX = 2_000
EVENT_MAX = 300_000  # bytes, which leaves space for the other attributes of a dead letter
COMPRESS_FROM = 64_000  # bytes; a smaller event is stored as it is

_CODES: dict[type, int] = {Done: DONE, Reject: DEAD, Uncertain: UNCERTAIN}


def key_of(digest: bytes) -> Item:
    return {"pk": digest, "sk": KEY}


def subject_of(digest: bytes) -> Item:
    return {"pk": digest, "sk": SUBJECT}


def dead_letter_of(digest: bytes, token: int) -> Item:
    return {"pk": digest, "sk": DEAD_LETTER + token.to_bytes(8, "big")}


def version(item: Item) -> dict[str, Any]:
    """The attributes that must not have changed since an item was read."""
    return {"token": item["token"], "version": item["version"]}


def digests_of(claim: Claim) -> tuple[bytes, ...]:
    """All keys of a claim, its own first, without repetition: a transaction may write each item once."""
    return tuple(dict.fromkeys([claim.digest, *[alias.digest for alias in claim.aliases]]))


def expiry(expires_ms: int, now_ms: int) -> dict[str, int]:
    """The end of an item. DynamoDB deletes it later than that, and never while its token is needed."""
    return {"expires_ms": expires_ms, "ttl": max(expires_ms, now_ms + TOKEN_KEPT_MS) // 1000 + 1}


# ------------------------------------------------------------------------------------------------------------- keys


def known_of(item: Item | None, margin_ms: int) -> KeyRecord | None:
    """The state of a key. A lease expires `margin_ms` after its end, because its holder's clock may be behind."""
    if item is None or item["state"] == FREE:
        return None
    state = KeyState(item["state"])
    return KeyRecord(
        token=item["token"],
        state=state,
        until_ms=item["until_ms"] + (margin_ms if state is KeyState.LEASED and item["until_ms"] else 0),
        attempts=item["attempts"],
        first_ms=item["first_ms"],
        fingerprint=item.get("fingerprint"),
        suspect=item.get("suspect", False),
        outcome=outcome_of(item) if state is KeyState.SETTLED else None,
        attempt_log=b"".join([line(failed.attempt, failed.at_ms, failed.reason) for failed in attempt_log_of(item)]),
    )


def attempt_log_of(item: Item) -> tuple[FailedAttempt, ...]:
    return tuple(
        [
            FailedAttempt(number[0] if number else item["attempts"], at_ms, reason)
            for at_ms, reason, *number in item.get("attempt_log", ())
        ]
    )


def dump_attempt_log(attempt_log: Iterable[FailedAttempt]) -> list[Any] | None:
    return [[failed.at_ms, failed.reason, failed.attempt] for failed in attempt_log] or None


def leased(digest: bytes, claim: Claim, known: KeyRecord, nonce: bytes, old: Item | None, now_ms: int) -> Item:
    """The item of a key that is being granted."""
    return {
        **key_of(digest),
        "token": known.token,
        "version": 1 if old is None else old["version"] + 1,
        "state": int(KeyState.LEASED),
        "until_ms": known.until_ms,
        "attempts": known.attempts,
        "first_ms": known.first_ms,
        "fingerprint": known.fingerprint,
        "suspect": known.suspect or None,
        "handler": claim.handler,
        "key_text": claim.text[:KEY_TEXT_MAX],
        "tenant": claim.tenant,
        "at_ms": now_ms,
        "retention_ms": claim.retention_ms,
        "owner": None if digest == claim.digest else claim.digest,
        "aliases": (list(digests_of(claim)[1:]) or None) if digest == claim.digest else None,
        "nonce": nonce,
        "generation": None if old is None else old.get("generation"),
        "attempt_log": dump_attempt_log(load_attempts(known.attempt_log)),
    }


def settled(outcome: Final, retention_ms: int, now_ms: int) -> Item:
    """The changes of a key by a final outcome."""
    code, result = dump_outcome(outcome)
    until_ms = now_ms + retention_ms
    dead_letter = {} if code == DONE else {"attempt_log": None}  # its dead letter has the attempt log
    return {
        "state": int(KeyState.SETTLED),
        "outcome": code,
        "result": result if code == DONE else None,
        "reason": result if code != DONE else None,
        "until_ms": until_ms,
        "at_ms": now_ms,
        "nonce": None,
        **dead_letter,
        **expiry(until_ms, now_ms),
    }


def waiting(after_s: float | None, reason: str, retention_ms: int, now_ms: int) -> Item:
    """The changes of a key by a retry. If it is never claimed again, it expires a retention after it was due."""
    until_ms = now_ms + round((after_s or 0) * 1000)
    return {
        "state": int(KeyState.WAITING),
        "until_ms": until_ms,
        "reason": shorten(reason),
        "at_ms": now_ms,
        "attempt_log": Appended([now_ms, cut(reason).decode()]),
        **expiry(until_ms + retention_ms, now_ms),
    }


def freed(item: Item, now_ms: int, generation: int | None = None) -> Item:
    """An unknown key whose last token is kept. The token is incremented, so that no lease has it."""
    return {
        "pk": item["pk"],
        "sk": item["sk"],
        "token": item["token"] + 1,
        "version": item["version"] + 1,
        "state": FREE,
        "at_ms": now_ms,
        "generation": item.get("generation") if generation is None else generation,
        **expiry(now_ms + TOKEN_KEPT_MS, now_ms),
    }


def released(item: Item, now_ms: int) -> Item:
    """The key as it was before its last claim: unknown after a first attempt, else with its earlier attempts.

    A retry of the same release finds the attribute `released`."""
    if item["attempts"] == 1:
        return freed(item, now_ms) | {"released": True}
    suspect = item.get("suspect", False)
    earlier = {
        **item,
        "token": item["token"] + 1,
        "version": item["version"] + 1,
        "state": int(KeyState.LEASED if suspect else KeyState.WAITING),
        "until_ms": 0,
        "attempts": item["attempts"] - 1,
        "at_ms": now_ms,
        "nonce": None,
        "released": True,
    }
    if suspect:
        return earlier
    # due at once, so it expires a retention after time 0: a purge may delete it now, DynamoDB deletes it later
    return earlier | expiry(now_ms + item["retention_ms"], now_ms) | {"expires_ms": item["retention_ms"]}


def dump_outcome(outcome: Ending) -> tuple[int, Any]:
    match outcome:
        case Done(result):
            return DONE, None if result == b"null" else result
        case Reject() | Uncertain():
            return _CODES[type(outcome)], shorten(outcome.reason)
    raise TypeError(f"{outcome!r} is not a final outcome")


def outcome_of(item: Item) -> Final:
    match item["outcome"]:
        case 1:
            return Done(item["result"]) if "result" in item else NOTHING
        case 2:
            return Reject(item["reason"])
        case _:
            return Uncertain(item["reason"])


def shorten(reason: str) -> str:
    """Limit the length of a reason, which must not make the item too large."""
    return storable(reason if len(reason) <= REASON_MAX else reason[: REASON_MAX - 1] + "…")


# ---------------------------------------------------------------------------------------------------------- subjects


def subject_known(item: Item) -> Subject:
    return Subject(item.get("newest"), item.get("holder"), item["token"])


def holder_of(item: Item, margin_ms: int) -> KeyRecord | None:
    """The lease that holds a subject. Its end is stored in the key and in the subject, and both change together."""
    if "holder" not in item:
        return None
    return KeyRecord(item["token"], KeyState.LEASED, item["held_until_ms"] + margin_ms, 1, 0, None)


def held_subject(claim: Claim, token: int, until_ms: int, old: Item | None) -> Item:
    """The subject of a claim that is being granted. `kept_until_ms` keeps its earlier expiry."""
    assert claim.order is not None
    return {
        **subject_of(claim.order.subject),
        "token": token,
        "version": 1 if old is None else old["version"] + 1,
        "newest": None if old is None else old.get("newest"),
        "holder": claim.digest,
        "held_until_ms": until_ms,
        "kept_until_ms": None if old is None else old.get("kept_until_ms"),
    }


def settled_subject(claim: Claim, token: int, old: Item | None, now_ms: int, applied: bool) -> Item | None:
    """The subject after its event is settled, or None if it does not change."""
    assert claim.order is not None
    is_holder = old is not None and old["token"] == token
    if not (applied or is_holder):
        return None
    item: Item = {"token": 0, "version": 0, **subject_of(claim.order.subject)} if old is None else dict(old)
    if applied:
        item["newest"] = max(item.get("newest", claim.order.position), claim.order.position)
    if is_holder:
        item["holder"] = item["held_until_ms"] = None
    item["kept_until_ms"] = max(item.get("kept_until_ms") or 0, now_ms + claim.retention_ms)
    item["version"] += 1
    return item if item.get("holder") else item | expiry(item["kept_until_ms"], now_ms)


# ------------------------------------------------------------------------------------------------------ dead letters


def new_dead_letter(settlement: Settlement, key: Item, now_ms: int) -> Item:
    """The dead letter of a settlement. `key` is the item of the key, which is still leased."""
    claim, kept = settlement.lease.claim, settlement.dead_letter
    code, reason = dump_outcome(settlement.outcome)
    event, compressed, note = _compress(kept.event if kept is not None else None)
    return {
        **dead_letter_of(claim.digest, settlement.lease.token),
        "token": settlement.lease.token,
        "version": 1,
        "dead_letter": shard(ENDINGS[code], claim.digest),
        "ended_as": ENDINGS[code],
        "reason": f"{reason} {note}".strip(),
        "handler": claim.handler,
        "key_text": claim.text[:KEY_TEXT_MAX],
        "tenant": claim.tenant,
        "attempts": key["attempts"],
        "at_ms": now_ms,
        "generation": key.get("generation"),
        "retention_ms": claim.retention_ms,
        "aliases": [alias.digest for alias in claim.aliases] or None,
        "event": event,
        "compressed": compressed or None,
        "decode_options": (dump_decode_options(kept.decode_options) or None) if kept is not None else None,
        "attempt_log": dump_attempt_log(
            [*attempt_log_of(key), FailedAttempt(key["attempts"], now_ms, cut(reason).decode())]
        ),
    }


def done_before(key: Item, now_ms: int) -> Item:
    """The history of a done key that is replayed by force. `key` is its item, which is still settled."""
    details = {
        name: key.get(name)
        for name in (
            "token",
            "handler",
            "key_text",
            "tenant",
            "attempts",
            "at_ms",
            "generation",
            "retention_ms",
            "attempt_log",
        )
    }
    return {
        **dead_letter_of(key["pk"], key["token"]),
        **details,
        "version": 1,
        "ended_as": "done",
        "reason": "",
        "result": key.get("result", b"null"),
        **expiry(now_ms + key["retention_ms"], now_ms),
    }


def shard(state: str, digest: bytes) -> str:
    return f"{state}/{digest[0] % SHARDS}"


def shards(state: str) -> list[str]:
    return [f"{state}/{number}" for number in range(SHARDS)]


def _compress(event: bytes | None) -> tuple[bytes | None, bool, str]:
    """An event that fits into an item: unchanged, compressed, or truncated with a note."""
    if event is None or len(event) <= COMPRESS_FROM:
        return event, False, ""
    compressed = zlib.compress(event, 6)
    if len(compressed) <= EVENT_MAX:
        return compressed, True, ""
    note = f"[truncated: DynamoDB holds {EVENT_MAX:,} of the {len(event):,} bytes of the event]"
    return event[:EVENT_MAX], False, note


def event_of(item: Item) -> bytes | None:
    event: bytes | None = item.get("event")
    return zlib.decompress(event) if event is not None and item.get("compressed") else event


# ----------------------------------------------------------------------------------------------------------- entries


def entry_of_key(item: Item) -> Entry:
    """The catalog entry of a key that is leased, waiting or done."""
    state = KeyState(item["state"])
    done = state is KeyState.SETTLED
    return Entry(
        key=item["pk"].hex(),
        handler=item["handler"],
        text=item["key_text"],
        tenant=item["tenant"],
        state="done" if done else state.name.lower(),
        reason=item.get("reason", "") if state is KeyState.WAITING else "",
        attempts=item["attempts"],
        at_ms=item["at_ms"],
        event=None,
        result=item.get("result", b"null") if done else None,
        generation=item.get("generation", 1),
        attempt_log=attempt_log_of(item),
    )


def entry_of_dead_letter(item: Item) -> Entry:
    return Entry(
        key=item["pk"].hex(),
        handler=item["handler"],
        text=item["key_text"],
        tenant=item["tenant"],
        state=str(item.get("decided", item["ended_as"])),
        reason=item["reason"],
        attempts=item["attempts"],
        at_ms=item["at_ms"],
        event=event_of(item),
        result=item.get("result"),
        generation=item.get("generation", 1),
        decision=item.get("decision", ""),
        attempt_log=attempt_log_of(item),
    )


# Tokens and time, for a store that has neither a counter nor a clock.
#
# A token is a number below 2⁵³, so that every language can read it in JSON:
#
#     ┌── 34 bits: time in steps of 64 ms since 2025 (until 2059) ──┬── 19 bits: different in each ledger object ──┐
#
# A token is higher than the previous token of its item. An item is kept for an hour after its last change. After that
# hour the time alone makes the next token higher: AWS refuses requests whose signature is more than 15 minutes off its
# clock, so the clocks of two clients are never an hour apart.

EPOCH_MS = 1_735_689_600_000  # 2025-01-01 UTC
STEP_MS = 64
LOW_BITS = 19
TOKEN_KEPT_MS = 3_600_000  # how long the last token of a key is kept after the key has expired


class Tokens:
    """Creates the tokens of one ledger object. They grow, and rarely equal those of another object."""

    def __init__(self, random: Callable[[int], int]) -> None:
        self._low = random(LOW_BITS)
        self._last = 0

    def next(self, now_ms: int, above: int = 0) -> int:
        """Return a token that is higher than `above` and than all earlier tokens of this object."""
        self._low = (self._low + 1) % (1 << LOW_BITS)
        by_time = (max(now_ms - EPOCH_MS, 0) // STEP_MS << LOW_BITS) + self._low
        self._last = max(self._last + 1, by_time)
        return max(self._last, above + 1)


class WallClock:
    """The clock of this machine, which never goes back while the process lives."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last

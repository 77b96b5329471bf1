"""What is stored, and how it is read. One table with a binary partition key and a binary sort key:

    pk                  sk              holds
    digest of a key     k               the key: who has it, or what it came to; of an alias a copy with `owner`
    digest of a key     l + token       a letter: a dead or uncertain event, until its retention after a decision
    digest of a subject s               the newest applied position, and who is acting

`token` and `v` (counted up by every change) are an item's version. `until` is the logical end of its state, checked on
every read. `over` is when nobody need remember it any more, in milliseconds, and `ttl` the same for DynamoDB's sweeper,
in seconds and never earlier. Both are written with the value they belong to, in one write. Leases have neither: live or
lapsed, they wait for whoever comes next. Undecided letters have neither: they wait for a person.

`tried` is what came of failed attempts, each [at, reason] and, once another was granted, its number: whoever ends a
lease appends without reading, and until then the number is the item's own.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from semel.ports import Entry
from semel.values.attempts import FailedAttempt, cut, line
from semel.values.attempts import load as load_attempts
from semel.values.claim import Claim, Settlement
from semel.values.claim_rules import Known, State, Subject
from semel.values.event import dump as dump_decode_options
from semel.values.outcome import NOTHING, Done, Ending, Final, Reject, Uncertain

# Python's values as DynamoDB writes them, and back: `{"S": "text"}`, `{"N": "1"}`, `{"B": b"…"}`, …

Value: TypeAlias = dict[str, Any]  # one attribute as the service sees it
Item: TypeAlias = dict[str, Any]  # a whole item, with Python's values
Stored: TypeAlias = dict[str, Value]


class Appended(NamedTuple):
    """In an update: what comes to the end of a list."""

    value: Any


def dump(value: Any) -> Value:
    """Raises TypeError for what the service cannot hold."""
    match value:
        case bool():  # before int: True is one
            return {"BOOL": value}
        case str():
            return {"S": storable(value)}
        case int() | Decimal():
            return {"N": str(value)}
        case float():
            return {"N": str(Decimal(repr(value)))}  # its shortest decimal spelling; NaN is refused by the service
        case bytes() | bytearray() | memoryview():
            return {"B": bytes(value)}
        case None:
            return {"NULL": True}
        case list() | tuple():
            return {"L": [dump(one) for one in value]}
        case Mapping():
            return {"M": dump_item(value)}
        case set() | frozenset():
            return _dump_set(value)
    raise TypeError(f"DynamoDB cannot hold a value of type {type(value).__name__}")


def load(value: Mapping[str, Any]) -> Any:
    ((kind, stored),) = value.items()
    match kind:
        case "N":
            return _number(stored)
        case "NULL":
            return None
        case "L":
            return [load(one) for one in stored]
        case "M":
            return load_item(stored)
        case "NS":
            return {_number(one) for one in stored}
        case "SS" | "BS":
            return set(stored)
    return stored  # S, B, BOOL


def dump_item(item: Mapping[str, Any]) -> Stored:
    for name in item:
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: the name of an attribute is a text")
    return {name: dump(value) for name, value in item.items()}


def load_item(stored: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: load(value) for name, value in stored.items()}


def storable(text: str) -> str:
    """Words of a person or of an exception: half a character in them must not keep a settle from being written."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _dump_set(values: set[Any] | frozenset[Any]) -> Value:
    kinds = {next(iter(dump(value))) for value in values}
    if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
        raise TypeError("a set of DynamoDB has one or more values, all of them texts, numbers or bytes")
    (kind,) = kinds
    return {f"{kind}S": [dump(value)[kind] for value in values]}


def _number(text: str) -> int | Decimal:
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)


KEY, SUBJECT, LETTER = b"k", b"s", b"l"
FREE = 0  # a key that nobody knows: only its last token (and generation) is kept
DONE, DEAD, UNCERTAIN = 1, 2, 3
NAMES = {DEAD: "dead", UNCERTAIN: "uncertain"}

SHARDS = 4  # of the index of letters: one partition of an index takes about a thousand writes a second
REASON_MAX = 8_000  # characters; an item holds 400 KB in all
TEXT_MAX = 2_000
EVENT_MAX = 300_000  # bytes, which leaves room for everything else of a letter
PRESS_FROM = 64_000  # a smaller event is kept as it came

_CODES: dict[type, int] = {Done: DONE, Reject: DEAD, Uncertain: UNCERTAIN}


def key_of(digest: bytes) -> Item:
    return {"pk": digest, "sk": KEY}


def subject_of(digest: bytes) -> Item:
    return {"pk": digest, "sk": SUBJECT}


def letter_of(digest: bytes, token: int) -> Item:
    return {"pk": digest, "sk": LETTER + token.to_bytes(8, "big")}


def version(item: Item) -> dict[str, Any]:
    """What must still be so when an item is written that was read."""
    return {"token": item["token"], "v": item["v"]}


def digests_of(claim: Claim) -> tuple[bytes, ...]:
    """All keys of a claim, its own first, each of them once: a transaction has one write for an item."""
    return tuple(dict.fromkeys([claim.digest, *[alias.digest for alias in claim.aliases]]))


def sweeping(over_ms: int, now_ms: int) -> dict[str, int]:
    """The sweeper comes late, and never while the token is needed."""
    return {"over": over_ms, "ttl": max(over_ms, now_ms + KEPT_MS) // 1000 + 1}


# ------------------------------------------------------------------------------------------------------------- keys


def known_of(item: Item | None, margin_ms: int) -> Known | None:
    """A lease counts as lapsed only some time after its end: its holder's clock may be behind."""
    if item is None or item["state"] == FREE:
        return None
    state = State(item["state"])
    return Known(
        token=item["token"],
        state=state,
        until_ms=item["until"] + (margin_ms if state is State.LEASED and item["until"] else 0),
        attempts=item["attempts"],
        first_ms=item["first"],
        fingerprint=item.get("fp"),
        suspect=item.get("suspect", False),
        outcome=outcome_of(item) if state is State.SETTLED else None,
        attempt_log=b"".join([line(one.attempt, one.at_ms, one.reason) for one in attempt_log_of(item)]),
    )


def attempt_log_of(item: Item) -> tuple[FailedAttempt, ...]:
    """What came of its failed attempts."""
    return tuple(
        [
            FailedAttempt(number[0] if number else item["attempts"], at, why)
            for at, why, *number in item.get("attempt_log", ())
        ]
    )


def dump_attempt_log(attempt_log: Iterable[FailedAttempt]) -> list[Any] | None:
    return [[one.at_ms, one.reason, one.attempt] for one in attempt_log] or None


def leased(digest: bytes, claim: Claim, known: Known, nonce: bytes, old: Item | None, now_ms: int) -> Item:
    """The item of a key that was just granted."""
    return {
        **key_of(digest),
        "token": known.token,
        "v": 1 if old is None else old["v"] + 1,
        "state": int(State.LEASED),
        "until": known.until_ms,
        "attempts": known.attempts,
        "first": known.first_ms,
        "fp": known.fingerprint,
        "suspect": known.suspect or None,
        "handler": claim.handler,
        "text": claim.text[:TEXT_MAX],
        "tenant": claim.tenant,
        "at": now_ms,
        "keep": claim.retention_ms,
        "owner": None if digest == claim.digest else claim.digest,
        "aliases": (list(digests_of(claim)[1:]) or None) if digest == claim.digest else None,
        "nonce": nonce,
        "gen": None if old is None else old.get("gen"),
        "attempt_log": dump_attempt_log(load_attempts(known.attempt_log)),
    }


def settled(outcome: Final, retention_ms: int, now_ms: int) -> Item:
    """What a final outcome changes of a key."""
    code, result = dump_outcome(outcome)
    until_ms = now_ms + retention_ms
    told = {} if code == DONE else {"attempt_log": None}  # by its letter
    return {
        "state": int(State.SETTLED),
        "outcome": code,
        "result": result if code == DONE else None,
        "reason": result if code != DONE else None,
        "until": until_ms,
        "at": now_ms,
        "nonce": None,
        **told,
        **sweeping(until_ms, now_ms),
    }


def waiting(after_s: float | None, reason: str, retention_ms: int, now_ms: int) -> Item:
    """What a retry changes of a key. Who never comes again is forgotten a retention after it was due."""
    until_ms = now_ms + round((after_s or 0) * 1000)
    return {
        "state": int(State.WAITING),
        "until": until_ms,
        "reason": short(reason),
        "at": now_ms,
        "attempt_log": Appended([now_ms, cut(reason).decode()]),
        **sweeping(until_ms + retention_ms, now_ms),
    }


def freed(item: Item, now_ms: int, gen: int | None = None) -> Item:
    """A key that nobody knows any more, though its last token is remembered. Nobody holds this one."""
    return {
        "pk": item["pk"],
        "sk": item["sk"],
        "token": item["token"] + 1,
        "v": item["v"] + 1,
        "state": FREE,
        "at": now_ms,
        "gen": item.get("gen") if gen is None else gen,
        **sweeping(now_ms + KEPT_MS, now_ms),
    }


def given_back(item: Item, now_ms: int) -> Item:
    """As if its last claim had not been made: a first attempt leaves nothing, a later one the attempts before.

    `back` tells a repetition of the same release that it has happened."""
    if item["attempts"] == 1:
        return freed(item, now_ms) | {"back": True}
    suspect = item.get("suspect", False)
    back = {
        **item,
        "token": item["token"] + 1,
        "v": item["v"] + 1,
        "state": int(State.LEASED if suspect else State.WAITING),
        "until": 0,
        "attempts": item["attempts"] - 1,
        "at": now_ms,
        "nonce": None,
        "back": True,
    }
    if suspect:
        return back
    # due at once, so it is over a retention after "at once": a purge may take it, the sweeper gives it its time
    return back | sweeping(now_ms + item["keep"], now_ms) | {"over": item["keep"]}


def dump_outcome(outcome: Ending) -> tuple[int, Any]:
    match outcome:
        case Done(result):
            return DONE, None if result == b"null" else result
        case Reject() | Uncertain():
            return _CODES[type(outcome)], short(outcome.reason)
    raise TypeError(f"{outcome!r} does not end a key's life")


def outcome_of(item: Item) -> Final:
    match item["outcome"]:
        case 1:
            return Done(item["result"]) if "result" in item else NOTHING
        case 2:
            return Reject(item["reason"])
        case _:
            return Uncertain(item["reason"])


def short(reason: str) -> str:
    """A reason is a sentence for a person, and must not make an item too large to be written."""
    return storable(reason if len(reason) <= REASON_MAX else reason[: REASON_MAX - 1] + "…")


# ---------------------------------------------------------------------------------------------------------- subjects


def subject_known(item: Item) -> Subject:
    return Subject(item.get("newest"), item.get("holder"), item["token"])


def holder_of(item: Item, margin_ms: int) -> Known | None:
    """The lease under which a subject is held: its end is kept in both, and changed in both at once."""
    if "holder" not in item:
        return None
    return Known(item["token"], State.LEASED, item["held"] + margin_ms, 1, 0, None)


def held(claim: Claim, token: int, until_ms: int, old: Item | None) -> Item:
    """The subject of a claim that was just granted. How long it was to be kept before is remembered in `kept`."""
    assert claim.order is not None
    return {
        **subject_of(claim.order.subject),
        "token": token,
        "v": 1 if old is None else old["v"] + 1,
        "newest": None if old is None else old.get("newest"),
        "holder": claim.digest,
        "held": until_ms,
        "kept": None if old is None else old.get("kept"),
    }


def left(claim: Claim, token: int, old: Item | None, now_ms: int, applied: bool) -> Item | None:
    """The subject after its event was settled. None: nothing about it changes."""
    assert claim.order is not None
    mine = old is not None and old["token"] == token
    if not (applied or mine):
        return None
    item: Item = {"token": 0, "v": 0, **subject_of(claim.order.subject)} if old is None else dict(old)
    if applied:
        item["newest"] = max(item.get("newest", claim.order.position), claim.order.position)
    if mine:
        item["holder"] = item["held"] = None
    item["kept"] = max(item.get("kept") or 0, now_ms + claim.retention_ms)
    item["v"] += 1
    return item if item.get("holder") else item | sweeping(item["kept"], now_ms)


# ----------------------------------------------------------------------------------------------------------- letters


def dead_letter(settlement: Settlement, key: Item, now_ms: int) -> Item:
    """What is kept of an event that was given up on. `key`: its item, still leased."""
    claim, kept = settlement.lease.claim, settlement.dead_letter
    code, reason = dump_outcome(settlement.outcome)
    event, packed, note = _packed(kept.event if kept is not None else None)
    return {
        **letter_of(claim.digest, settlement.lease.token),
        "token": settlement.lease.token,
        "v": 1,
        "letter": shard(NAMES[code], claim.digest),
        "was": NAMES[code],
        "reason": f"{reason} {note}".strip(),
        "handler": claim.handler,
        "text": claim.text[:TEXT_MAX],
        "tenant": claim.tenant,
        "attempts": key["attempts"],
        "at": now_ms,
        "gen": key.get("gen"),
        "keep": claim.retention_ms,
        "aliases": [alias.digest for alias in claim.aliases] or None,
        "event": event,
        "packed": packed or None,
        "decode_options": (dump_decode_options(kept.decode_options) or None) if kept is not None else None,
        "attempt_log": dump_attempt_log(
            [*attempt_log_of(key), FailedAttempt(key["attempts"], now_ms, cut(reason).decode())]
        ),
    }


def done_before(key: Item, now_ms: int) -> Item:
    """What is kept of a key that was done, when it steps back. `key`: its item, still settled."""
    about = {
        name: key.get(name)
        for name in ("token", "handler", "text", "tenant", "attempts", "at", "gen", "keep", "attempt_log")
    }
    return {
        **letter_of(key["pk"], key["token"]),
        **about,
        "v": 1,
        "was": "done",
        "reason": "",
        "result": key.get("result", b"null"),
        **sweeping(now_ms + key["keep"], now_ms),
    }


def shard(state: str, digest: bytes) -> str:
    return f"{state}/{digest[0] % SHARDS}"


def shards(state: str) -> list[str]:
    return [f"{state}/{number}" for number in range(SHARDS)]


def _packed(event: bytes | None) -> tuple[bytes | None, bool, str]:
    """An event that an item can hold: as it came, compressed, or its beginning, and then it is said."""
    if event is None or len(event) <= PRESS_FROM:
        return event, False, ""
    pressed = zlib.compress(event, 6)
    if len(pressed) <= EVENT_MAX:
        return pressed, True, ""
    note = f"[only the first {EVENT_MAX:,} of the event's {len(event):,} bytes are kept: DynamoDB holds no more]"
    return event[:EVENT_MAX], False, note


def event_of(item: Item) -> bytes | None:
    event: bytes | None = item.get("event")
    return zlib.decompress(event) if event is not None and item.get("packed") else event


# ----------------------------------------------------------------------------------------------------------- entries


def entry_of_key(item: Item) -> Entry:
    """One line of the catalog for a key that is leased, waiting or done."""
    state = State(item["state"])
    done = state is State.SETTLED
    return Entry(
        key=item["pk"].hex(),
        handler=item["handler"],
        text=item["text"],
        tenant=item["tenant"],
        state="done" if done else state.name.lower(),
        reason=item.get("reason", "") if state is State.WAITING else "",
        attempts=item["attempts"],
        at_ms=item["at"],
        event=None,
        result=item.get("result", b"null") if done else None,
        generation=item.get("gen", 1),
        attempt_log=attempt_log_of(item),
    )


def entry_of_letter(item: Item) -> Entry:
    return Entry(
        key=item["pk"].hex(),
        handler=item["handler"],
        text=item["text"],
        tenant=item["tenant"],
        state=str(item.get("decided", item["was"])),
        reason=item["reason"],
        attempts=item["attempts"],
        at_ms=item["at"],
        event=event_of(item),
        result=item.get("result"),
        generation=item.get("gen", 1),
        decision=item.get("decision", ""),
        attempt_log=attempt_log_of(item),
    )


# Where tokens and time come from, in a store that has neither a counter nor a clock.
#
# A token is a number below 2⁵³, so that every language can read it in JSON:
#
#     ┌── 34 bits: time in steps of 64 ms since 2025 (enough until 2059) ──┬── 19 bits: differ from object to object ──┐
#
# It is always higher than the token that its item had before, and an item is kept for an hour after its last change.
# Then the time alone makes the next token higher: AWS refuses requests that were signed more than 15 minutes off its
# clock, so two clients are never an hour apart.

EPOCH_MS = 1_735_689_600_000  # 2025-01-01 UTC
STEP_MS = 64
LOW_BITS = 19
KEPT_MS = 3_600_000  # how long a key's last token is remembered, whatever else is forgotten of the key


class Tokens:
    """The tokens of one ledger object: growing, and seldom those of another object."""

    def __init__(self, random: Callable[[int], int]) -> None:
        self._low = random(LOW_BITS)
        self._last = 0

    def next(self, now_ms: int, above: int = 0) -> int:
        """Higher than all before of this object, and than `above`."""
        self._low = (self._low + 1) % (1 << LOW_BITS)
        by_time = (max(now_ms - EPOCH_MS, 0) // STEP_MS << LOW_BITS) + self._low
        self._last = max(self._last + 1, by_time)
        return max(self._last, above + 1)


class WallClock:
    """This machine's clock, which never goes back while the process lives."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last

"""Encoding of dead letters: dead and uncertain events that wait for an operator's decision, and the decision.

The dead letters of a key are one hash with a field per token. An index per tag and state lists the undecided ones.
"""

from __future__ import annotations

from datetime import UTC, datetime
from secrets import token_bytes
from typing import Any

import msgspec
from msgspec import Struct

from semel.ledgers.redis.codec import DEAD, storable
from semel.ports import Entry
from semel.values.attempts import cut, load
from semel.values.claim import Settlement
from semel.values.event import dump
from semel.values.outcome import Reject, Uncertain

DECISIONS = {0: "", 1: "replayed", 2: "discarded"}
REPLAY, DISCARD = 1, 2
HEAD_BYTES = 25
OWN_BYTES = 8
_NO_BYTES = b"\xc4\0"  # empty bytes in MessagePack


class DeadLetterContent(Struct, frozen=True, array_like=True):
    """The content of a dead letter, as the settle wrote it."""

    uncertain: bool
    reason: bytes
    tenant: bytes
    handler: bytes
    text: bytes
    event: bytes | None
    decode_options: bytes
    aliases: list[bytes]
    result: bytes | None = None  # of a done key that was replayed by force
    attempt_log: bytes = b""  # the attempt log; the store adds the last attempt, because it has the time


class DeadLetterDecision(Struct, frozen=True, array_like=True):
    by: bytes
    reason: bytes
    own: bytes = b""  # nonce: a repeated call distinguishes its own decision from an equal one of another operator


class StoredDeadLetter(Struct, frozen=True):
    """One dead letter of a key, as it is stored."""

    token: bytes
    stored: bytes
    decision: int
    at_ms: int
    attempts: int
    decided_ms: int
    content: DeadLetterContent
    decided: DeadLetterDecision | None

    def entry(self, key: str, generation: int) -> Entry:
        content = self.content
        return Entry(
            key=key,
            handler=content.handler.decode(),
            text=content.text.decode(),
            tenant=content.tenant.decode(),
            state=DECISIONS[self.decision] or ("uncertain" if content.uncertain else "dead"),
            reason=content.reason.decode(),
            attempts=self.attempts,
            at_ms=self.at_ms,
            event=content.event,
            result=content.result,
            generation=generation,
            decision=self._description(),
            attempt_log=load(content.attempt_log),
        )

    def _description(self) -> str:
        if self.decided is None:
            return ""
        at = datetime.fromtimestamp(self.decided_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        by, reason = self.decided.by.decode(), self.decided.reason.decode()
        forced = ", though it was done," if self.content.result is not None else ""
        return f"{DECISIONS[self.decision]}{forced} by {by} at {at} UTC: {reason}"


def pack_dead_letter(settlement: Settlement, kind: int) -> bytes:
    """The argument of settle.lua for a dead letter: the reason of the last attempt, then the content without its last
    field, the attempt log, which the script completes."""
    claim, outcome, dead_letter = settlement.lease.claim, settlement.outcome, settlement.dead_letter
    reason = outcome.reason if isinstance(outcome, Reject | Uncertain) else ""
    content = msgspec.msgpack.encode(
        DeadLetterContent(
            uncertain=kind != DEAD,
            reason=storable(reason),
            tenant=storable(claim.tenant),
            handler=storable(claim.handler),
            text=storable(claim.text),
            event=dead_letter.event if dead_letter is not None else None,
            decode_options=dump(dead_letter.decode_options) if dead_letter is not None else b"",
            aliases=[alias.digest for alias in claim.aliases],
        )
    )
    short_reason = cut(reason)
    return len(short_reason).to_bytes(2, "big") + short_reason + content.removesuffix(_NO_BYTES)


def pack_done(entry: Entry, aliases: list[bytes]) -> bytes:
    """The content for a done key that is replayed by force."""
    names = (storable(entry.tenant), storable(entry.handler), storable(entry.text))
    return msgspec.msgpack.encode(DeadLetterContent(False, b"", *names, None, b"", aliases, entry.result))


def pack_decision(by: str, reason: str) -> bytes:
    return msgspec.msgpack.encode(DeadLetterDecision(storable(by), storable(reason), token_bytes(OWN_BYTES)))


def dead_letters_of(fields: list[Any]) -> list[StoredDeadLetter]:
    """The dead letters of one key, newest first. `fields` is the reply of HGETALL."""
    found = [_stored_dead_letter(token, stored) for token, stored in zip(fields[::2], fields[1::2], strict=True)]
    return sorted(found, key=lambda dead_letter: dead_letter.token, reverse=True)


def generation(dead_letters: list[StoredDeadLetter], token: bytes) -> int:
    """The generation of a token: every earlier replay began a new one."""
    return 1 + sum(dead_letter.decision == REPLAY and dead_letter.token < token for dead_letter in dead_letters)


def undecided(dead_letters: list[StoredDeadLetter]) -> StoredDeadLetter | None:
    """The newest dead letter without a decision."""
    return next((dead_letter for dead_letter in dead_letters if not dead_letter.decision), None)


def _stored_dead_letter(token: bytes, stored: bytes) -> StoredDeadLetter:
    size = int.from_bytes(stored[21:25], "big")
    decision = stored[HEAD_BYTES + size :]
    return StoredDeadLetter(
        token=token,
        stored=stored,
        decision=stored[0],
        at_ms=int.from_bytes(stored[1:7], "big"),
        attempts=int.from_bytes(stored[7:9], "big"),
        decided_ms=int.from_bytes(stored[9:15], "big"),
        content=msgspec.msgpack.decode(stored[HEAD_BYTES : HEAD_BYTES + size], type=DeadLetterContent),
        decided=msgspec.msgpack.decode(decision, type=DeadLetterDecision) if decision else None,
    )

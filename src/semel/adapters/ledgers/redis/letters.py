"""What is kept of a dead or uncertain event until a person has decided about it, and the decision.

The letters of one key are one hash, a field for each token; an index for each tag and state says what waits.
"""

from __future__ import annotations

from datetime import UTC, datetime
from secrets import token_bytes
from typing import Any

import msgspec
from msgspec import Struct

from semel.adapters.ledgers.redis.codec import DEAD, storable
from semel.ports import Entry
from semel.values.claim import Settlement
from semel.values.reading import dump
from semel.values.tried import cut, load

DECISIONS = {0: "", 1: "replayed", 2: "discarded"}
REPLAY, DISCARD = 1, 2
HEAD_BYTES = 25
OWN_BYTES = 8
_NO_BYTES = b"\xc4\0"  # as MessagePack writes them


class Kept(Struct, frozen=True, array_like=True):
    """What the settle knew."""

    uncertain: bool
    reason: bytes
    tenant: bytes
    handler: bytes
    text: bytes
    event: bytes | None
    reading: bytes
    aliases: list[bytes]
    result: bytes | None = None  # of what was done
    tried: bytes = b""  # what came of its attempts; the last one is added by the store, as it knows the time


class Decision(Struct, frozen=True, array_like=True):
    by: bytes
    reason: bytes
    own: bytes = b""  # by which a repetition knows its own decision from the same one of somebody else


class Letter(Struct, frozen=True):
    """One letter of a key, as it is stored now."""

    token: bytes
    stored: bytes
    decision: int
    at_ms: int
    attempts: int
    decided_ms: int
    kept: Kept
    decided: Decision | None

    def entry(self, key: str, generation: int) -> Entry:
        kept = self.kept
        return Entry(
            key=key,
            handler=kept.handler.decode(),
            text=kept.text.decode(),
            tenant=kept.tenant.decode(),
            state=DECISIONS[self.decision] or ("uncertain" if kept.uncertain else "dead"),
            reason=kept.reason.decode(),
            attempts=self.attempts,
            at_ms=self.at_ms,
            event=kept.event,
            result=kept.result,
            generation=generation,
            decision=self._told(),
            tried=load(kept.tried),
        )

    def _told(self) -> str:
        if self.decided is None:
            return ""
        at = datetime.fromtimestamp(self.decided_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        who, why = self.decided.by.decode(), self.decided.reason.decode()
        what_it_was = ", though it was done," if self.kept.result is not None else ""
        return f"{DECISIONS[self.decision]}{what_it_was} by {who} at {at} UTC: {why}"


def pack_letter(settlement: Settlement, kind: int) -> bytes:
    """What settle.lua makes a letter of: why the last attempt failed, then all but its last field, the attempts."""
    claim, outcome, letter = settlement.lease.claim, settlement.outcome, settlement.letter
    reason = getattr(outcome, "reason", "")
    kept = msgspec.msgpack.encode(
        Kept(
            uncertain=kind != DEAD,
            reason=storable(reason),
            tenant=storable(claim.tenant),
            handler=storable(claim.handler),
            text=storable(claim.text),
            event=letter.event if letter is not None else None,
            reading=dump(letter.reading) if letter is not None else b"",
            aliases=[alias.digest for alias in claim.aliases],
        )
    )
    said = cut(reason)
    return len(said).to_bytes(2, "big") + said + kept.removesuffix(_NO_BYTES)


def pack_done(entry: Entry, aliases: list[bytes]) -> bytes:
    """What is kept of a key that was done, when it steps back."""
    about = (storable(entry.tenant), storable(entry.handler), storable(entry.text))
    return msgspec.msgpack.encode(Kept(False, b"", *about, None, b"", aliases, entry.result))


def pack_decision(by: str, reason: str) -> bytes:
    return msgspec.msgpack.encode(Decision(storable(by), storable(reason), token_bytes(OWN_BYTES)))


def letters_of(fields: list[Any]) -> list[Letter]:
    """The letters of one key, the newest first. `fields`: what HGETALL answers."""
    found = [_letter(token, stored) for token, stored in zip(fields[::2], fields[1::2], strict=True)]
    return sorted(found, key=lambda letter: letter.token, reverse=True)


def generation(letters: list[Letter], token: bytes) -> int:
    """Every replay began a new one."""
    return 1 + sum(letter.decision == REPLAY and letter.token < token for letter in letters)


def undecided(letters: list[Letter]) -> Letter | None:
    """The newest that waits for a person."""
    return next((letter for letter in letters if not letter.decision), None)


def _letter(token: bytes, stored: bytes) -> Letter:
    size = int.from_bytes(stored[21:25], "big")
    said = stored[HEAD_BYTES + size :]
    return Letter(
        token=token,
        stored=stored,
        decision=stored[0],
        at_ms=int.from_bytes(stored[1:7], "big"),
        attempts=int.from_bytes(stored[7:9], "big"),
        decided_ms=int.from_bytes(stored[9:15], "big"),
        kept=msgspec.msgpack.decode(stored[HEAD_BYTES : HEAD_BYTES + size], type=Kept),
        decided=msgspec.msgpack.decode(said, type=Decision) if said else None,
    )

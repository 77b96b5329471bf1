"""A letter as an entry of PutEvents: what it says, how large it is, and what is left out of one that is too large."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from semel.adapters.letterboxes.eventbridge.address import Address
from semel.values.claim import Settlement
from semel.values.errors import MalformedEvent
from semel.values.outcome import Uncertain
from semel.values.strict_json import parse
from semel.values.tried import REASON_MAX, Tried

DETAIL_TYPE = "semel.dead-letter"
ENTRIES_MAX = 10  # of one call
CALL_MAX_BYTES = 256 * 1024  # of all entries of one call, as the service counts them
TIME_BYTES = 14  # what it counts for a time, however that is written
TEXT_MAX_CHARS = 2_000  # of a key's text and of a reason: they are for people
NAME_MAX_CHARS = 500  # of a handler and of a tenant
NOTE_BYTES = 200  # what the note about a left-out event adds to a letter

_encode = msgspec.json.Encoder().encode


class Entry(Struct, frozen=True):
    """One letter, ready to be put."""

    id: str  # the same for the same letter, however often it is put: consumers drop copies by it
    request: dict[str, Any]
    size: int


def entry_of(settlement: Settlement, at_ms: int, address: Address) -> Entry:
    """The letter of an event that was given up on, or that is in doubt."""
    claim, letter, key = settlement.lease.claim, settlement.letter, settlement.lease.claim.digest.hex()
    reason = getattr(settlement.outcome, "reason", "")
    attempts, before = (letter.attempts, letter.tried) if letter is not None else (1, ())
    facts: dict[str, Any] = {
        "id": f"{key}-{settlement.lease.token}",
        "state": "uncertain" if isinstance(settlement.outcome, Uncertain) else "dead",
        "key": key,
        "handler": _cut(claim.handler, NAME_MAX_CHARS),
        "text": _cut(claim.text, TEXT_MAX_CHARS),
        "tenant": _cut(claim.tenant, NAME_MAX_CHARS),
        "reason": _cut(reason, TEXT_MAX_CHARS),
        "attempts": attempts,
        "tried": [
            {"attempt": one.attempt, "at": _iso(one.at_ms), "reason": _cut(one.reason, REASON_MAX)}
            for one in (*before, Tried(attempts, at_ms, reason))
        ],
        "token": settlement.lease.token,
    }
    return _entry(facts, letter.event if letter is not None else None, at_ms, address)


def entry_aside(body: bytes, reason: str, at_ms: int, address: Address) -> Entry:
    """A body that is no event at all: it has no key, and nothing was claimed for it."""
    digest = hashlib.sha256(body).hexdigest()
    facts = {"id": f"aside-{digest}", "state": "malformed", "key": "", "reason": _cut(reason, TEXT_MAX_CHARS)}
    return _entry(facts, body, at_ms, address)


def _entry(facts: dict[str, Any], event: bytes | None, at_ms: int, address: Address) -> Entry:
    facts["at"] = _iso(at_ms)
    request = {
        "Time": datetime.fromtimestamp(at_ms / 1000, UTC),
        "Source": address.source,
        "DetailType": DETAIL_TYPE,
        "Resources": [],
        "EventBusName": address.bus,
    }
    around = TIME_BYTES + len(address.source) + len(DETAIL_TYPE)
    detail = _encode(facts | _told(event))
    if around + len(detail) > CALL_MAX_BYTES and event is not None:
        room = CALL_MAX_BYTES - around - len(_encode(facts)) - NOTE_BYTES
        detail = _encode(facts | _left_out(event, room if address.oversize == "truncate" else 0))
    return Entry(facts["id"], {**request, "Detail": detail.decode()}, around + len(detail))


def _told(event: bytes | None) -> dict[str, Any]:
    """The document itself where it is JSON, byte for byte; else what it is as a text."""
    if event is None:
        return {"event": None}
    try:
        parse(event)
    except MalformedEvent:
        return {"event": None, **_as_text(event)}
    return {"event": msgspec.Raw(event)}


def _left_out(event: bytes, room: int) -> dict[str, Any]:
    """The beginning of an event that is too large, as a text, as far as there is room; and how to know the whole.

    A byte of it may take up to six in JSON, so what fits is found by trying."""
    note = {"event": None, "truncated": True, "size": len(event), "sha256": hashlib.sha256(event).hexdigest()}
    shown = min(len(event), room)
    while shown > 0:
        told = _as_text(event[:shown])
        if (over := len(_encode(told)) - room) <= 0:
            return note | told
        shown -= max(over // 6, 1)
    return note


def _as_text(some: bytes) -> dict[str, str]:
    try:
        return {"event_text": some.decode()}
    except UnicodeDecodeError as error:
        if error.start >= len(some) - 3 and error.reason == "unexpected end of data":  # cut inside of a character
            return {"event_text": some[: error.start].decode()}
    return {"event_base64": b64encode(some).decode()}


def calls(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries in the groups in which they are put, in order."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (len(group) == ENTRIES_MAX or size + entry.size > CALL_MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _cut(text: str, most: int) -> str:
    """What a store can keep, and JSON can say."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

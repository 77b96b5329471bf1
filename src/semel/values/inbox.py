"""What is put into the inbox, what is taken out of it, and how that ends.

The inbox keeps accepted events until they are handled. It decides nothing about effects: whoever takes an event runs it
through the engine, and the ledger's lease is what lets an effect happen once. So a letter that is taken twice, because
its first taker was slow or died, is answered as busy or as a duplicate.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from semel.values.claim import Claim
from semel.values.event import PLAIN, DecodeOptions


class Arrival(Struct, frozen=True):
    """An event that asks to be accepted."""

    claims: tuple[Claim, ...]  # one for each handler that it is for; together they identify it
    lane: str  # the handlers that it is for, as one name: lanes do not wait for each other
    event: bytes  # the document, unwrapped from its transport
    tenant: str = ""
    decode_options: DecodeOptions = PLAIN
    trace: str = ""  # W3C traceparent of the delivery


class Acceptance(Struct, frozen=True):
    """What became of an arrival."""

    status: Literal["accepted", "duplicate", "conflict"]
    reason: str = ""  # of a duplicate: that of `WAITS`, "done", "dead: …", "uncertain: …"


WAITS = Acceptance("duplicate", "waits in the inbox")


class Taken(Struct, frozen=True):
    """A letter in someone's hands, under a token of its own."""

    id: int
    token: int
    lane: str
    event: bytes
    tenant: str
    decode_options: DecodeOptions
    only: str  # the one handler that it is for: set for a replay
    trace: str
    lapses: int  # how many takers in a row vanished before this one
    accepted_ms: int
    key: bytes = b""  # what it was accepted under


class Finished(Struct, frozen=True):
    """It was handled: the inbox may forget it."""

    taken: Taken


class Postponed(Struct, frozen=True):
    """It comes again after this time."""

    taken: Taken
    after_ms: int
    reason: str = ""


class GivenUp(Struct, frozen=True):
    """Nobody can act on it: kept with its reason until a person decides."""

    taken: Taken
    reason: str


InboxEnding: TypeAlias = Finished | Postponed | GivenUp


class Depth(Struct, frozen=True):
    """What waits in one lane."""

    lane: str
    waiting: int  # due or not, in nobody's hands
    taken: int
    oldest_ms: int  # when the oldest of them was accepted, UTC

"""The requests to an inbox and its answers.

The inbox stores accepted events until they are handled. It decides nothing about effects: an inbox worker runs each
item through the engine, and the ledger lets its effect happen once. An item that is taken twice, because its first
worker was slow or was killed, is busy or a duplicate there.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from semel.values.claim import Claim
from semel.values.event import PLAIN, DecodeOptions


class Arrival(Struct, frozen=True):
    """An event to accept."""

    claims: tuple[Claim, ...]  # one for each of its handlers; together they identify it
    lane: str  # the name of its handler: lanes do not wait for each other
    event: bytes  # the document, unwrapped from its transport
    tenant: str = ""
    decode_options: DecodeOptions = PLAIN
    trace: str = ""  # W3C traceparent of the delivery


class Acceptance(Struct, frozen=True):
    """The result of accepting one arrival."""

    status: Literal["accepted", "duplicate", "conflict"]
    reason: str = ""  # of a duplicate: that of `WAITS`, "done", "dead: …", "uncertain: …"


WAITS = Acceptance("duplicate", "waits in the inbox")


class Taken(Struct, frozen=True):
    """An inbox item that a worker has taken, under a token of its own."""

    id: int
    token: int
    lane: str
    event: bytes
    tenant: str
    decode_options: DecodeOptions
    only: str  # the one handler that it is for: set for a replay
    trace: str
    lapses: int  # consecutive leases of it that expired
    accepted_ms: int
    key: bytes = b""  # the key under which it was accepted


class Finished(Struct, frozen=True):
    """The item was handled: the inbox deletes it."""

    taken: Taken


class Postponed(Struct, frozen=True):
    """The item is due again after this time."""

    taken: Taken
    after_ms: int
    reason: str = ""


class GivenUp(Struct, frozen=True):
    """The item cannot be handled: it becomes a dead letter with this reason."""

    taken: Taken
    reason: str


InboxEnding: TypeAlias = Finished | Postponed | GivenUp


class Depth(Struct, frozen=True):
    """The number of items in one lane."""

    lane: str
    waiting: int  # due or not, and not taken
    taken: int
    oldest_ms: int  # when the oldest of them was accepted, UTC

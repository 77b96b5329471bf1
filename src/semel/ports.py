"""The seams: every protocol in one file. Each sentence of a docstring is a law in `semel.testing`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from semel.values.claim import Claim, Lease, Settlement, Verdict


class Traits(Struct, frozen=True):
    """What a store can promise; guarantees are computed from it."""

    name: str  # for people: "SQLite", "memory"
    durable: bool  # what it has answered survives the process
    transactional: bool  # it is a TransactionalLedger
    caveat: str = ""  # what weakens its promises, as configured: "synchronous=normal may forget on power loss"


class Ledger(Protocol):
    """Remembers keys: who may act, and what came of it."""

    traits: Traits

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Answer each claim with a verdict, in order, as if they had come one after the other.

        The first claim of a key is granted, and every racer gets a verdict. A settled key answers with what it was
        settled with until its retention ends, also for a reject. The same key with another fingerprint is a Conflict
        and the first record is untouched. An expired lease is granted again with a higher token. Every grant counts
        as an attempt. A key that waits for its retry is Busy until it is due. A key known under an alias is a
        duplicate. An event older than the newest applied one of its subject is Stale, an equal one is not, and two
        events of one subject are not granted at the same time. A claim with `doubt_first` whose lease lapsed is granted
        whatever its subject says, so that its holder can tell the doubt.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End leases. False: the token is no longer the current one, and nothing was written.

        Settling again with the same token and outcome answers True and changes nothing. Done, Reject and Uncertain
        are final. Retry keeps the key Busy for its delay. Release takes the claim back, with its attempt.
        """

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Extend each lease by its full length from now. False: it was lost, and nothing was written."""

    async def purge(self, limit: int) -> int:
        """Forget at most `limit` keys whose retention is over. Live leases and waiting retries stay."""

    async def close(self) -> None:
        """Let go of the store. Leases stay as they are: they belong to their tokens, not to this object."""


class Transaction(Protocol):
    """An open transaction of a TransactionalLedger, in which one handler runs."""

    handle: Any
    """What the handler gets as `ctx.tx`: its writes become part of this transaction."""

    async def settle(self, settlement: Settlement) -> bool:
        """Write the settlement into this transaction; it counts when the transaction commits.

        False: the lease was lost, and the transaction will not commit."""


@runtime_checkable
class TransactionalLedger(Ledger, Protocol):
    """A ledger whose store can also hold the handler's own writes."""

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        """One transaction that holds the handler's writes and the settle: they commit together or not at all.

        It commits when the block ends after a settle that answered True, and rolls back in every other case.
        Once the block has ended, the handle refuses to be used."""


class Delivery(Protocol):
    """One arrival of a message. Exactly one of ack, retry and reject is called, and it is called last."""

    body: bytes
    tenant: str

    async def ack(self) -> None:
        """The source may forget it."""

    async def retry(self, after_s: float) -> None:
        """The source should deliver it again after this time. Not a failure."""

    async def reject(self, reason: str) -> None:
        """Nobody can act on it: the source keeps it with its reason, out of the way."""


class Source(Protocol):
    """Where deliveries come from."""

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """At most `limit` deliveries; waits for one if there is none; empty when the source has ended."""


STATES = ("leased", "waiting", "done", "dead", "uncertain")


class Entry(Struct, frozen=True):
    """One line of the catalog."""

    key: str  # hex digest, as in ctx.key
    handler: str
    text: str
    tenant: str
    state: str  # one of STATES
    reason: str
    attempts: int
    at_ms: int  # when it came to this state, UTC
    event: bytes | None  # kept for dead and uncertain


class Catalog(Protocol):
    """The read side, for people."""

    async def entries(self, state: str | None = None, limit: int = 100) -> list[Entry]:
        """The newest first. Reading changes nothing."""


class Clock(Protocol):
    """Where time comes from, so that tests can move it."""

    def __call__(self) -> int:
        """Milliseconds since the epoch, UTC. Never goes back while the process lives."""

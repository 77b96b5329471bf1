"""Claims, leases, verdicts and settlements. None can be part of a reference cycle, so the collector skips them."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from semel.values.attempts import FailedAttempt
from semel.values.event import PLAIN, DecodeOptions
from semel.values.outcome import Ending, Final


class Order(Struct, frozen=True, gc=False):
    """The place of an event among the events of its subject."""

    subject: bytes  # digest of (tenant, handler, subject)
    position: int  # only compared with positions of the same subject; larger is newer


class Alias(Struct, frozen=True, gc=False):
    """A second key under which the same effect is known, with its own retention."""

    digest: bytes
    retention_ms: int


class Claim(Struct, frozen=True, gc=False):
    """A request to run the handler for a key."""

    digest: bytes  # 16 bytes over (tenant, handler, key parts)
    handler: str
    text: str  # the readable key
    lease_ms: int
    retention_ms: int
    tenant: str = ""
    fingerprint: bytes | None = None  # 16 bytes over the payload; None: payloads are not compared
    aliases: tuple[Alias, ...] = ()
    order: Order | None = None
    doubt_first: bool = False  # an expired lease is granted even if the event is stale, to record the uncertain run

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The digests of all keys of this claim, its own first."""
        return (self.digest, *[alias.digest for alias in self.aliases]) if self.aliases else (self.digest,)


class Lease(Struct, frozen=True, gc=False):
    """A time-limited right to run. Every grant of a key has a higher token than all earlier grants."""

    claim: Claim
    token: int


class Granted(Struct, frozen=True, gc=False):
    """The handler may run under this lease."""

    lease: Lease
    attempt: int  # 1 for the first grant; counted here, so a crash counts
    takeover: bool  # the previous lease expired without a settlement: its effect may have happened
    age_ms: int  # since the first grant of this key


class Settled(Struct, frozen=True, gc=False):
    """A duplicate, with the stored result of the first run."""

    outcome: Final


class Busy(Struct, frozen=True, gc=False):
    """Another worker holds the lease, or a retry is not due yet. Claim again after this time."""

    after_ms: int


class Stale(Struct, frozen=True, gc=False):
    """A newer event of the subject was applied."""

    newest: int


class Conflict(Struct, frozen=True, gc=False):
    """The key is known with another payload. The first record is untouched."""


Verdict: TypeAlias = Granted | Settled | Busy | Stale | Conflict


class DeadLetter(Struct, frozen=True, gc=False):
    """The event of a dead letter or an uncertain run, stored so that operators can inspect and replay it."""

    event: bytes  # the document as it arrived
    attempts: int
    decode_options: DecodeOptions = PLAIN
    attempt_log: tuple[FailedAttempt, ...] = ()  # earlier attempts, for a dead-letter store, which has not seen them


class Settlement(Struct, frozen=True, gc=False):
    """The end of a lease."""

    lease: Lease
    outcome: Ending
    dead_letter: DeadLetter | None = None  # with Reject and Uncertain

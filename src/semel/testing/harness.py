"""What a ledger under test brings along: how its store is opened, and how its time passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

from semel.ports import Entry, Ledger
from semel.values.claim import Alias, Claim, DeadLetter, Granted, Lease, Order, Settled, Settlement, Verdict
from semel.values.outcome import Done, Ending

T = TypeVar("T")

START_MS = 1_750_000_000_000  # some time in June 2025
SLEEP_MORE_MS = 5  # a store's clock may count in whole milliseconds, and begin to count late


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Harness:
    """One store, empty or not, and the ways to it. The keys of a harness are its own."""

    open: Callable[[], Ledger]
    """Another ledger object on the store (or the same one, where the object is the store)."""

    clock: FakeClock | None = None
    """The clock of every opened ledger. None: the store has its own, and the laws wait for it."""

    remote: Callable[[], Ledger] | None = None
    """Opens the store in another process, on the store's own clock; picklable. None: the store does not leave its
    process, and only the races between processes have nothing to race for."""

    unit_ms: int = 1000
    """The laws' times are multiples of this, and at least 10. With a clock that cannot be moved take about 50."""

    batches: Sequence[int] = (1, 7, 100, 501, 1203)
    """Sizes of batches: around and beyond what the store takes in one statement, up to what its slowness allows."""

    rounds: int = 12
    """How often racers meet. A store that needs many milliseconds for a claim shows a mistake in fewer."""

    dispose: Callable[[], None] = lambda: None
    """Called when the store is needed no more."""

    namespace: str = field(default_factory=lambda: uuid4().hex)

    @property
    def lease_ms(self) -> int:
        return 10 * self.unit_ms

    @property
    def retention_ms(self) -> int:
        return 30 * self.unit_ms

    def advance(self, ms: int) -> None:
        """Let this much time pass."""
        if self.clock is not None:
            self.clock.now_ms += ms
        else:
            time.sleep((ms + SLEEP_MORE_MS) / 1000)

    def is_near(self, ms: int, expected_ms: int) -> bool:
        """Exact on a clock that stands still; else the time that the calls took is allowed for."""
        slack_ms = 0 if self.clock is not None else 4 * self.unit_ms
        return abs(ms - expected_ms) <= slack_ms

    def digest(self, text: str) -> bytes:
        return blake2b(f"{self.namespace}:{text}".encode(), digest_size=16).digest()

    def claim(
        self,
        text: str,
        *,
        fingerprint: str | None = None,
        aliases: Sequence[str] = (),
        subject: str | None = None,
        position: int = 0,
        lease_ms: int | None = None,
        retention_ms: int | None = None,
        alias_retention_ms: int | None = None,
        doubt_first: bool = False,
    ) -> Claim:
        kept_ms = self.retention_ms if retention_ms is None else retention_ms
        return Claim(
            digest=self.digest(text),
            handler="on_event",
            text=text,
            lease_ms=self.lease_ms if lease_ms is None else lease_ms,
            retention_ms=kept_ms,
            tenant=self.namespace,
            fingerprint=None if fingerprint is None else blake2b(fingerprint.encode(), digest_size=16).digest(),
            aliases=tuple(
                Alias(self.digest(f"alias {alias}"), kept_ms if alias_retention_ms is None else alias_retention_ms)
                for alias in aliases
            ),
            order=None if subject is None else Order(self.digest(f"subject {subject}"), position),
            doubt_first=doubt_first,
        )

    def claims(self, count: int, text: str = "key") -> list[Claim]:
        return [self.claim(f"{text} {at}") for at in range(count)]


@dataclass(kw_only=True)
class TransactionHarness(Harness):
    """For a TransactionalLedger: how a handler writes by its handle, and what of it can be seen from outside."""

    write: Callable[[Any, str], Awaitable[None]]
    """Write a text by the handle, as a handler would."""

    written: Callable[[], list[str]]
    """The committed texts, read by a connection of its own."""

    meddle: Mapping[str, Callable[[Any], Awaitable[None]]]
    """By name, what a handler can do by its handle to end or break the transaction itself: COMMIT, ROLLBACK, …"""


class Caller:
    """One ledger object, on an event loop of its own. Laws read better without `await`."""

    def __init__(self, open_ledger: Callable[[], Ledger]) -> None:
        self._runner = asyncio.Runner()
        self.ledger = self.run(_called(open_ledger))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.ledger.close())
        self._runner.close()

    def claim_all(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = self.run(self.ledger.claim(claims))
        assert len(verdicts) == len(claims)
        return verdicts

    def claim(self, claim: Claim) -> Verdict:
        (verdict,) = self.claim_all([claim])
        return verdict

    def grant(self, claim: Claim) -> Granted:
        """Claim, where nothing but a grant is right."""
        verdict = self.claim(claim)
        assert isinstance(verdict, Granted)
        assert verdict.lease.claim == claim
        return verdict

    def settle_all(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = self.run(self.ledger.settle(settlements))
        assert len(answers) == len(settlements)
        return answers

    def settle(self, granted: Granted, outcome: Ending, event: bytes | None = None) -> bool:
        letter = None if event is None else DeadLetter(event, granted.attempt)
        (answer,) = self.settle_all([Settlement(granted.lease, outcome, letter)])
        return answer

    def do(self, claim: Claim, result: bytes = b"null") -> Granted:
        """Claim and settle as done."""
        granted = self.grant(claim)
        assert self.settle(granted, Done(result)) is True
        return granted

    def is_done(self, claim: Claim, result: bytes = b"null") -> bool:
        return self.claim(claim) == Settled(Done(result))

    def renew(self, *leases: Lease) -> list[bool]:
        answers = self.run(self.ledger.renew(leases))
        assert len(answers) == len(leases)
        return answers

    def purge(self, limit: int = 10_000) -> int:
        return self.run(self.ledger.purge(limit))

    def entries(self, claim: Claim, state: str | None = None) -> list[Entry]:
        """The catalog's lines of one claim's own key and aliases."""
        wanted = {claim.digest.hex(), *[alias.digest.hex() for alias in claim.aliases]}
        read: Callable[..., Coroutine[Any, Any, list[Entry]]] = self.ledger.entries  # type: ignore[attr-defined]
        return [entry for entry in self.run(read(state, 100_000)) if entry.key in wanted]


async def _called(open_ledger: Callable[[], Ledger]) -> Ledger:
    return open_ledger()  # on the loop: a driver may need one

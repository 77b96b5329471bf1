"""The ledger, inbox and outbox as the service calls them: one wrapper between the engine and the store.

Every call is timed and tracked by `StoreHealth`. Claims, arrivals and new notifications pass the ledger breaker, if
there is one. A store that fails or refuses a call raises LedgerUnavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from semel.core.breaker import State as BreakerState
from semel.core.inbox_flow import LEDGER_DOWN_S
from semel.core.ledger_breaker import LedgerBreaker
from semel.core.resend import outbox_of
from semel.ports import Entry, Inbox, Ledger, StoredOutbox, Telemetry, TransactionalLedger, Waits
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.delivery_state import State
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Taken
from semel.values.log import IncidentLog
from semel.values.notification import Notification
from semel.values.outbox import Added, Decision
from semel.values.outcome import Release

T = TypeVar("T")

RECENT_S = 1.0  # a failure this young may be why a breaker opens; an older one is not


class StoreHealth:
    """Tracks the calls to one store. With a breaker, it logs the breaker's changes and their cause. Without one, it
    logs each failure."""

    def __init__(
        self,
        incident: IncidentLog,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        advice: str = "",
    ) -> None:
        """`quiet`: single failures are not logged here, because a breaker reports through `breaker_changed`, or another
        part logs them. `advice`: what to do about a slow store."""
        self._advice = f". {advice}" if advice else ""
        self._incident = incident
        self._refusals = IncidentLog("ledger_refused", clock=clock)
        self._quiet = quiet
        self._clock = clock
        self._in_flight: dict[object, tuple[str, float]] = {}  # operation and start, oldest first
        self._failure: tuple[float, str] = (0.0, "")  # when, and why
        self._last_answer: tuple[float, str] = (0.0, "")  # duration, and the operation

    async def track(self, operation: str, call: Awaitable[T], telemetry: Telemetry | None = None) -> T:
        """Await one call to the store, and record its duration and its failure."""
        begun, failed = self._clock(), True
        self._in_flight[call] = operation, begun
        try:
            answer = await call
            failed = False
        except LedgerUnavailable as error:
            self._failure = self._clock(), str(error)
            if not self._quiet:
                self._incident.report(str(error))
            raise
        finally:
            seconds = self._clock() - begun
            del self._in_flight[call]
            if telemetry is not None:
                telemetry.asked(operation, seconds, failed)
        self._last_answer = seconds, operation
        if not self._quiet:
            self._incident.resolve()
        return answer

    def raise_unavailable(self, error: SemelError) -> None:
        """Raise LedgerUnavailable for a refusal of a running store (a dropped table, a URL that no longer fits a
        handler): nothing is decided, and the sender retries. A refusal does not open the breaker: the store answers,
        and may work for every other handler."""
        if not isinstance(error, LedgerUnavailable):
            self._refusals.report(str(error))
            raise LedgerUnavailable(str(error)) from error

    def breaker_changed(self, state: BreakerState) -> None:
        """Log the new state. A breaker reopens after each failed probe; that continues the same incident."""
        if state == "open":
            self._incident.report(self._cause())
        elif state == "closed":
            self._incident.resolve()

    def _cause(self) -> str:
        """The text of a recent failure, or the operation that is slow."""
        now = self._clock()
        failed_at, error = self._failure
        if error and now - failed_at < RECENT_S:
            return error
        seconds, operation = self._last_answer
        pending, begun = next(iter(self._in_flight.values()), ("", now))
        if now - begun > seconds:
            return f"no answer to {_with_article(pending)} for {now - begun:.2f} s{self._advice}"
        return f"slow: {_with_article(operation)} took {seconds:.2f} s{self._advice}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


class ServedLedger:
    """A ledger of the service. Claims pass the breaker."""

    def __init__(
        self,
        ledger: Ledger,
        telemetry: Telemetry | None,
        health: StoreHealth,
        breaker: LedgerBreaker | None = None,
    ) -> None:
        self.traits = ledger.traits
        self._ledger, self._telemetry, self._health, self._breaker = ledger, telemetry, health, breaker
        self._releases: set[asyncio.Future[list[bool]]] = set()
        if isinstance(ledger, TransactionalLedger):
            self.transaction = ledger.transaction
        if isinstance(ledger, Waits):
            self.wait = ledger.wait
        if (outbox := outbox_of(ledger)) is not None:
            self.outbox = outbox

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Claim through the breaker. Leases that are granted after the caller has gone are released unused."""
        try:
            if self._breaker is None:
                return await self._health.track("claim", self._ledger.claim(claims), self._telemetry)
            return await self._breaker.ask(
                lambda: self._health.track("claim", self._ledger.claim(claims), self._telemetry),
                self._release_granted,
                len(claims),
            )
        except SemelError as error:  # caught outside of the breaker: a refusal does not open it
            self._health.raise_unavailable(error)
            raise

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        try:
            if self._breaker is None:
                return await self._health.track("settle", self._ledger.settle(settlements), self._telemetry)
            with self._breaker.under_way(len(settlements)):
                return await self._health.track("settle", self._ledger.settle(settlements), self._telemetry)
        except SemelError as error:
            self._health.raise_unavailable(error)
            raise

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        try:
            return await self._health.track("renew", self._ledger.renew(leases), self._telemetry)
        except SemelError as error:
            self._health.raise_unavailable(error)
            raise

    async def purge(self, limit: int) -> int:
        return await self._health.track("purge", self._ledger.purge(limit), self._telemetry)

    async def close(self) -> None:
        await self._ledger.close()

    def _release_granted(self, verdicts: list[Verdict]) -> None:
        unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        if unused:
            release = asyncio.ensure_future(self.settle(unused))
            self._releases.add(release)
            release.add_done_callback(self._released)

    def _released(self, release: asyncio.Future[list[bool]]) -> None:
        self._releases.discard(release)
        if not release.cancelled():
            release.exception()  # retrieved: a lease that could not be released expires


class ServedInbox:
    """An inbox of the service. Arrivals pass the breaker."""

    def __init__(
        self,
        inbox: Inbox,
        telemetry: Telemetry | None,
        health: StoreHealth,
        breaker: LedgerBreaker | None = None,
    ) -> None:
        self._inbox, self._telemetry, self._health, self._breaker = inbox, telemetry, health, breaker

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        try:
            if self._breaker is None:
                return await self._health.track("accept", self._inbox.accept(arrivals), self._telemetry)
            return await self._breaker.ask(
                lambda: self._health.track("accept", self._inbox.accept(arrivals), self._telemetry),
                items=len(arrivals),
            )
        except SemelError as error:
            self._health.raise_unavailable(error)
            raise

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        """While the store is unavailable, wait and return no items."""
        try:
            try:
                return await self._health.track("take", self._inbox.take(wanted, lease_ms), self._telemetry)
            except SemelError as error:
                self._health.raise_unavailable(error)
                raise
        except LedgerUnavailable:  # logged by its health
            await asyncio.sleep(LEDGER_DOWN_S)
            return []

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        try:
            return await self._health.track("finish", self._inbox.finish(endings), self._telemetry)
        except SemelError as error:
            self._health.raise_unavailable(error)
            raise

    async def depths(self) -> list[Depth]:
        return await self._inbox.depths()

    async def history(self, key: str) -> list[Entry]:
        return await self._inbox.history(key)


class ServedOutbox:
    """An outbox of the API. Writes of a waiting caller pass the breaker: they are idempotent, so giving up on an answer
    costs nothing. Reads bypass it, because they do not wait for writers and show nothing about the speed of writes. The
    relay and long operations bypass it too."""

    def __init__(
        self,
        outbox: StoredOutbox,
        health: StoreHealth,
        breaker: LedgerBreaker,
        added: Callable[[], None] = lambda: None,
    ) -> None:
        """`added` is called when there may be a notification to send."""
        self._outbox, self._health, self._breaker, self._added = outbox, health, breaker, added
        self.status, self.find, self.show, self.backlog = outbox.status, outbox.find, outbox.show, outbox.backlog
        self.take, self.cross, self.record, self.purge = outbox.take, outbox.cross, outbox.record, outbox.purge
        self.apply_reports, self.erase = outbox.apply_reports, outbox.erase

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        added = await self._breaker.ask(
            lambda: self._health.track("add", self._outbox.add(notifications)), items=len(notifications)
        )
        self._added()
        return added

    async def decide(self, decision: Decision) -> State | None:
        state = await self._breaker.ask(lambda: self._health.track("decision", self._outbox.decide(decision)))
        self._added()  # a notification that was resolved as not sent is due again
        return state

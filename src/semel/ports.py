"""All protocols between the core and its adapters. Each sentence of a docstring is a law in `semel.testing`."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from semel.values.attempts import FailedAttempt
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.delivery_state import Answer, Contract, State
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions
from semel.values.forwarded import ForwardedEvent
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Taken
from semel.values.notification import Notification
from semel.values.outbox import (
    Added,
    Backlog,
    Crossing,
    CrossingVerdict,
    Decision,
    DeliveryReport,
    Dispatch,
    Lane,
    LookedUp,
    NotificationQuery,
    NotificationView,
    Record,
    Status,
)
from semel.values.outcome import Outcome


class DataLoss(Struct, frozen=True):
    """Acknowledged writes that a store may lose, per fault, as it is configured now. An empty text means none."""

    store_killed: str = ""  # its process is killed, and started again on its data
    power_loss: str = ""
    failover: str | None = None  # None: there is no replica
    tokens_go_back: bool = False  # after such a loss a token may be given twice


class Traits(Struct, frozen=True):
    """The promises of a store. Guarantees are computed from them."""

    name: str  # for people: "SQLite", "memory"
    durable: bool  # acknowledged writes survive the process
    transactional: bool  # it is a TransactionalLedger
    caveat: str = ""  # a setting that weakens its promises: "synchronous=normal may forget on power loss"
    loses: DataLoss = DataLoss()
    async_handle: bool = False  # ctx.tx has to be awaited, so a sync handler cannot use it


class Fact(Struct, frozen=True):
    """One line about a store, a source or a broker, for `semel doctor`."""

    name: str
    value: str
    level: Literal["info", "warning", "error"] = "info"

    def __str__(self) -> str:
        return self.value if self.level == "info" else f"{self.level}: {self.value}"


@runtime_checkable
class Diagnosable(Protocol):
    """Describes itself to `semel doctor`, also before it is opened."""

    async def diagnose(self) -> list[Fact]:
        """Return the facts, with a level for each. An unreachable server is a fact of level "error"."""


class Ledger(Protocol):
    """Stores the state and the result of every key."""

    traits: Traits

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Request the right to run the handler for each key.

        Returns one verdict per claim, in order, as if the claims had arrived one after the other.

        - The first claim of a key is granted. Every concurrent claim gets a verdict.
        - A settled key returns its stored result until its retention ends, also after a reject.
        - The same key with another fingerprint is a Conflict. The stored record does not change.
        - An expired lease is granted again, with a higher token. Every grant counts as an attempt.
        - A key that waits for its retry is Busy until the retry is due.
        - A key that is known under an alias is a duplicate.
        - An event older than the newest applied event of its subject is Stale; an equally old one is not.
        - Two events of one subject are never granted at the same time.
        - A claim with `doubt_first` whose lease expired is granted even if its event is stale, so that its holder can
          record the uncertain run.

        An empty batch checks that the store accepts writes.
        """

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Record the outcome of each run and end its lease.

        Returns False where the token is no longer current; nothing is written for that settlement. Settling again with
        the same token and outcome returns True and changes nothing. Done, Reject and Uncertain are final. Retry keeps
        the key Busy for its delay. Release undoes the claim and its attempt.
        """

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Extend each lease by its full length from now. Returns False for a lost lease; nothing is written for it."""

    async def purge(self, limit: int) -> int:
        """Delete at most `limit` keys whose retention is over. Live leases and waiting retries stay."""

    async def close(self) -> None:
        """Close the connections to the store. Leases stay as they are: they belong to their tokens."""


class Transaction(Protocol):
    """An open transaction of a TransactionalLedger, in which one handler runs."""

    handle: Any
    """The `ctx.tx` of the handler. Its writes become part of this transaction."""

    async def settle(self, settlement: Settlement) -> bool:
        """Write the settlement into this transaction. It takes effect with the commit.

        Returns False if the lease was lost; the transaction does not commit then."""

    def abandon(self) -> None:
        """Roll back now, before the block has ended. The handle refuses further use, and other transactions continue.

        Returns at once. After a settle it does nothing, because the transaction is about to commit."""


@runtime_checkable
class Notifies(Protocol):
    """A transaction of a store that also has an outbox."""

    async def notify(self, notifications: Sequence[Notification]) -> list[Added]:
        """Write notifications into this transaction, before its settle. They take effect with the commit."""


@runtime_checkable
class TransactionalLedger(Ledger, Protocol):
    """A ledger whose store can also hold the handler's own writes."""

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        """Open one transaction for the handler's writes and the settle: they commit together or not at all.

        It commits when the block ends after a settle that returned True, and rolls back in every other case. After the
        block the handle refuses further use."""


@runtime_checkable
class Waits(Protocol):
    """A store with concurrent transactions that can wait for the end of one of them."""

    async def wait(self, claim: Claim, timeout_s: float) -> None:
        """Wait until no open transaction holds this key, or until the time is over. Changes nothing."""


@runtime_checkable
class PlacesKeys(Protocol):
    """A ledger that spreads the keys of a handler over several places, unless it is configured otherwise."""

    together: frozenset[str] | None
    """The handlers whose keys share one place ("*": all of them). None: all keys of the ledger do."""


@runtime_checkable
class HoldsWriteLock(Protocol):
    """A ledger whose writes wait while a handler's transaction is open."""

    @property
    def held_by_handler(self) -> bool:
        """Whether such a transaction holds the write lock now, so that a slow call says nothing about the store."""


@runtime_checkable
class Migrates(Protocol):
    """A store whose schema a privileged user must migrate, once per version."""

    async def pending(self) -> list[str]:
        """List the steps of `migrate`, in order. An empty list means that the store is ready. Changes nothing."""

    async def migrate(self) -> list[str]:
        """Migrate the store while other processes use it. Returns the steps that were made. Every step is made once,
        also if `migrate` runs twice or concurrently."""


@runtime_checkable
class ReadOnly(Protocol):
    """A store that can be used without creating, upgrading or writing anything."""

    def read_only(self) -> None:
        """Create, upgrade and write nothing from now on. Called before the first use."""


@runtime_checkable
class Upgrades(ReadOnly, Protocol):
    """A store that creates and upgrades its own schema when it is opened for writing."""

    async def outdated(self) -> list[str]:
        """List the steps of `upgrade`. Empty if the schema is current or does not exist. Changes nothing."""

    async def upgrade(self) -> list[str]:
        """Upgrade the schema. Returns the steps that were made. An older process cannot open the store afterwards."""


class Arrived(Protocol):
    """A delivery as the engine reads it. Subclass it to inherit the defaults."""

    body: bytes
    tenant: str
    decode_options: DecodeOptions | None = None  # None: those of the app
    headers: Mapping[str, str] | None = None  # of the transport, where it has some
    only: str = ""  # the one handler that it is for; empty: every handler that matches
    key: bytes = b""  # the key under which it was accepted and may have run already


class Delivery(Arrived, Protocol):
    """One arrival of a message. Exactly one of ack, retry and reject is called, and it is called last."""

    receives: int = 1  # how often it was received, where the source counts: a busy event is then retried less often

    async def ack(self) -> None:
        """Acknowledge the delivery: the source may delete it."""

    async def retry(self, after_s: float) -> None:
        """Request a redelivery after this time. It does not count as a failure."""

    async def reject(self, reason: str) -> None:
        """Set the delivery aside with its reason, because no retry can succeed."""


class Source(Protocol):
    """A queue, topic or file that deliveries are received from."""

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Receive at most `limit` deliveries, and wait for the first. Returns none when the source has ended."""


@runtime_checkable
class Stoppable(Protocol):
    """A source that waits for deliveries and has some of them in flight."""

    def stop(self) -> None:
        """Deliver no more: a waiting `receive` returns empty. Deliveries in flight may still be answered."""

    async def close(self) -> None:
        """Stop, return unanswered deliveries, and wait until every answer has reached the source."""


@runtime_checkable
class HidesMessages(Protocol):
    """A source that hides a received message from other consumers for a time."""

    visibility: int  # seconds


@runtime_checkable
class NamedQueue(Protocol):
    """A source with the name of its queue, for the log."""

    queue: str


class Publisher(Diagnosable, Protocol):
    """Forwards events to a broker, for consumers elsewhere."""

    async def publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        """Publish events. Returns one text per event, in order: empty when the broker has stored it, else the reason.

        An unconfirmed event counts as not published: its sender delivers it again, and the consumer detects the
        duplicate. Calls may be concurrent. A call never waits longer than its timeout."""

    async def close(self) -> None:
        """Wait until every call under way has been answered."""


STATES = ("accepted", "leased", "waiting", "done", "dead", "uncertain")
DECIDED = ("replayed", "discarded")  # how a dead or uncertain entry ends; only in `history`


class Entry(Struct, frozen=True):
    """One line of the catalog."""

    key: str  # hex digest, as in ctx.key
    handler: str
    text: str
    tenant: str
    state: str  # one of STATES or DECIDED
    reason: str
    attempts: int
    at_ms: int  # when it came to this state, UTC
    event: bytes | None  # kept for dead and uncertain
    result: bytes | None = None  # JSON, of what is done
    generation: int = 1  # 2 after the first replay
    decision: str = ""  # "replayed" or "discarded" by whom, when and why
    attempt_log: tuple[FailedAttempt, ...] = ()  # of this generation, oldest first; a store may drop it when done


class EntryQuery(Struct, frozen=True):
    """The filters of `Catalog.entries`. By default it lists the newest entries of all states."""

    state: str | None = None
    limit: int = 100
    handler: str = ""
    tenant: str | None = None
    reason: str = ""  # a part of the reason; case is ignored
    since_ms: int = 0
    until_ms: int | None = None

    def __post_init__(self) -> None:
        if self.state not in (None, *STATES):
            raise ConfigError(f"state {self.state!r}: expected one of {', '.join(STATES)}, or nothing for all")

    def wants(self, entry: Entry) -> bool:
        """Whether an entry passes the filters, for stores that scan. `state` and `limit` are checked elsewhere."""
        return (
            self.handler in ("", entry.handler)
            and self.tenant in (None, entry.tenant)
            and self.reason.casefold() in entry.reason.casefold()
            and self.since_ms <= entry.at_ms
            and (self.until_ms is None or entry.at_ms < self.until_ms)
        )


class Catalog(Protocol):
    """The read side for operators. Reading changes nothing and waits for no writer."""

    async def entries(self, query: EntryQuery) -> list[Entry]:
        """List the entries that match, newest first. A replayed or discarded event is no longer dead."""

    async def history(self, key: str) -> list[Entry]:
        """List all entries of one key, newest first: its present state, then earlier generations as they ended, each
        with the operator's decision about it."""

    async def counts(self) -> dict[str, int]:
        """Count the keys in each of STATES."""


@runtime_checkable
class DeadLetters(Protocol):
    """The decisions of operators about dead and uncertain events. Every decision is kept with its reason."""

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        """Begin a new generation of this key: add the event to the inbox for its handler alone, and open the key.

        An event that was kept for a handler elsewhere, or not kept at all, is not added: the next claim of its key is
        granted. All of it happens or nothing. Returns False if the key is not dead or uncertain (any more).

        With `force` a key that is done may begin a new generation too, once for each call: its effect will happen
        again. Its subject does not change: if a newer event of it was applied, this one is still Stale."""

    async def discard(self, key: str, reason: str, by: str) -> bool:
        """Remove the key from the list. Duplicates still get its result. Returns False as for replay."""


@runtime_checkable
class DeadLetterStore(Protocol):
    """Stores the dead letters of a ledger that could lose them."""

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        """Store the dead letters durably, before the ledger settles their leases.

        The same token makes one dead letter however often it comes, also after an operator has decided about it. An
        event that already awaits a decision stays one dead letter: a higher token replaces a lower one, and a lower
        one changes nothing. Another event of the same key is another dead letter."""

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        """Delete the undecided dead letters of exactly these leases: the ledger has refused their settlement."""


@runtime_checkable
class SeparateDeadLetters(Protocol):
    """A ledger whose dead letters go to a separate store or to a bus."""

    dead_letter_store: Any


@runtime_checkable
class Inbox(Protocol):
    """Stores accepted events until they are handled, in the same store as the ledger."""

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        """Store events durably, in order, as if they had arrived one after the other.

        An arrival is a duplicate if all its claims are settled, or if it already waits. It is a conflict if one of its
        claims is known with another fingerprint, in the ledger or in the inbox. Duplicates and conflicts store
        nothing. An "accepted" event is durable.
        """

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        """Take inbox items that are due, at most this many of each lane, the longest due first.

        Each item is leased. When the lease has expired, the item is due again, with a higher token, and the lapse is
        counted. Other lanes are not touched.
        """

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        """Finish, postpone or give up taken items. Returns False where the token is no longer current; nothing is
        written for that item."""

    async def depths(self) -> list[Depth]:
        """Count the waiting items by lane. Reading changes nothing."""

    async def history(self, key: str) -> list[Entry]:
        """List the entries of one key, as in the catalog. A waiting item is "accepted", with the reason of its last
        postponement."""


@runtime_checkable
class ReplaysThrough(Protocol):
    """A ledger without an inbox whose dead letters are replayed through the inbox of another store."""

    replays: Inbox | None


@runtime_checkable
class ThrottledHandler(Protocol):
    """A handler that limits its own runs, such as a route to a destination with a circuit breaker."""

    concurrency: int

    def ready_in_s(self) -> float:
        """Seconds until it can run an event; 0 or less: now."""


@runtime_checkable
class ClassifiedError(Protocol):
    """An exception with a reason class for the log, because its text may contain customer data."""

    reason_class: str
    http_status: int | None


class Outbox(Protocol):
    """Stores notifications until their outcome is known."""

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        """Store notifications durably, in order, as if they had arrived one after the other.

        The same identity is one notification in every state: the answer is "known". With another content it is a
        conflict, and the first one does not change. An erased one is known too."""

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        """Take notifications that are due, at most this many of each provider, by priority and then the longest due.

        A notification is due at its time, at the exit of its uncertain state, or when the lease of its relay has
        expired. It is leased under a higher token. Of one order key only the oldest unfinished one is taken. All relays
        together take no more in any second than a lane's limit allows each tenant; the rest waits, and no attempt is
        counted."""

    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        """Record durably that a message may leave from here on, and pass its guard in the same step.

        In one window of a guard one notification crosses. The others are Held, and Suppressed once that one is accepted
        or uncertain. If that one is refused for good, the guard lets the next one through. Nothing is written under an
        old token."""

    async def record(self, records: Sequence[Record]) -> list[bool]:
        """Record the outcomes of dispatches with their evidence, and end their leases.

        Returns False where the token is no longer current; nothing is written for that record. The same token again
        returns True, and nothing is written twice."""

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        """Apply delivery reports, with or without a lease.

        A report moves a state up or not at all, and is kept as evidence once. A refusal ends a notification that is at
        that provider now and was not sent twice. A second reference of one message is a possible duplicate. Returns the
        states afterwards; None for an unknown message."""


class Notifications(Protocol):
    """The operators' side of an outbox. Reading changes nothing and waits for no writer."""

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        """Answer whether a customer got a message, by recipient and kind or by business key, in one indexed read.

        If several notifications match, the most informative one decides: sent, then unknown, pending, suppressed, and
        not sent; within one of these the newest. One that was given up while uncertain is failed, and unknown. Other
        spellings of a recipient find the same notifications."""

    async def find(self, query: NotificationQuery) -> list[NotificationView]:
        """List notifications without their attempts, newest first, and by id within a millisecond.

        Returns at most `limit`. With `bytes_max`, the notification whose content exceeds it is the last. `until_ms`
        and `after_id` of the last one continue the listing: nothing is repeated or omitted."""

    async def show(self, id: bytes) -> NotificationView | None:
        """Return one notification with its evidence."""

    async def decide(self, decision: Decision) -> State | None:
        """Record an operator's decision with its reason as evidence. Returns the state after it; None if the decision
        does not apply to the present state, and then nothing is written.

        An uncertain notification can be resolved as sent, as not sent or as given up. A pending one that no relay has
        taken can be cancelled or given up. If one of its attempts is in doubt, it becomes uncertain until that is
        decided."""

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        """Erase the content and the recipient of finished notifications, and cancel those that have not left.

        Identities stay known: adding the same notification gives the same answer as before, and guards hold. Returns
        the number of erased notifications."""

    async def backlog(self) -> list[Backlog]:
        """Count unfinished notifications by provider and state. Reads live rows only, however many were sent before."""

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        """Purge at most `limit` notifications that are finished, however old the unfinished ones are.

        Content, recipient and evidence go when the end is before `content_ms`, as by `erase`. Everything goes when it
        is before `identity_ms`: the same call is a new notification from then on. Expired guards go too."""


class StoredOutbox(Outbox, Notifications, Protocol):
    """An outbox with both of its sides: relays send from it, operators read and decide."""


@runtime_checkable
class HasOutbox(Protocol):
    """A ledger whose store can hold an outbox."""

    outbox: StoredOutbox | None


class Provider(Protocol):
    """Sends messages, and reports only outcomes that are certain."""

    contract: Contract

    def prepare(self, dispatch: Dispatch) -> bytes:
        """Build the request, without secrets: the same bytes for the same dispatch, in every version.

        The request is stored, and a retry sends it again. Raises ConfigError for a notification that this provider
        cannot send."""

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        """Send the request once. Accepted and Refused are returned only when they are certain.

        Calls `semel.values.outbox.check_first_byte` before the first byte of the message. Raises nothing but the
        LeaseLost of that check."""

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        """Look for this message at the provider, after the settle time of its contract. Never raises."""

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        """Read the delivery reports in a verified callback. Raises MalformedEvent if the body is no callback."""

    async def close(self) -> None: ...


class Telemetry(Protocol):
    """Observes the flow. Its methods must be quick and must not raise."""

    def span(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        """Wrap a step: "claim", "handle" or "settle". An exception passes through."""

    def granted(self, granted: Granted) -> None:
        """A lease was granted."""

    def refused(self, handler: str) -> None:
        """A settlement was refused, because its lease was lost."""

    def answered(self, outcome: Outcome) -> None:
        """One handler's part of a delivery has its outcome, or a delivery without a handler has one."""

    def asked(self, what: str, seconds: float, failed: bool) -> None:
        """A round trip to the store ended: "claim", "settle", "renew", "accept", "take" or "finish"."""


class Verifier(Protocol):
    """Verifies the sender of a delivery over its raw bytes, before anything is parsed."""

    covers_headers: bool  # False: only the body is proven, and a request whose headers describe an event is refused

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        """Return whether the signature or the credentials match; secrets are compared in constant time.

        Names of headers are in lower case. The values of a repeated header are joined by commas. Raises
        VerifierUnavailable when verification is temporarily impossible, and never because of the request."""


@runtime_checkable
class MessageIdVerifier(Protocol):
    """A verifier whose scheme signs an id of the message. Every redelivery has the same id."""

    def message_id(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the signed id of headers that `verify` has just accepted."""


class Clock(Protocol):
    """The source of time, so that tests can move it."""

    def __call__(self) -> int:
        """Milliseconds since the epoch, UTC. Never goes back while the process lives."""


# The types of `ctx.tx`, by ledger: `ctx: Context[SqliteTx]`. Bare `Context` leaves `ctx.tx` untyped.


class SqliteTx(Protocol):
    """On SQLite. Nothing is awaited."""

    def execute(self, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run one or more statements; returns all rows."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of bindings."""


class PostgresTx(Protocol):
    """On PostgreSQL, as a connection of asyncpg. Everything is awaited."""

    def execute(self, query: str, *args: Any) -> Coroutine[Any, Any, str]: ...
    def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> Coroutine[Any, Any, None]: ...
    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[Any]]: ...
    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Any]: ...
    def fetchval(self, query: str, *args: Any, column: int = 0) -> Coroutine[Any, Any, Any]: ...
    def transaction(self) -> AbstractAsyncContextManager[None]: ...


# Optional abilities of verifiers, sources and ledgers. Each is checked once, when the service is wired.


@runtime_checkable
class QueryVerifier(Protocol):
    """A verifier that may also prove the query of the URL."""

    covers_query: bool


@runtime_checkable
class ChallengingVerifier(Protocol):
    """A verifier whose scheme defines a challenge (RFC 9110, 11.6.1)."""

    challenge: bytes  # the value of WWW-Authenticate in a 401


@runtime_checkable
class ExplainingVerifier(Protocol):
    """A verifier that can explain why it refuses a delivery."""

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Name the check that failed, in one of few fixed texts without any part of the request and without a secret.
        Empty if the delivery is verified. Raises as `verify` does."""


class SourceCounts(Protocol):
    """Counters of a source. They only grow."""

    failures: int  # requests and connections to the broker
    lost: int  # deliveries that the broker redelivers elsewhere


@runtime_checkable
class ExpiringSourceCounts(SourceCounts, Protocol):
    """Counters of a source whose answers can come too late."""

    expired: int  # answers after which the broker redelivers anyway


@runtime_checkable
class CountingSource(Protocol):
    """A source that counts failures that its workers do not see."""

    @property
    def counts(self) -> SourceCounts:
        """The counters since the source was created."""

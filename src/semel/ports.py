"""The seams: every protocol in one file. Each sentence of a docstring is a law in `semel.testing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import ConfigError
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Taken
from semel.values.notification import Notification
from semel.values.outbox import (
    Added,
    Backlog,
    Crossing,
    Decision,
    Dispatch,
    Gate,
    Lane,
    LookedUp,
    Record,
    Shown,
    Sought,
    Status,
    Witness,
)
from semel.values.outcome import Outcome
from semel.values.parcel import Parcel
from semel.values.sending import Answer, Contract, State
from semel.values.tried import Tried


class Loses(Struct, frozen=True):
    """What a store, as it is configured, may forget of what it has answered, by fault. Empty: nothing."""

    store_killed: str = ""  # its process is killed, and started again on its data
    power_loss: str = ""
    failover: str | None = None  # None: nothing takes its place
    tokens_go_back: bool = False  # after such a loss a token may be given twice


class Traits(Struct, frozen=True):
    """What a store can promise; guarantees are computed from it."""

    name: str  # for people: "SQLite", "memory"
    durable: bool  # what it has answered survives the process
    transactional: bool  # it is a TransactionalLedger
    caveat: str = ""  # what weakens its promises, as configured: "synchronous=normal may forget on power loss"
    loses: Loses = Loses()
    async_handle: bool = False  # ctx.tx has to be awaited: a sync handler could do nothing with it


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
        whatever its subject says, so that its holder can tell the doubt. No claims at all ask whether the store can be
        written now.
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

    def abandon(self) -> None:
        """Roll back now, though the block has not ended: the handle refuses to be used, and others need not wait.

        Returns at once. Nothing happens after a settle: the transaction is about to commit."""


@runtime_checkable
class Notifies(Protocol):
    """A transaction of a store that holds an outbox too."""

    async def notify(self, notifications: Sequence[Notification]) -> list[Added]:
        """Write them into this transaction, before its settle; they count when it commits."""


@runtime_checkable
class TransactionalLedger(Ledger, Protocol):
    """A ledger whose store can also hold the handler's own writes."""

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        """One transaction that holds the handler's writes and the settle: they commit together or not at all.

        It commits when the block ends after a settle that answered True, and rolls back in every other case.
        Once the block has ended, the handle refuses to be used."""


@runtime_checkable
class Waits(Protocol):
    """A store that runs transactions beside each other, and can tell when one of them has ended."""

    async def wait(self, claim: Claim, timeout_s: float) -> None:
        """Return when no open transaction holds this key any more, or when the time is over. Changes nothing."""


@runtime_checkable
class Migrates(Protocol):
    """A store that must be made ready, once for each version of its schema, by whoever may change it."""

    async def pending(self) -> list[str]:
        """What `migrate` would do, in order; empty when the store is ready. Changes nothing."""

    async def migrate(self) -> list[str]:
        """Make the store ready, while others use it. Returns what was done. Running it twice, or twice at once,
        does everything once."""


@runtime_checkable
class Upgrades(Protocol):
    """A store that creates itself, and brings its schema forward when it is opened for writing."""

    def read_only(self) -> None:
        """From now on nothing is created, brought forward or written. Called before the first use."""

    async def outdated(self) -> list[str]:
        """What `upgrade` would do; empty when the schema is current or nothing is there. Changes nothing."""

    async def upgrade(self) -> list[str]:
        """Bring the schema forward. Returns what was done. An older process cannot open the store afterwards."""


class Delivery(Protocol):
    """One arrival of a message. Exactly one of ack, retry and reject is called, and it is called last.

    It may have `receives`, how often it has come: where a source counts that, what is busy is not brought too often."""

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


@runtime_checkable
class Stoppable(Protocol):
    """A source that waits for deliveries, and holds some of them."""

    def stop(self) -> None:
        """Hand over nothing more: who waits for a delivery comes back empty. What was handed over may be answered."""

    async def close(self) -> None:
        """Stop; give back what was not answered; return when the source has been told every answer."""


class Publisher(Protocol):
    """Hands events on to a broker, for consumers elsewhere."""

    async def publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """Answer each parcel, in order: empty when the broker has it and will not lose it, else why not.

        What is not known to be there counts as not there: its sender brings it again, and the duplicate is the
        consumer's to find. Several calls may be under way at a time. It never waits longer than its timeout."""

    async def diagnose(self) -> list[tuple[str, str]]:
        """What it publishes to, for people. A value that begins with "error: " or "warning: " is one."""

    async def close(self) -> None:
        """Return when what is under way has been answered."""


STATES = ("accepted", "leased", "waiting", "done", "dead", "uncertain")
DECIDED = ("replayed", "discarded")  # how a dead or uncertain entry ends; only `history` tells


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
    tried: tuple[Tried, ...] = ()  # each failed attempt of this generation, the oldest first; `done` may have forgotten


class Asked(Struct, frozen=True, kw_only=True):
    """What `entries` is asked for."""

    state: str | None
    limit: int
    handler: str
    tenant: str | None
    reason: str
    since_ms: int
    until_ms: int | None

    def __post_init__(self) -> None:
        if self.state not in (None, *STATES):
            raise ConfigError(f"entries({self.state!r}): expected one of {', '.join(STATES)}, or nothing for all")

    def wants(self, entry: Entry) -> bool:
        """For stores that look at each; `state` and `limit` are the business of whoever lists."""
        return (
            self.handler in ("", entry.handler)
            and self.tenant in (None, entry.tenant)
            and self.reason.casefold() in entry.reason.casefold()
            and self.since_ms <= entry.at_ms
            and (self.until_ms is None or entry.at_ms < self.until_ms)
        )


class Catalog(Protocol):
    """The read side, for people. Reading changes nothing and waits for nobody who writes."""

    async def entries(
        self,
        state: str | None = None,
        limit: int = 100,
        *,
        handler: str = "",
        tenant: str | None = None,
        reason: str = "",
        since_ms: int = 0,
        until_ms: int | None = None,
    ) -> list[Entry]:
        """The newest first. `reason` is a part of it, in any case of letters. What was decided is not dead any more."""

    async def history(self, key: str) -> list[Entry]:
        """Everything known of one key, the newest first: its present state, then earlier generations as they ended,
        each with the decision that a person took on it."""

    async def counts(self) -> dict[str, int]:
        """How many keys there are in each of STATES."""


@runtime_checkable
class Letters(Protocol):
    """What a person may decide about dead and uncertain events. Every decision is kept with its reason."""

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        """Begin a new generation of this key: the event goes to the inbox for its handler alone, and the old record
        does not answer its claim. An event that was kept for a handler elsewhere, or not kept at all, goes nowhere: the
        next claim of its key is granted. All of it or nothing. False: the key is not dead or uncertain (any more).

        With `force` a key that is done may begin a new generation too, once for each call: its effect will happen
        again. What is known of its subject stays: when a newer event of it was applied, this one is Stale still."""

    async def discard(self, key: str, reason: str, by: str) -> bool:
        """Take it off the list; duplicates are still answered from its record. False: as for replay."""


@runtime_checkable
class Letterbox(Protocol):
    """Keeps the letters of a ledger elsewhere, which is not to be trusted with them."""

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        """Make their letters durable, before the ledger that gave the leases is told. The same token leaves one letter
        however often it comes, also after a person has decided about it. An event that waits for a person already
        stays one letter: a higher token takes the place of a lower one, and a lower one changes nothing. Another
        event of the same key is another letter."""

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        """Forget what was kept under exactly these leases and waits for a person: the ledger has refused it."""


@runtime_checkable
class Inbox(Protocol):
    """Keeps accepted events until they are handled. In the same store as the ledger."""

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        """Make events durable, in order, as if they had come one after the other.

        An arrival whose claims are all settled is a duplicate, and so is one that waits already. One of its claims
        being known with another fingerprint, in the ledger or in the inbox, makes it a conflict. Duplicates and
        conflicts leave nothing behind. What is answered "accepted" is durable.
        """

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        """Letters that are due, at most so many of each lane, the longest due first.

        What is taken is in nobody else's hands for the lease. When that has lapsed it is due again, with a higher
        token, and the lapse is counted. Lanes that were not asked for are left alone.
        """

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        """False: the token is no longer the current one, and nothing was written."""

    async def depths(self) -> list[Depth]:
        """What waits, by lane. Reading changes nothing."""

    async def history(self, key: str) -> list[Entry]:
        """As the catalog's: an item that waits is "accepted", with the reason for which it was postponed last."""


class Outbox(Protocol):
    """Keeps notifications until it is known what became of them."""

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        """Make notifications durable, in order, as if they had come one after the other.

        The same identity is one notification, whatever its state: it is answered "known". With another content it is
        a conflict, and the first one is untouched. An erased one is known too."""

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        """What is due, at most so many of each provider, by priority and then the longest due first.

        Due is what waits for its time, what is uncertain and has come to its exit, and what a relay has left behind:
        its lease has lapsed. What is taken is in nobody else's hands for the lease, under a higher token. Of one order
        key only the oldest that is not over is ever taken. Over all relays no more is taken in any second than a
        lane's limit allows each tenant; the rest waits, and nothing is counted against it."""

    async def cross(self, crossings: Sequence[Crossing]) -> list[Gate]:
        """Write, durably, that bytes may leave from here on; pass the guards in the same step.

        In one window of a guard one notification crosses, and the others are Suppressed once that one is accepted or
        uncertain, and Held until then. A guard that was passed by what is refused for good lets the next one through.
        Under an old token nothing is written."""

    async def record(self, records: Sequence[Record]) -> list[bool]:
        """Write what came of dispatches, with their evidence, and end their leases. False: the token is no longer the
        current one, and nothing was written. Again with the same token: True, and nothing is written twice."""

    async def witness(self, witnesses: Sequence[Witness]) -> list[State | None]:
        """Take a provider's word, whoever has the lease: it moves a state up or not at all, and is kept as evidence
        once. A refusal ends what is at that provider now, and was not sent twice. A second reference of one message is
        a possible duplicate. Returns the states after it; None: nobody knows this message."""


class Notifications(Protocol):
    """The people's side of an outbox. Reading changes nothing and waits for nobody who writes."""

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        """Did this customer get the message? By recipient and kind, or by business key; in one indexed read.

        What was sent says more than what is unknown, that more than what is pending, that more than what was
        suppressed, that more than what is known not to be sent, and within one of them the newest speaks. What was
        given up in doubt is failed, and unknown. Other spellings of a recipient find the same notifications."""

    async def find(self, sought: Sought) -> list[Shown]:
        """The newest first, and by id within a millisecond, without their attempts. No more than `limit`; with
        `bytes_max`, none behind the one whose content exceeds it. `until_ms` and `after_id` of the last one continue
        the listing: nothing is repeated and nothing is left out."""

    async def show(self, id: bytes) -> Shown | None:
        """One, with all that is known of it."""

    async def decide(self, decision: Decision) -> State | None:
        """Take a person's word, with its reason, into the evidence. Returns the state after it; None: this cannot be
        said of it now, and nothing was written.

        What is uncertain can be said to be sent, not sent or given up. What is pending, and is in nobody's hands, can
        be cancelled or given up; where an attempt is in doubt, that stays so and it is uncertain until it is decided.
        """

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        """Forget the content and the recipient of all that is over, and cancel what has not left. What is known by its
        identity stays known: the same call again is answered as before, and guards hold. Returns how many."""

    async def backlog(self) -> list[Backlog]:
        """What is not over, by provider and state. It reads live rows only, however much was sent before."""

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        """Forget at most so many: content, recipient and evidence of what is over since `content_ms`, as by `erase`;
        all of it since `identity_ms`, from where on the same call is a new notification; and guards that nobody asks
        any more. What is not over stays, however old it is."""


class Provider(Protocol):
    """Sends messages. It tells what it knows of each, and never more."""

    contract: Contract

    def prepare(self, dispatch: Dispatch) -> bytes:
        """The request, without secrets: the same bytes for the same dispatch, in every version. It is kept, and a
        retry sends it again. Raises ConfigError for what this provider cannot send."""

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        """One request, tried once. Accepted and Refused are said only when they are certain. It calls
        `semel.values.first_byte.check_first_byte` before the first byte of the message, and raises nothing but the
        LeaseLost of that."""

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        """Whether it has this message, asked after the settle time of its contract. Never raises."""

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        """What a verified callback of this provider says. Raises MalformedEvent for what is none."""

    async def close(self) -> None: ...


class Telemetry(Protocol):
    """Is told what happens, as it happens. It must be quick, and it must not raise."""

    def span(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        """Around a step: "claim", "handle", "settle". An exception passes through."""

    def granted(self, granted: Granted) -> None:
        """A lease was given."""

    def refused(self, handler: str) -> None:
        """A settle came under a lease that was lost: the fence held."""

    def answered(self, outcome: Outcome) -> None:
        """One delivery and one handler, or a delivery without one."""

    def asked(self, what: str, seconds: float, failed: bool) -> None:
        """One round trip to the store: "claim", "settle", "renew", "accept", "take", "finish"."""


class Verifier(Protocol):
    """Tells whether a delivery comes from whom it should, over its raw bytes, before anything is parsed."""

    covers_headers: bool  # False: only the body is proven, and a request whose headers describe an event is refused

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        """In constant time where secrets are compared. Names of headers are in lower case; a repeated header has its
        values joined by commas. Raises VerifierUnavailable when nobody can tell now, and never for what is sent."""


@runtime_checkable
class MessageIdVerifier(Protocol):
    """A verifier whose scheme signs an id of the message, which is the same in every redelivery of it."""

    def message_id(self, headers: Mapping[bytes, bytes]) -> str:
        """The signed id. The headers are those that `verify` has just accepted."""


class Clock(Protocol):
    """Where time comes from, so that tests can move it."""

    def __call__(self) -> int:
        """Milliseconds since the epoch, UTC. Never goes back while the process lives."""

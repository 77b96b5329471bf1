"""The harness of a ledger under test, which opens the store and advances time, and synchronous callers of a ledger, its
inbox and its outbox."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast
from uuid import uuid4

from semel.ports import Catalog, DeadLetters, Entry, EntryQuery, Inbox, Ledger, Notifications, Outbox
from semel.values import delivery_state as states
from semel.values.claim import Alias, Claim, DeadLetter, Granted, Lease, Order, Settled, Settlement, Verdict
from semel.values.delivery_state import Accepted, Answer, Contract, DeliveryState, Refused, State, Unknown
from semel.values.event import PLAIN, DecodeOptions
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, InboxEnding, Taken
from semel.values.notification import Notification
from semel.values.outbox import (
    Added,
    Crossing,
    CrossingVerdict,
    Decision,
    DeliveryReport,
    Dispatch,
    Lane,
    NotificationView,
    Record,
    Status,
)
from semel.values.outcome import Done, Ending, Reject

T = TypeVar("T")

START_MS = 1_750_000_000_000  # in June 2025
SLEEP_MORE_MS = 5  # a store's clock may count whole milliseconds and start late


class FakeClock:
    """A clock that changes only when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Harness:
    """Access to one store, which may hold other data. Each harness uses its own keys."""

    open: Callable[[], Ledger]
    """Opens another ledger object on the store, or returns the same one if the object is the store."""

    clock: FakeClock | None = None
    """The clock of every opened ledger. None: the store has its own clock, and the laws wait in real time."""

    remote: Callable[[], Ledger] | None = None
    """Opens the store in another process, with the store's own clock. Must be picklable. None: processes cannot share
    the store, and the races between processes are skipped."""

    unit_ms: int = 1000
    """All times in the laws are multiples of this value. At least 10; about 50 with a clock that cannot be moved."""

    batches: Sequence[int] = (1, 7, 100, 501, 1203)
    """Batch sizes to test, some of them above the limit of one statement. A slow store needs smaller ones."""

    rounds: int = 12
    """The rounds of a race. A store whose claims take many milliseconds needs fewer."""

    dispose: Callable[[], None] = lambda: None
    """Called when the store is no longer needed."""

    namespace: str = field(default_factory=lambda: uuid4().hex)

    @property
    def lease_ms(self) -> int:
        return 10 * self.unit_ms

    @property
    def retention_ms(self) -> int:
        return 30 * self.unit_ms

    def advance(self, ms: int) -> None:
        """Move the fake clock, or sleep."""
        if self.clock is not None:
            self.clock.now_ms += ms
        else:
            time.sleep((ms + SLEEP_MORE_MS) / 1000)

    def is_near(self, ms: int, expected_ms: int) -> bool:
        """Compare two times: exactly with a fake clock, otherwise with slack for the duration of the calls."""
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
    """The harness of a TransactionalLedger: writes through a handle, and reads of the committed writes."""

    write: Callable[[Any, str], Awaitable[None]]
    """Writes a text through the handle, as a handler does."""

    written: Callable[[], list[str]]
    """Reads the committed texts through a separate connection."""

    meddle: Mapping[str, Callable[[Any], Awaitable[None]]]
    """Statements by name with which a handler ends or breaks the transaction: COMMIT, ROLLBACK, …"""


class Caller:
    """Calls one ledger object on its own event loop, so that laws need no `await`."""

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
        """Claim and expect a grant."""
        verdict = self.claim(claim)
        assert isinstance(verdict, Granted)
        assert verdict.lease.claim == claim
        return verdict

    def settle_all(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = self.run(self.ledger.settle(settlements))
        assert len(answers) == len(settlements)
        return answers

    def settle(self, granted: Granted, outcome: Ending, event: bytes | None = None) -> bool:
        dead_letter = None if event is None else DeadLetter(event, granted.attempt)
        (answer,) = self.settle_all([Settlement(granted.lease, outcome, dead_letter)])
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
        """The catalog entries of the key and the aliases of a claim."""
        wanted = {claim.digest.hex(), *[alias.digest.hex() for alias in claim.aliases]}
        listed = self.run(cast(Catalog, self.ledger).entries(EntryQuery(state, 100_000)))
        return [entry for entry in listed if entry.key in wanted]


async def _called(open_ledger: Callable[[], Ledger]) -> Ledger:
    return open_ledger()  # on the loop, because a driver may need one


def altered(value: T, **fields: Any) -> T:
    """A frozen value with some of its fields changed."""
    names: tuple[str, ...] = value.__struct_fields__  # type: ignore[attr-defined] # all values are structs
    return type(value)(**{name: getattr(value, name) for name in names} | fields)


class HarnessStore(Ledger, Catalog, Inbox, DeadLetters, Protocol):
    """A ledger with every port that the inbox laws need."""


def lane(harness: Harness, name: str = "lane") -> str:
    """A handler name of this harness. Tests may share a store."""
    return f"{harness.namespace} {name}"


def arrival(
    harness: Harness,
    *claims: Claim | str,
    event: bytes = b"{}",
    to: str = "lane",
    fingerprint: str | None = None,
    decode_options: DecodeOptions = PLAIN,
    trace: str = "",
) -> Arrival:
    """Build an arrival. A text is short for the claim on that key."""
    asked = tuple(harness.claim(c, fingerprint=fingerprint) if isinstance(c, str) else c for c in claims)
    return Arrival(asked, lane(harness, to), event, harness.namespace, decode_options, trace)


def of_handler(harness: Harness, name: str, text: str, fingerprint: str | None = None) -> Claim:
    """The claim of one of several handlers on one event."""
    claim = harness.claim(text, fingerprint=fingerprint)
    return altered(claim, handler=name, digest=harness.digest(f"{name} {text}"))


class InboxCaller(Caller):
    """Calls a ledger and its inbox without `await`."""

    def __enter__(self) -> InboxCaller:
        return self

    @property
    def store(self) -> HarnessStore:
        for port in (Inbox, DeadLetters):
            assert isinstance(self.ledger, port)
        return cast(HarnessStore, self.ledger)

    def accept_all(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        answers = self.run(self.store.accept(arrivals))
        assert len(answers) == len(arrivals)
        return answers

    def accept(self, arrival: Arrival) -> str:
        """Returns the status, followed by the reason if there is one."""
        (answer,) = self.accept_all([arrival])
        return f"{answer.status}: {answer.reason}" if answer.reason else answer.status

    def put(self, arrival: Arrival) -> None:
        """Accept an arrival and expect success."""
        assert self.accept(arrival) == "accepted"

    def take_all(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        return self.run(self.store.take(wanted, lease_ms))

    def take(self, harness: Harness, to: str = "lane", count: int = 10_000, lease_ms: int | None = None) -> list[Taken]:
        """Take items of one handler of this harness."""
        taken = self.take_all({lane(harness, to): count}, harness.lease_ms if lease_ms is None else lease_ms)
        assert all(one.lane == lane(harness, to) for one in taken)
        return taken

    def take_one(self, harness: Harness, to: str = "lane") -> Taken:
        (taken,) = self.take(harness, to)
        return taken

    def finish_all(self, endings: Sequence[InboxEnding]) -> list[bool]:
        answers = self.run(self.store.finish(endings))
        assert len(answers) == len(endings)
        return answers

    def finish(self, ending: InboxEnding) -> bool:
        (answer,) = self.finish_all([ending])
        return answer

    def handle(self, harness: Harness, claim: Claim, outcome: Ending, to: str = "lane") -> Granted:
        """Process the inbox item of one claim as a worker does: take, claim, settle, finish."""
        taken = self.take_one(harness, to)
        granted = self.die(claim, outcome, taken.event, taken.decode_options)
        assert self.finish(Finished(taken)) is True
        return granted

    def die(
        self,
        claim: Claim,
        outcome: Ending | None = None,
        event: bytes | None = b"{}",
        decode_options: DecodeOptions = PLAIN,
    ) -> Granted:
        """Claim and settle. Stores a dead letter if `event` is set."""
        granted = self.grant(claim)
        dead_letter = None if event is None else DeadLetter(event, granted.attempt, decode_options)
        settlement = Settlement(granted.lease, Reject("no") if outcome is None else outcome, dead_letter)
        assert self.settle_all([settlement]) == [True]
        return granted

    def depth(self, harness: Harness, to: str = "lane") -> tuple[int, int]:
        """Returns the numbers of waiting and of taken items."""
        (depth,) = self.depths(harness, to) or [Depth(lane(harness, to), 0, 0, 0)]
        return depth.waiting, depth.taken

    def depths(self, harness: Harness, to: str = "lane") -> list[Depth]:
        return [depth for depth in self.run(self.store.depths()) if depth.lane == lane(harness, to)]

    def replay(self, claim: Claim, reason: str = "fixed", by: str = "anna") -> bool:
        return self.run(self.store.replay(claim.digest.hex(), reason, by))

    def discard(self, claim: Claim, reason: str = "not needed", by: str = "anna") -> bool:
        return self.run(self.store.discard(claim.digest.hex(), reason, by))

    def history(self, claim: Claim) -> list[Entry]:
        return self.run(self.store.history(claim.digest.hex()))

    def states_of(self, claim: Claim) -> list[tuple[str, int]]:
        """The history of a key as pairs of state and generation."""
        return [(entry.state, entry.generation) for entry in self.history(claim)]


ROOM = 1_000


class WithOutbox(Protocol):
    """A ledger with an outbox."""

    @property
    def outbox(self) -> Outbox: ...


def provider(harness: Harness, name: str = "one") -> str:
    """A provider name of this harness. Tests may share a store."""
    return f"{name} {harness.namespace}"


def contract(harness: Harness, name: str = "one", **terms: Any) -> Contract:
    return Contract(name=provider(harness, name), channels=("sms",), **terms)


def notification(harness: Harness, key: str = "order-1", **fields: Any) -> Notification:
    wanted: dict[str, Any] = {
        "key": key,
        "kind": "shipping",
        "recipient": "+491",
        "channel": "sms",
        "body": "On its way",
        "tenant": harness.namespace,
        "provider": provider(harness),
        **fields,
    }
    return Notification(**wanted)


class OutboxCaller(Caller):
    """Calls a ledger and its outbox without `await`."""

    def __enter__(self) -> OutboxCaller:
        return self

    @property
    def outbox(self) -> Outbox:
        return cast(WithOutbox, self.ledger).outbox

    def add(self, *notifications: Notification) -> list[Added]:
        return self.run(self.outbox.add(notifications))

    def take(self, harness: Harness, name: str = "one", room: int = ROOM, per_second: float = 0.0) -> list[Dispatch]:
        provider_name = provider(harness, name)
        return self.run(self.outbox.take({provider_name: Lane(room, provider_name, per_second)}, harness.lease_ms))

    def take_one(self, harness: Harness, name: str = "one") -> Dispatch:
        (dispatch,) = self.take(harness, name)
        return dispatch

    def cross(self, *dispatches: Dispatch, request: bytes | None = b"request") -> list[CrossingVerdict]:
        return self.run(self.outbox.cross([crossing(one, request) for one in dispatches]))

    def record(self, *records: Record) -> list[bool]:
        return self.run(self.outbox.record(records))

    def answer(self, harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> bool:
        """Record the provider's answer to a crossing."""
        (held,) = self.record(answered(harness, dispatch, answer, **terms))
        return held

    def send(self, harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> bool:
        """Cross, then record the provider's answer."""
        (verdict,) = self.cross(dispatch)
        assert type(verdict).__name__ == "Crossed", verdict
        return self.answer(harness, dispatch, answer, **terms)

    def apply_reports(self, *reports: DeliveryReport) -> list[State | None]:
        return self.run(self.outbox.apply_reports(reports))


def open_outbox_caller(open: Callable[[], Ledger]) -> OutboxCaller:
    return OutboxCaller(open)


def crossing(dispatch: Dispatch, request: bytes | None = b"request") -> Crossing:
    return Crossing(dispatch, states.crossed(dispatch.delivery_state, dispatch.taken_ms), request)


def answered(harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> Record:
    """The record that a relay writes for an answer."""
    crossed = states.crossed(dispatch.delivery_state, dispatch.taken_ms)
    after = states.answered(crossed, answer, contract(harness, **terms), dispatch.taken_ms, lambda: 0.0)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "limited" if answer.limited else "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def released(dispatch: Dispatch, **delivery_state: Any) -> Record:
    """The record that releases a dispatch, with an optional change of its delivery state."""
    return Record(dispatch, altered(dispatch.delivery_state, **delivery_state), "released")


def keys_of(dispatches: Sequence[Dispatch]) -> list[str]:
    return [one.notification.key for one in dispatches]


def with_delivery_state(dispatch: Dispatch, delivery_state: DeliveryState) -> Dispatch:
    return altered(dispatch, delivery_state=delivery_state)


def people(sender: OutboxCaller) -> Notifications:
    return cast(Notifications, sender.outbox)


def status(sender: OutboxCaller, message: Notification) -> Status:
    asked = people(sender).status(message.tenant, recipient=message.recipient, kind=message.kind)
    return sender.run(asked)


def shown(sender: OutboxCaller, message: Notification) -> NotificationView:
    found = sender.run(people(sender).show(message.id))
    assert found is not None
    return found


def decide(sender: OutboxCaller, message: Notification, resolution: str) -> State | None:
    return sender.run(people(sender).decide(Decision(message.id, resolution, "because", "ada")))  # type: ignore[arg-type]


def overdue(harness: Harness, sender: OutboxCaller) -> None:
    """Send the due notification, get no answer, and apply its policy when the outcome is overdue."""
    sender.send(harness, sender.take_one(harness), Unknown("timeout"), policy_after_s=harness.unit_ms / 1000)
    harness.advance(harness.unit_ms)
    late = sender.take_one(harness)
    after = states.overdue(late.delivery_state, late.taken_ms)
    assert sender.record(Record(late, after, "policy", after.reason)) == [True]

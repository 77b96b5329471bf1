"""The run of one handler for one event, and the context that the handler gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, overload

from msgspec.structs import replace

from semel.core.clock import steady_s
from semel.core.routing import Handler
from semel.values.claim import Claim, DeadLetter, Granted, Settlement
from semel.values.errors import ConfigError, LeaseLost, LedgerUnavailable, WrongNotification
from semel.values.event import PLAIN, DecodeOptions, Event
from semel.values.notification import Channel, Guard, Notification, Policy
from semel.values.outcome import Ending, Outcome, Reject, Status, Uncertain

MARGIN = 0.1  # share of the lease by which a run ends before it: an effect takes time
LAPSED = "the lease ended: the process stalled, or the ledger could not be reached"

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # every type checker brings it; it is not imported when Semel runs

    Tx = TypeVar("Tx", default=Any, covariant=True)
else:
    from typing import TypeVar

    Tx = TypeVar("Tx")


class Context(Generic[Tx]):
    """The second argument of a handler: its key, its attempt, its transaction and its notifications."""

    __slots__ = ("_over", "_run", "_tx", "attempt", "key", "token")

    def __init__(self, run: HandlerRun, granted: Granted) -> None:
        self._run = run
        self._tx: Any = None
        self._over = False  # the handler has returned
        self.key: str = granted.lease.claim.digest.hex()  # the same in every attempt: pass it downstream
        self.token: int = granted.lease.token  # higher in every grant: let the resource refuse lower ones
        self.attempt: int = granted.attempt

    @property
    def tx(self) -> Tx:
        """The transaction of effect="transaction"; its writes commit with the settle."""
        if self._tx is None:
            raise ConfigError(
                f"ctx.tx: handler {self._run.handler.name!r} has effect={self._run.handler.effect!r}; "
                'only effect="transaction" has a transaction'
            )
        tx: Tx = self._tx
        return tx

    @overload
    def notify(self, notification: Notification, /) -> str: ...

    @overload
    def notify(
        self,
        *,
        kind: str,
        recipient: str,
        channel: Channel,
        key: str = ...,
        body: Any = ...,
        subject: str = ...,
        sender: str = ...,
        template: str = ...,
        data: Mapping[str, Any] = ...,
        tenant: str = ...,
        not_after: datetime | None = ...,
        priority: int = ...,
        order: str = ...,
        guard: Guard | None = ...,
        provider: str = ...,
        policy: Policy | None = ...,
        generation: int = ...,
    ) -> str: ...

    # mypy takes a positional-only parameter beside ** for one that may be missing
    def notify(self, notification: Notification | None = None, /, **fields: Any) -> str:  # type: ignore[misc]
        """Send a message if this run succeeds: it is added to the outbox together with the outcome, or not at all.

        Takes a Notification, or its fields. By default its `key` is the key of this effect and its tenant that of the
        event, so another attempt of this event requests the same message. Returns its id.

        Raises WrongNotification, a ConfigError, for a message that can never be sent. A handler may catch it and
        continue. Otherwise the event is given up at once, because the next attempt would fail the same way: it is
        dead, or uncertain where the effect is "park".
        """
        notifications = self._run.notifications
        if self._over:
            raise ConfigError(
                "ctx.notify: the handler has already returned, so this message cannot be sent with its outcome. Wait "
                "for the handler's tasks and threads before it returns"
            )
        if not self._run.recorded:
            raise LedgerUnavailable("ctx.notify: the ledger is unavailable, so the message cannot be stored")
        if notifications is None:
            raise ConfigError("ctx.notify: the ledger of this app has no outbox; use SQLite or PostgreSQL")
        if notification is None:
            try:
                notification = Notification(**{"key": self.key, "tenant": self._run.event.tenant, **fields})
            except TypeError as error:
                raise WrongCall(f"ctx.notify: {error}") from None
        elif fields:
            raise WrongNotification("ctx.notify takes a Notification or its fields, and not both")
        elif not isinstance(notification, Notification):
            raise WrongCall(f"ctx.notify takes a Notification or its fields, and not {type(notification).__name__}")
        notification.content  # noqa: B018 - encoded here, so that an error has the handler in its traceback
        notifications.append(notification)
        return notification.id.hex()

    def check(self) -> None:
        """Call this on the line before the effect. Raises LeaseLost when another process may run this event now.

        A process that stalls (a paused machine, a long garbage collection) does not notice the end of its lease. This
        compares the lease with a clock that counts during the stall. It makes no call to the store, and works in
        threads too."""
        run = self._run
        if run.lost or steady_s() >= run.effects_until:
            raise LeaseLost(run.stopped or LAPSED)

    @property
    def lost(self) -> bool:
        """True when the lease is lost or time is up: the outcome of this run is refused.

        An async handler is cancelled then. A sync handler cannot be cancelled and should check this before each
        step."""
        return self._run.stopped != "" or self._run.has_lapsed


class WrongCall(WrongNotification, TypeError):
    """Unknown or missing arguments of `ctx.notify`. It is a TypeError too, as for any other call."""


class HandlerRun:
    """The state of one run.

    `stopped` is the reason why the handler was stopped. `lost` means that the run may not settle any more."""

    __slots__ = (
        *("answer", "claim", "delivery", "event", "granted", "handler", "lease_ends", "notifications", "recorded"),
        *("cancels", "lost", "renew_at", "renewing", "result", "settles_until", "settling", "started", "stopped"),
        *("abandon", "cause", "claimed_at", "decode_options", "effects_until", "task", "times_out", "until"),
    )

    def __init__(
        self,
        delivery: int,
        event: Event,
        handler: Handler,
        claim: Claim,
        decode_options: DecodeOptions = PLAIN,
        until: float | None = None,
    ) -> None:
        self.delivery = delivery
        self.event = event
        self.handler = handler
        self.claim = claim
        self.decode_options = decode_options
        self.granted: Granted | None = None
        self.result: Any = None  # returned by the handler
        self.cause: object = None  # the ending of its run, for the log
        self.claimed_at = 0.0  # monotonic seconds; 0: it was not granted
        self.notifications: list[Notification] | None = None  # None: the store has no outbox
        self.recorded = True  # False: it runs without the ledger, on a route that fails open
        self.answer: Outcome | None = None
        self.settling = False  # its settlement was sent to the ledger
        self.settles_until = 0.0  # monotonic seconds; set when the settlement has failed once
        self.task: asyncio.Task[Any] | None = None  # set while the handler runs
        self.abandon: Callable[[], None] | None = None  # ends the transaction that the handler runs in
        self.cancels = 0  # how often `stop` cancelled that task
        self.started = False
        self.stopped = ""
        self.lost = False
        self.renewing = False
        self.lease_ends = self.renew_at = self.effects_until = 0.0  # by `steady_s`: a stall counts
        self.times_out: float | None = None
        self.until = until  # monotonic seconds: the caller needs its outcome by then

    @property
    def lease_s(self) -> float:
        return self.claim.lease_ms / 1000

    def outcome(self, status: Status, result: object = None, reason: str = "", after: float | None = None) -> Outcome:
        """The outcome of this run, with its handler, key and event id."""
        return Outcome(status, result, reason, after, self.handler.name, self.claim.digest.hex(), (), self.event.id)

    def settlement(self, ending: Ending) -> Settlement:
        """The settlement of this run's lease, with a dead letter where the event is given up or uncertain."""
        assert self.granted is not None
        dead_letter = None
        if isinstance(ending, (Reject, Uncertain)):
            dead_letter = DeadLetter(self.event.raw, self.granted.attempt, self.decode_options)
        return Settlement(self.granted.lease, ending, dead_letter)

    def shorten_lease(self, seconds: float) -> None:
        """Claim no longer lease than this: when the caller is gone, the next process may begin."""
        if seconds < self.lease_s:
            self.claim = replace(self.claim, lease_ms=int(seconds * 1000))

    def start_lease(self, asked_at: float) -> None:
        """Start the lease at `asked_at` by `steady_s`: the store's lease began when it was requested, or later."""
        lease_s = self.claim.lease_ms / 1000
        self.lease_ends = asked_at + lease_s
        self.effects_until = self.lease_ends - MARGIN * lease_s
        self.renew_at = asked_at + lease_s / 3
        self.renewing = False

    @property
    def has_lapsed(self) -> bool:
        """Whether the lease is over, or nearly over, so that no effect may begin."""
        return steady_s() >= self.effects_until

    def stop(self, reason: str, lost: bool) -> None:
        """Stop the handler. The first reason is kept."""
        self.lost = self.lost or lost
        self.stopped = self.stopped or reason
        if self.abandon is not None:
            self.abandon()  # the handler may ignore its cancellation
        if self.task is not None:
            self.cancels += 1
            self.task.cancel(reason)


_inside: ContextVar[bool] = ContextVar("_inside", default=False)


class Isolation:
    """Keeps events that may kill their process from running beside each other. One engine has one.

    A process that dies interrupts every run that it has. An event that was in flight in several processes that died
    may be the cause. Such events run one at a time for each handler, so that an innocent event is not counted a further
    attempt for a death that another event causes. No event waits here: one that cannot start is released and
    redelivered."""

    def __init__(self) -> None:
        self._handlers: set[str] = set()  # those with an isolated run
        self._last_attempt = False

    @contextmanager
    def slot(self, handler: str, last_attempt: bool) -> Iterator[bool]:
        """Whether an event of this handler may run now. The slot is free again after the block.

        An event in its last attempt shares the process with no other isolated run: a death that another event causes
        would make it a dead letter. Events that the handler of an isolated run processes itself belong to that run."""
        if _inside.get():
            yield True
            return
        if handler in self._handlers or self._last_attempt or (last_attempt and self._handlers):
            yield False
            return
        self._handlers.add(handler)
        self._last_attempt = last_attempt
        outside = _inside.set(True)
        try:
            yield True
        finally:
            _inside.reset(outside)
            self._handlers.discard(handler)
            self._last_attempt = False

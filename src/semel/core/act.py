"""One event for one handler, on its way through the flow, and what its handler gets to see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, overload

from msgspec.structs import replace

from semel.core.handlers import Handler
from semel.core.steady import steady_s
from semel.values.claim import Claim, Granted
from semel.values.errors import ConfigError, LeaseLost, WrongNotification
from semel.values.event import Event
from semel.values.notification import Channel, Guard, Notification, Policy
from semel.values.outcome import Outcome
from semel.values.reading import PLAIN, Reading

MARGIN = 0.1  # share of the lease by which a run ends before it: an effect takes time
LAPSED = "the lease ended: the process stalled, or the ledger could not be reached"

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # every type checker brings it; it is not imported when Semel runs

    Tx = TypeVar("Tx", default=Any, covariant=True)
else:
    from typing import TypeVar

    Tx = TypeVar("Tx")


class Context(Generic[Tx]):
    """What a handler may know of its run."""

    __slots__ = ("_act", "_over", "_tx", "attempt", "key", "token")

    def __init__(self, act: Act, granted: Granted) -> None:
        self._act = act
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
                f"ctx.tx: handler {self._act.handler.name!r} has effect={self._act.handler.effect!r}; "
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
    def notify(self, notification: Notification | None = None, /, **said: Any) -> str:  # type: ignore[misc]
        """Send a message, if this run succeeds: it is put into the outbox together with the outcome, or not at all.

        Takes a Notification, or what makes one. Its `key` is that of this effect if nothing else is said, and its
        tenant that of the event: another attempt of this event asks for the same message. Returns its id.

        Raises WrongNotification, a ConfigError, for what can never be sent. A handler may catch that and go on. The
        event of one that does not is given up at once, since the next attempt would say the same: it is dead, or in
        doubt where the effect is "park".
        """
        notifications = self._act.notifications
        if self._over:
            raise ConfigError(
                "ctx.notify: the handler has returned, and its outcome goes without what comes now: wait for its tasks "
                "and threads before it returns"
            )
        if notifications is None:
            raise ConfigError("ctx.notify: the ledger of this app holds no outbox; use SQLite or PostgreSQL")
        if notification is None:
            notification = _made({"key": self.key, "tenant": self._act.event.tenant, **said})
        elif said:
            raise WrongNotification("ctx.notify takes a Notification, or what makes one, and not both")
        elif not isinstance(notification, Notification):
            raise WrongCall(
                f"ctx.notify takes a Notification, or what makes one, and not {type(notification).__name__}"
            )
        notification.content  # noqa: B018 - refused here, where the handler stands in the traceback
        notifications.append(notification)
        return notification.id.hex()

    def check(self) -> None:
        """Call this on the line before the effect. Raises LeaseLost when another process may run this event now.

        A process that stalls (a paused machine, a long garbage collection) does not notice the end of its lease. This
        compares the lease with a clock that counts during the stall. It asks no store, and works in threads too."""
        act = self._act
        if act.lost or steady_s() >= act.acts_until:
            raise LeaseLost(act.stopped or LAPSED)

    @property
    def lost(self) -> bool:
        """True when the lease is lost or time is up: whatever this run still does, its outcome is refused.

        An async handler is cancelled then; a sync one, which cannot be, should look here before each step."""
        return self._act.stopped != "" or self._act.has_lapsed


class WrongCall(WrongNotification, TypeError):
    """Arguments that a notification does not have, or lacks: to whoever catches it, as of any other call."""


def _made(said: dict[str, Any]) -> Notification:
    try:
        return Notification(**said)
    except TypeError as error:
        raise WrongCall(f"ctx.notify: {error}") from None


class Act:
    """The state of one run. `stopped` says why it was told to stop; `lost` that it may not settle any more."""

    __slots__ = (
        *("answer", "claim", "delivery", "event", "granted", "handler", "lease_ends", "notifications"),
        *("cancels", "lost", "renew_at", "renewing", "result", "settles_until", "settling", "started", "stopped"),
        *("abandon", "acts_until", "cause", "claimed_at", "reading", "task", "times_out", "until"),
    )

    def __init__(
        self,
        delivery: int,
        event: Event,
        handler: Handler,
        claim: Claim,
        reading: Reading = PLAIN,
        until: float | None = None,
    ) -> None:
        self.delivery = delivery
        self.event = event
        self.handler = handler
        self.claim = claim
        self.reading = reading
        self.granted: Granted | None = None
        self.result: Any = None  # what the handler returned
        self.cause: object = None  # the ending of its run, for the log
        self.claimed_at = 0.0  # monotonic seconds; 0: it was not granted
        self.notifications: list[Notification] | None = None  # None: the store holds no outbox
        self.answer: Outcome | None = None
        self.settling = False  # its ending is on the way to the ledger
        self.settles_until = 0.0  # monotonic seconds; set when that has failed once
        self.task: asyncio.Task[Any] | None = None  # set while the handler runs
        self.abandon: Callable[[], None] | None = None  # ends the transaction that the handler runs in
        self.cancels = 0  # how often we cancelled that task
        self.started = False
        self.stopped = ""
        self.lost = False
        self.renewing = False
        self.lease_ends = self.renew_at = self.acts_until = 0.0  # by `steady_s`: a stall counts
        self.times_out: float | None = None
        self.until = until  # monotonic seconds: the deliverer is gone by then

    @property
    def lease_s(self) -> float:
        return self.claim.lease_ms / 1000

    def ends_within(self, seconds: float) -> None:
        """A lease need not outlive whoever holds it: when that one is gone, the next may begin."""
        if seconds < self.lease_s:
            self.claim = replace(self.claim, lease_ms=int(seconds * 1000))

    def holds_since(self, asked_at: float) -> None:
        """The lease runs, at the worst, from the moment when it was asked for, by `steady_s`."""
        self.lease_ends = asked_at + self.lease_s
        self.acts_until = self.lease_ends - MARGIN * self.lease_s
        self.renew_at = asked_at + self.lease_s / 3
        self.renewing = False

    @property
    def has_lapsed(self) -> bool:
        """Whether the lease is over, or nearly: no effect may begin."""
        return steady_s() >= self.acts_until

    def stop(self, reason: str, lost: bool) -> None:
        """Tell the handler to stop, once for each reason."""
        self.lost = self.lost or lost
        self.stopped = self.stopped or reason
        if self.abandon is not None:
            self.abandon()  # the handler may ignore its cancellation
        if self.task is not None:
            self.cancels += 1
            self.task.cancel(reason)

"""An outbox under test, on an event loop of its own, and the notifications that are put into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from semel.ports import Ledger, Outbox
from semel.testing.clerk import altered
from semel.testing.harness import Caller, Harness
from semel.values import sending
from semel.values.notification import Notification
from semel.values.outbox import Added, Crossing, Dispatch, Gate, Lane, Record, Witness
from semel.values.sending import Accepted, Answer, Contract, Refused, Standing, State, Unknown

ROOM = 1_000


class WithOutbox(Protocol):
    """A ledger whose store holds an outbox too."""

    @property
    def outbox(self) -> Outbox: ...


def provider(harness: Harness, name: str = "one") -> str:
    """Stores may be shared: each harness has providers of its own."""
    return f"{name} {harness.namespace}"


def contract(harness: Harness, name: str = "one", **terms: Any) -> Contract:
    return Contract(name=provider(harness, name), channels=("sms",), **terms)


def notification(harness: Harness, key: str = "order-1", **said: Any) -> Notification:
    wanted: dict[str, Any] = {
        "key": key,
        "kind": "shipping",
        "recipient": "+491",
        "channel": "sms",
        "body": "On its way",
        "tenant": harness.namespace,
        "provider": provider(harness),
        **said,
    }
    return Notification(**wanted)


class Sender(Caller):
    """Laws read better without `await`."""

    def __enter__(self) -> Sender:
        return self

    @property
    def outbox(self) -> Outbox:
        return cast(WithOutbox, self.ledger).outbox

    def add(self, *notifications: Notification) -> list[Added]:
        return self.run(self.outbox.add(notifications))

    def take(self, harness: Harness, name: str = "one", room: int = ROOM, per_second: float = 0.0) -> list[Dispatch]:
        whose = provider(harness, name)
        return self.run(self.outbox.take({whose: Lane(room, whose, per_second)}, harness.lease_ms))

    def take_one(self, harness: Harness, name: str = "one") -> Dispatch:
        (dispatch,) = self.take(harness, name)
        return dispatch

    def cross(self, *dispatches: Dispatch, request: bytes | None = b"request") -> list[Gate]:
        return self.run(self.outbox.cross([crossing(one, request) for one in dispatches]))

    def record(self, *records: Record) -> list[bool]:
        return self.run(self.outbox.record(records))

    def answer(self, harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> bool:
        """What a crossing has come to."""
        (held,) = self.record(answered(harness, dispatch, answer, **terms))
        return held

    def send(self, harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> bool:
        """Cross, and be answered."""
        (gate,) = self.cross(dispatch)
        assert type(gate).__name__ == "Crossed", gate
        return self.answer(harness, dispatch, answer, **terms)

    def witness(self, *witnesses: Witness) -> list[State | None]:
        return self.run(self.outbox.witness(witnesses))


def opened_sender(open: Callable[[], Ledger]) -> Sender:
    return Sender(open)


def crossing(dispatch: Dispatch, request: bytes | None = b"request") -> Crossing:
    return Crossing(dispatch, sending.crossed(dispatch.standing, dispatch.taken_ms), request)


def answered(harness: Harness, dispatch: Dispatch, answer: Answer, **terms: Any) -> Record:
    """As the relay records it."""
    crossed = sending.crossed(dispatch.standing, dispatch.taken_ms)
    after = sending.answered(crossed, answer, contract(harness, **terms), dispatch.taken_ms, lambda: 0.0)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "limited" if answer.limited else "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def released(dispatch: Dispatch, **standing: Any) -> Record:
    """Given back, as it was or with something changed."""
    return Record(dispatch, altered(dispatch.standing, **standing), "released")


def keys_of(dispatches: Sequence[Dispatch]) -> list[str]:
    return [one.notification.key for one in dispatches]


def with_standing(dispatch: Dispatch, standing: Standing) -> Dispatch:
    return altered(dispatch, standing=standing)

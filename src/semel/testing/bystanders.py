"""Unrelated records that are added to the store before each law and compared after it.

A law checks only its own keys, so it does not notice a store that also changes other rows (`or` instead of `and` in a
WHERE clause, a missing tenant). Bystanders are rows of another tenant in every state. Each law of a ledger, an inbox
and an outbox ends with the check that no bystander has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from semel.testing.harness import Caller, Harness, InboxCaller, OutboxCaller, arrival, notification
from semel.values.claim import DeadLetter, Granted, Settlement
from semel.values.delivery_state import Accepted, Refused, Unknown
from semel.values.inbox import Finished
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain

LONG_MS = 10**12  # 31 years: no bystander expires or falls due, even if a race switches to the machine's clock


def watch(bystanders: Bystanders | OutboxBystanders, opened: Callable[[], Caller]) -> Iterator[None]:
    """Add bystanders, run the law, check them. One caller does both: a second connection is slow on some stores."""
    with opened() as caller:
        bystanders.plant(caller)
        yield
        bystanders.check(caller)


class Bystanders:
    """Keys of another tenant: one leased, one waiting for its retry, and one settled with each outcome."""

    SETTLED: tuple[tuple[str, Ending], ...] = (
        ("waiting", Retry(LONG_MS / 1000, "later")),
        ("done", Done(b'{"kept":true}')),
        ("dead", Reject("no such customer")),
        ("uncertain", Uncertain("read timeout")),
    )

    def __init__(self, harness: Harness, *, single_keys: bool = False) -> None:
        """`single_keys`: no aliases and no subjects, for a store that partitions its keys."""
        self.harness = replace(harness, namespace=f"{harness.namespace} bystander")
        self._single_keys = single_keys
        self._before: list[Any] = []

    def plant(self, caller: Caller) -> None:
        claim = partial(self.harness.claim, lease_ms=LONG_MS, retention_ms=LONG_MS, alias_retention_ms=LONG_MS)
        names = ["held", *(name for name, _ in self.SETTLED)]
        self._claims = [
            claim(name, fingerprint=name)
            if self._single_keys
            else claim(name, fingerprint=name, aliases=[f"second {name}"], subject=name, position=at)
            for at, name in enumerate(names)
        ]
        granted = [one for one in caller.claim_all(self._claims) if isinstance(one, Granted)]
        assert len(granted) == len(self._claims)
        self._held, *ended = granted
        settled = [
            Settlement(one.lease, outcome, DeadLetter(b"{}", 1) if isinstance(outcome, (Reject, Uncertain)) else None)
            for one, (_, outcome) in zip(ended, self.SETTLED, strict=True)
        ]
        assert all(caller.settle_all(settled))
        self._before = self.read(caller)

    def check(self, caller: Caller) -> None:
        after = self.read(caller)
        assert after == self._before, "a law changed the records of another tenant"
        assert caller.renew(self._held.lease) == [True], "the lease of a bystander was lost"

    def read(self, caller: Caller) -> list[Any]:
        history: Any = caller.ledger.history  # type: ignore[attr-defined] # every ledger has a catalog

        async def read_all() -> list[Any]:
            # One after the other: concurrent calls would each need a connection.
            return [await history(claim.digest.hex()) for claim in self._claims]

        return caller.run(read_all())


class InboxBystanders(Bystanders):
    """Keys, and two inbox items of another tenant: one waiting, one taken."""

    def plant(self, caller: Caller) -> None:
        clerk = _as(InboxCaller, caller)
        for name in ("taken", "accepted"):
            claim = self.harness.claim(name, retention_ms=LONG_MS)
            clerk.put(arrival(self.harness, claim, event=name.encode(), to=name))
        (self._taken,) = clerk.take(self.harness, "taken", lease_ms=LONG_MS)
        super().plant(caller)

    def check(self, caller: Caller) -> None:
        super().check(caller)
        clerk = _as(InboxCaller, caller)
        (waiting,) = clerk.take(self.harness, "accepted", lease_ms=LONG_MS)
        assert (waiting.event, waiting.lapses) == (b"accepted", 0)
        assert clerk.finish(Finished(self._taken)) is True, "the inbox item of a bystander was lost"

    def read(self, caller: Caller) -> list[Any]:
        clerk = _as(InboxCaller, caller)
        depths = [clerk.depths(self.harness, lane) for lane in ("taken", "accepted")]
        return [*depths, *super().read(caller)]


class OutboxBystanders:
    """Notifications of another tenant, in each state that a store could change by mistake."""

    ANSWERS: tuple[tuple[str, Accepted | Refused | Unknown], ...] = (
        ("accepted", Accepted("reference-1", "accepted")),
        ("uncertain", Unknown("read timeout")),
        ("refused", Refused("busy")),
    )

    def __init__(self, harness: Harness, *, finished: bool = True) -> None:
        """`finished`: include notifications that a purge may erase."""
        self.harness = replace(harness, namespace=f"{harness.namespace} bystander")
        self._answers = self.ANSWERS if finished else self.ANSWERS[1:]

    def plant(self, caller: Caller) -> None:
        sender = _as(OutboxCaller, caller)
        names = ["pending", "sending", *(name for name, _ in self._answers)]
        self._planted = [notification(self.harness, name) for name in names]
        sender.add(*self._planted)
        long = replace(self.harness, unit_ms=LONG_MS // 10)
        dispatches = {one.notification.key: one for one in sender.take(long)}
        del dispatches["pending"]  # held under a lease that outlasts the law
        sender.cross(*dispatches.values())
        for name, answer in self._answers:
            assert sender.answer(self.harness, dispatches[name], answer) is True
        self._before = self.read(caller)

    def check(self, caller: Caller) -> None:
        assert self.read(caller) == self._before, "a law changed the notifications of another tenant"

    def read(self, caller: Caller) -> list[Any]:
        outbox: Any = _as(OutboxCaller, caller).outbox

        async def read_all() -> list[Any]:
            return [await outbox.show(one.id) for one in self._planted]

        return caller.run(read_all())


def _as(kind: Any, caller: Caller) -> Any:
    assert isinstance(caller, kind), f"bystanders need a {kind.__name__}"
    return caller

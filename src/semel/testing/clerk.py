"""A ledger with an inbox under test, on an event loop of its own, and the arrivals that are put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from semel.ports import Catalog, Entry, Inbox, Ledger, Letters
from semel.testing.harness import Caller, Harness
from semel.values.claim import Claim, DeadLetter, Granted, Settlement
from semel.values.inbox import Acceptance, Arrival, Depth, Finished, InboxEnding, Taken
from semel.values.outcome import Ending, Reject
from semel.values.reading import PLAIN, Reading

T = TypeVar("T")


def altered(value: T, **fields: Any) -> T:
    """A frozen value with some of its fields changed."""
    names: tuple[str, ...] = value.__struct_fields__  # type: ignore[attr-defined] # all values are structs
    return type(value)(**{name: getattr(value, name) for name in names} | fields)


class Store(Ledger, Catalog, Inbox, Letters, Protocol):
    """A ledger with everything that the inbox laws ask for."""


def lane(harness: Harness, name: str = "lane") -> str:
    """Stores may be shared: each harness has lanes of its own."""
    return f"{harness.namespace} {name}"


def arrival(
    harness: Harness,
    *claims: Claim | str,
    event: bytes = b"{}",
    to: str = "lane",
    fingerprint: str | None = None,
    reading: Reading = PLAIN,
    trace: str = "",
) -> Arrival:
    """A text stands for the claim on that key."""
    asked = tuple(harness.claim(c, fingerprint=fingerprint) if isinstance(c, str) else c for c in claims)
    return Arrival(asked, lane(harness, to), event, harness.namespace, reading, trace)


def of_handler(harness: Harness, name: str, text: str, fingerprint: str | None = None) -> Claim:
    """The claim of one of several handlers on one event."""
    claim = harness.claim(text, fingerprint=fingerprint)
    return altered(claim, handler=name, digest=harness.digest(f"{name} {text}"))


class Clerk(Caller):
    """Laws read better without `await`."""

    def __enter__(self) -> Clerk:
        return self

    @property
    def store(self) -> Store:
        for port in (Inbox, Letters):
            assert isinstance(self.ledger, port)
        return cast(Store, self.ledger)

    def accept_all(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        answers = self.run(self.store.accept(arrivals))
        assert len(answers) == len(arrivals)
        return answers

    def accept(self, arrival: Arrival) -> str:
        """The status, and the reason where there is one."""
        (answer,) = self.accept_all([arrival])
        return f"{answer.status}: {answer.reason}" if answer.reason else answer.status

    def put(self, arrival: Arrival) -> None:
        """Accept, where nothing else is right."""
        assert self.accept(arrival) == "accepted"

    def take_all(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        return self.run(self.store.take(wanted, lease_ms))

    def take(self, harness: Harness, to: str = "lane", count: int = 10_000, lease_ms: int | None = None) -> list[Taken]:
        """From one lane of this harness."""
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
        """What a worker does with a letter of one claim: take, claim, settle, finish."""
        taken = self.take_one(harness, to)
        granted = self.die(claim, outcome, taken.event, taken.reading)
        assert self.finish(Finished(taken)) is True
        return granted

    def die(
        self, claim: Claim, outcome: Ending | None = None, event: bytes | None = b"{}", reading: Reading = PLAIN
    ) -> Granted:
        """Claim and settle, with a letter where there is an event."""
        granted = self.grant(claim)
        letter = None if event is None else DeadLetter(event, granted.attempt, reading)
        settlement = Settlement(granted.lease, Reject("no") if outcome is None else outcome, letter)
        assert self.settle_all([settlement]) == [True]
        return granted

    def depth(self, harness: Harness, to: str = "lane") -> tuple[int, int]:
        """How many wait and how many are taken."""
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

    def told(self, claim: Claim) -> list[tuple[str, int]]:
        """The history of a key: its states, with their generations."""
        return [(entry.state, entry.generation) for entry in self.history(claim)]

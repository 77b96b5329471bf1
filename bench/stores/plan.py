"""The measurements, their sizes and their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

BATCH, LARGE_BATCH = 100, 500  # what a worker receives at once; what a busy one's batcher sends at once
CALLERS = 256  # concurrent webhooks


@dataclass(frozen=True)
class Sizes:
    """How much a run does. Batches get more work than single calls, so that both take about a second."""

    rounds: int
    claims: int  # of one measure of a ledger or a floor, in batches
    events: int  # of one measure of the whole flow, in batches
    singly: int  # of one measure that goes one by one
    keys: int  # settled keys in the ledger that is full
    store_s: float  # of rounds of one store, after which none is begun: a machine may be busy with other things


FULL = Sizes(rounds=5, claims=50_000, events=20_000, singly=3_000, keys=1_000_000, store_s=90)
QUICK = Sizes(rounds=1, claims=5_000, events=3_000, singly=400, keys=20_000, store_s=30)


@dataclass(frozen=True)
class Sample:
    """The result of one measurement."""

    rate: float  # events a second
    cpu_us: float  # processor time of the client for each event, in all its threads and processes
    server_us: float  # the same of the servers

    @property
    def cpu(self) -> float:
        """The total cost of an event. On a busy machine rates are a matter of luck; this is hardly."""
        return self.cpu_us + self.server_us


@dataclass(frozen=True)
class Scenario:
    """One thing to measure. The preparation (events, connections, an empty store) is not timed."""

    name: str
    label: str
    meaning: str
    measure: Callable[[], Sample]


@dataclass(frozen=True)
class Line:
    """One line of the table: a scenario, alone or against another one of the same round, and what is aimed at."""

    scenario: str
    against: str = ""
    at_least: float | None = None  # of the ratio of rates
    cpu_at_most: float | None = None  # µs of the client for each event
    unjudged: str = ""  # why this machine, or this run, cannot tell whether the aim is met


class Store(Protocol):
    """A store with everything that is measured on it. Its servers run while it is open."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def lines(self) -> Sequence[Line]: ...
    @property
    def scenarios(self) -> Sequence[Scenario]: ...

    def prepare(self, advance: Callable[[int], None]) -> None:
        """Runs once, before the rounds. `advance` is called with the number of new keys of `Sizes.keys`."""

    def remarks(self) -> list[str]:
        """Notes for the reader of the numbers."""

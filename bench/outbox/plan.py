"""The measurements of an outbox, their sizes and their targets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from bench.stores.timing import Meter

from semel.values.notification import Notification

FEW = 1_000  # finished messages in the small outbox
AIMED = 1_000_000  # finished messages in the large outbox
BATCH = 100


@dataclass(frozen=True)
class Sizes:
    """The size of a run. Batches get more work than single calls, so that both take about a second."""

    rounds: int
    relayed: int  # messages of one measure of a relay, or of the bare client
    looped: int  # messages of the hand-written loop
    added: int  # transactions with one message in each
    takes: int  # of a hundred each
    asked: int  # status queries for one message
    finished: int  # finished messages
    store_s: float  # time limit for the rounds of one store; no round starts after it


FULL = Sizes(rounds=5, relayed=5_000, looped=1_000, added=400, takes=20, asked=2_000, finished=AIMED, store_s=240)
QUICK = Sizes(rounds=1, relayed=1_000, looped=200, added=100, takes=5, asked=300, finished=20_000, store_s=60)

Figures: TypeAlias = Mapping[str, float]
"""The figures of one measurement, by name."""


@dataclass(frozen=True)
class Scenario:
    """One measurement. Its preparation is not timed."""

    name: str
    meaning: str
    measure: Callable[[], Figures]


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure, alone or compared with another one of the same round, and its target."""

    figure: str
    label: str
    unit: str
    against: str = ""
    at_least: float | None = None  # of the ratio
    at_most: float | None = None  # of the ratio, or of the figure if it is compared with none
    unjudged: str = ""  # why this run cannot judge the target


Pending: TypeAlias = tuple[Notification, Callable[[str], Awaitable[None]]]
"""A message, and a function that records its reference."""


class Queue(Protocol):
    """The table of the hand-written loop."""

    def one(self) -> AbstractAsyncContextManager[Pending | None]:
        """The oldest pending message, or None. It is committed at the end of the block at the latest."""


class Tally(Protocol):
    """The statements that were sent to a store while they were counted."""

    statements: int
    transactions: int


class Caller(Protocol):
    """A caller with its own table, connection and transaction."""

    statements: int  # over the connection since the last count

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction with one write of the caller."""

    async def add(self, notifications: Sequence[Notification]) -> None:
        """Add messages with Semel."""

    async def insert(self, notifications: Sequence[Notification]) -> None:
        """The floor: insert rows into a table that has only its primary key."""


class Store(Protocol):
    """A store of an outbox, while it is open."""

    name: str
    title: str

    @property
    def server(self) -> Meter:
        """The processor time of the server. An embedded store has none."""

    def new(self) -> str:
        """The URL of an empty outbox."""

    def drop(self, url: str) -> None: ...

    def queue(self, notifications: Sequence[Notification]) -> AbstractAsyncContextManager[Queue]: ...

    def caller(self, url: str) -> AbstractAsyncContextManager[Caller]: ...

    def counting(self, url: str) -> AbstractContextManager[Tally]:
        """Count the statements sent to this outbox during the block, by ledgers opened in the block."""

    def multiply(self, url: str, number: int) -> None:
        """Copy the one finished message this many times, each with another key and recipient, numbered as by
        `sending.notifications`. The rows are copied, so that they equal the rows that the store writes."""

    def remarks(self) -> list[str]: ...


Open: TypeAlias = Callable[[Path], AbstractContextManager[Store]]

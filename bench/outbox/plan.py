"""The measurements of an outbox, their sizes and their targets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from bench.stores.timing import Meter

from semel.values.notification import Notification

FEW = 1_000  # messages that are over, in the outbox that hardly has any
AIMED = 1_000_000  # and in the one that has many
BATCH = 100


@dataclass(frozen=True)
class Sizes:
    """How much a run does. Batches get more work than single calls, so that both take about a second."""

    rounds: int
    relayed: int  # messages of one measure of a relay, or of the bare client
    looped: int  # of the loop by hand
    added: int  # transactions with one message in each
    takes: int  # of a hundred each
    asked: int  # questions about the status of one
    finished: int  # messages that are over
    store_s: float  # of rounds of one store, after which none is begun


FULL = Sizes(rounds=5, relayed=5_000, looped=1_000, added=400, takes=20, asked=2_000, finished=AIMED, store_s=240)
QUICK = Sizes(rounds=1, relayed=1_000, looped=200, added=100, takes=5, asked=300, finished=20_000, store_s=60)

Figures: TypeAlias = Mapping[str, float]
"""The figures of one measurement, by name."""


@dataclass(frozen=True)
class Scenario:
    """What is measured at a time. Its preparation is not timed."""

    name: str
    meaning: str
    measure: Callable[[], Figures]


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure, alone or against another one of the same round, and what is aimed at."""

    figure: str
    label: str
    unit: str
    against: str = ""
    at_least: float | None = None  # of the ratio
    at_most: float | None = None  # of the ratio, or of the figure where it is compared with none
    unjudged: str = ""  # why this run cannot tell whether the aim is met


Pending: TypeAlias = tuple[Notification, Callable[[str], Awaitable[None]]]
"""A message, and a way to say under which reference it was sent."""


class Queue(Protocol):
    """The table of the loop by hand."""

    def one(self) -> AbstractAsyncContextManager[Pending | None]:
        """The oldest that is left, committed at the end of the block at the latest; None: there is none."""


class Tally(Protocol):
    """The statements that were sent to a store while they were counted."""

    statements: int
    transactions: int


class Caller(Protocol):
    """A caller with its own table, connection and transaction."""

    statements: int  # over the connection since the last look

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """With one write of their own in it."""

    async def add(self, notifications: Sequence[Notification]) -> None:
        """By Semel."""

    async def insert(self, notifications: Sequence[Notification]) -> None:
        """The floor: rows into a table without any index but its key."""


class Store(Protocol):
    """A store of an outbox, while it is open."""

    name: str
    title: str

    @property
    def server(self) -> Meter:
        """Its processor time. One that is embedded has none of its own."""

    def new(self) -> str:
        """The URL of an outbox with nothing in it."""

    def drop(self, url: str) -> None: ...

    def queue(self, notifications: Sequence[Notification]) -> AbstractAsyncContextManager[Queue]: ...

    def caller(self, url: str) -> AbstractAsyncContextManager[Caller]: ...

    def counting(self, url: str) -> AbstractContextManager[Tally]:
        """Whatever is sent to this outbox meanwhile, by ledgers that are opened meanwhile."""

    def multiply(self, url: str, number: int) -> None:
        """There is one message that is over: make so many of it, each of another key and to another recipient, as
        `sending.notifications` counts them. Its rows are copied, so that they are what the store itself writes."""

    def remarks(self) -> list[str]: ...


Open: TypeAlias = Callable[[Path], AbstractContextManager[Store]]

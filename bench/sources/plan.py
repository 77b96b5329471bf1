"""The measurements of a source, their sizes and their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from bench.stores.plan import Sample, Scenario

__all__ = ["FULL", "QUICK", "Line", "Open", "Part", "Sample", "Scenario", "Sizes"]

DUPLICATES = 0.3  # share of the events that arrive twice


@dataclass(frozen=True)
class Sizes:
    """The size of a run. Batches get more work than single calls, so that both take seconds."""

    rounds: int
    messages: int  # of one measure that works in batches; with fewer than 12,000 copies meet originals, and wait
    singly: int  # of one measure that goes one by one


FULL = Sizes(rounds=5, messages=40_000, singly=1_000)
QUICK = Sizes(rounds=1, messages=12_000, singly=200)


@dataclass(frozen=True)
class Line:
    """One line of the table: a scenario, alone or compared with another one of the same round, and its target."""

    scenario: str
    against: str = ""
    at_least: float | None = None  # of the ratio of rates
    rate_at_least: float | None = None  # messages a second
    or_reaches: str = ""  # a scenario whose rate is enough where it is the lower one: the client's own ceiling


class Part(Protocol):
    """A transport with all its measurements. Its servers run while it is open."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def lines(self) -> Sequence[Line]: ...
    @property
    def scenarios(self) -> Sequence[Scenario]: ...

    def remarks(self) -> list[str]:
        """Notes for the reader of the numbers."""


Open: TypeAlias = Callable[[Path, Sizes], AbstractContextManager[Part]]

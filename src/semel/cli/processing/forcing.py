"""`--force`: what has succeeded is run again, once for each run of the command, and never without a reason.

The decision is kept with the key, under a name that this run and those that resume it have in common: a copy of the
event further down in the file, or a second reading after a crash, finds it there. What was done for the first time by
this very run is left alone too: it is known by its time, and by memory, since the ledger's clock may be another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from semel.cli.operating.words import iso
from semel.ports import Catalog, Letters
from semel.values.outcome import Outcome

TOGETHER = 32  # keys that are asked about at a time
OURS_MAX = 1_000_000  # done by this run, in memory: about 100 MB; by then clocks are the same to a minute


class Decided(Catalog, Letters, Protocol):
    """A ledger in which people can look and decide."""


class Forcing:
    """Begins new generations of keys that were done before this run."""

    def __init__(self, ledger: Decided, reason: str, by: str, began_ms: int) -> None:
        self.began_ms = began_ms  # of the first run, where this one goes on from it
        self._ledger = ledger
        self._name = f"[semel process {iso(began_ms)}]"
        self._reason = f"{self._name} {reason}"  # a store may cut what is very long, at its end
        self._by = by
        self._ours: set[str] = set()

    async def reopened(self, outcomes: Sequence[Outcome]) -> list[int]:
        """The places of those whose keys can be claimed again now."""
        known: dict[str, int] = {}
        for at, outcome in enumerate(outcomes):
            for part in outcome.parts or (outcome,):
                if part.status == "done" and len(self._ours) < OURS_MAX:
                    self._ours.add(part.key)
                elif _had_succeeded(part) and part.key not in self._ours:
                    known.setdefault(part.key, at)
        again: set[int] = set()
        keys = list(known)
        for first in range(0, len(keys), TOGETHER):
            some = keys[first : first + TOGETHER]
            # All are waited for, also when one fails: whoever is late would reopen what was forced meanwhile.
            answers = await asyncio.gather(*map(self._reopen, some), return_exceptions=True)
            for key, reopened in zip(some, answers, strict=True):
                if isinstance(reopened, BaseException):
                    raise reopened
                if reopened:
                    again.add(known[key])
        return sorted(again)

    async def _reopen(self, key: str) -> bool:
        history = await self._ledger.history(key)
        if any(self._name in entry.decision for entry in history):
            return False  # it has had its turn
        if not history or history[0].at_ms >= self.began_ms:
            return False
        return await self._ledger.replay(key, self._reason, self._by, force=True)


def _had_succeeded(part: Outcome) -> bool:
    """Not those that are dead or in doubt: they wait for a person, who has other commands for them."""
    return part.status == "duplicate" and not part.reason and bool(part.key)

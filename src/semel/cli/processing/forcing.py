"""`--force`: what has succeeded is run again, once for each run of the command, and never without a reason.

The decision is kept with the key, under a name that this run and those that resume it have in common: a copy of the event
further down in the file, or a second reading after a crash, finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from semel.ports import Catalog, Letters
from semel.values.outcome import Outcome

TOGETHER = 32  # keys that are asked about at a time


class Decided(Catalog, Letters, Protocol):
    """A ledger in which people can look and decide."""


class Forcing:
    """Begins new generations of keys that are done."""

    def __init__(self, ledger: Decided, reason: str, by: str, name: str) -> None:
        self._ledger = ledger
        self._reason = f"{reason} [{name}]"
        self._name = f"[{name}]"
        self._by = by

    async def reopened(self, outcomes: Sequence[Outcome]) -> list[int]:
        """The places of those whose keys can be claimed again now."""
        keys = {part.key: at for at, outcome in enumerate(outcomes) for part in _parts(outcome) if _had_succeeded(part)}
        waiting = list(keys)
        again: set[int] = set()
        for first in range(0, len(waiting), TOGETHER):
            some = waiting[first : first + TOGETHER]
            for key, reopened in zip(some, await asyncio.gather(*map(self._reopen, some)), strict=True):
                if reopened:
                    again.add(keys[key])
        return sorted(again)

    async def _reopen(self, key: str) -> bool:
        if any(self._name in entry.decision for entry in await self._ledger.history(key)):
            return False  # by this run: it has had its turn
        return await self._ledger.replay(key, self._reason, self._by, force=True)


def _parts(outcome: Outcome) -> Sequence[Outcome]:
    return outcome.parts or (outcome,)


def _had_succeeded(part: Outcome) -> bool:
    """Not those that are dead or in doubt: they wait for a person, who has other commands for them."""
    return part.status == "duplicate" and not part.reason and bool(part.key)

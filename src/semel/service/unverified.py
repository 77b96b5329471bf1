"""What was not verified, in the log: at which door, and which check failed. Whoever sent it is told neither.

The words are ours: nothing of what was sent gets into them, and no secret. Anybody can send what is not verified, so a
reason has one line in a while, with how many there were, and a flood of forgeries is not looked at one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from semel.service.doors import Door
from semel.values.log import log

SAY_S = 60.0  # between two lines of one door and one reason
LOOKS_MAX = 20  # in a second; the others are only counted
REASONS_MAX = 100  # that are told apart

NOT_TOLD = "its verifier does not say why"
NOT_LOOKED_AT = "too many at a time to look at each"


@runtime_checkable
class Objecting(Protocol):
    """A verifier that can tell what it has against a delivery."""

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Which check failed, in words of ours: nothing of what was sent, no secret, and few different ones. Empty:
        none, it is verified. Raises as `verify` does."""


class Unverified:
    """One for all doors of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}  # since their last line
        self._said: dict[tuple[str, str], float] = {}
        self._second, self._looks = 0, 0

    async def tell(self, door: Door, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """A delivery at this door was refused."""
        reason = (door.path, await self._objection(door, headers, body) if self._may_look() else NOT_LOOKED_AT)
        if reason not in self._said and len(self._said) >= REASONS_MAX:
            reason = (door.path, NOT_TOLD)
        count = self._counts[reason] = self._counts.get(reason, 0) + 1
        now = self._clock()
        if now - self._said.get(reason, now - SAY_S) < SAY_S:
            return
        self._said[reason] = now
        del self._counts[reason]
        path, why = reason
        log.warning("delivery_unverified", endpoint=path, count=count, reason=why)

    def _may_look(self) -> bool:
        second = int(self._clock())
        self._looks = self._looks + 1 if second == self._second else 1
        self._second = second
        return self._looks <= LOOKS_MAX

    async def _objection(self, door: Door, headers: Mapping[bytes, bytes], body: bytes) -> str:
        if not isinstance(door.verifier, Objecting):
            return NOT_TOLD
        try:
            return await door.verifier.objection(headers, body) or NOT_TOLD
        except Exception:  # it is refused all the same, whatever keeps us from saying why
            return NOT_TOLD

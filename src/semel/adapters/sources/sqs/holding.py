"""What is in our hands: received, and the queue does not know our answer yet.

In a FIFO queue a group's messages come together, and are handed on one at a time: the next one when the one before it
is settled. When one fails, those behind it go back, so that nothing overtakes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


class Held:
    """One receipt of a message."""

    __slots__ = ("attributes", "given_up", "group", "id", "receipt", "received_at", "receives", "text", "visible_at")

    def __init__(self, message: Mapping[str, Any], asked_at: float, visible_at: float) -> None:
        told: Mapping[str, str] = message.get("Attributes", {})
        self.id: str = message["MessageId"]
        self.receipt: str = message["ReceiptHandle"]
        self.text: str = message.get("Body", "")
        self.attributes: Mapping[str, Any] = message.get("MessageAttributes", {})
        self.group = told.get("MessageGroupId", "")
        self.receives = int(told.get("ApproximateReceiveCount", "1"))
        self.received_at = asked_at  # when we asked: what the queue counts began later
        self.visible_at = visible_at  # when others may see it, if it is not extended
        self.given_up = False  # nobody extends it any more

    def attribute(self, name: str) -> str | bytes:
        """What its sender wrote beside it; empty: nothing."""
        told: Mapping[str, Any] = self.attributes.get(name, {})
        said: str | bytes = told.get("StringValue") or told.get("BinaryValue") or ""
        return said


class Hand:
    """At most `most` messages. Order is kept within a group only."""

    def __init__(self, most: int, *, fifo: bool) -> None:
        self._most = most
        self._fifo = fifo  # a standard queue may have groups too, but promises no order
        self._held: dict[Held, None] = {}  # in the order of their receipt
        self._ready: deque[Held] = deque()
        self._behind: dict[str, deque[Held]] = {}  # of every group with a message that is ready or handed out
        self._reserved = 0
        self._changed = asyncio.Event()
        self._awaited = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def kept(self) -> list[Held]:
        """All whose visibility is to be extended."""
        return [held for held in self._held if not held.given_up]

    # ------------------------------------------------------------------------------------------------ coming in

    async def reserve(self, wanted: int) -> int:
        """Room for this many, when there is: small receives cost as much as large ones."""
        wanted = min(wanted, self._most)
        while self._most - len(self._held) - self._reserved < wanted:
            await self.changed()
        self._reserved += wanted
        return wanted

    def put(self, received: Iterable[Held], reserved: int) -> None:
        self._reserved -= reserved
        for held in received:
            self._held[held] = None
            if not self._fifo:
                self._ready.append(held)
            elif held.group in self._behind:
                self._behind[held.group].append(held)
            else:
                self._behind[held.group] = deque()
                self._ready.append(held)
        self._tell()

    # ---------------------------------------------------------------------------------------------- going through

    def take(self, limit: int) -> list[Held]:
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def goes_on(self, held: Held) -> None:
        """This one is settled: the next of its group is ready."""
        if not self._fifo or (behind := self._behind.get(held.group)) is None:
            return
        if behind:
            self._ready.append(behind.popleft())
            self._tell()
        else:
            del self._behind[held.group]

    def stops(self, held: Held) -> list[Held]:
        """This one goes back to the queue: so do all that wait behind it, in order."""
        return list(self._behind.pop(held.group, ())) if self._fifo else []

    def lost(self, held: Held) -> list[Held]:
        """The queue will give it to somebody else. Where it was still waiting it is not handed on, nor is anything of
        its group behind it: returns those."""
        held.given_up = True
        if held in self._ready:
            self._ready.remove(held)
            self.forget(held)
            return self.stops(held)
        behind = self._behind.get(held.group) if self._fifo else None
        if behind is None or held not in behind:
            return []  # somebody works on it
        at = behind.index(held)
        rest = list(behind)[at + 1 :]
        for _ in range(len(rest) + 1):
            behind.pop()
        self.forget(held)
        return rest

    # ------------------------------------------------------------------------------------------------- going out

    def forget(self, held: Held) -> None:
        """The queue knows our answer, or will never hear it."""
        held.given_up = True
        self._held.pop(held, None)
        self._tell()

    def waiting(self) -> list[Held]:
        """Take back everything that was not handed out, in order."""
        waiting = [*self._ready, *[held for behind in self._behind.values() for held in behind]]
        for held in self._ready:
            self._behind.pop(held.group, None)
        self._ready.clear()
        for behind in self._behind.values():  # of groups with a message that is handed out
            behind.clear()
        return waiting

    async def changed(self) -> None:
        """Until something has come or gone."""
        self._awaited = True
        await self._changed.wait()

    def _tell(self) -> None:
        if self._awaited:  # mostly nobody waits, and this is called for each message
            self._changed.set()
            self._changed = asyncio.Event()
            self._awaited = False

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._tell()

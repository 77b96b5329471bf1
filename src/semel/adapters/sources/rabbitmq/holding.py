"""What is in our hands: delivered on a channel that lives, and the broker does not know our answer yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

if TYPE_CHECKING:
    from semel.adapters.sources.rabbitmq.session import Session

ID_MAX_CHARS = 80


class Held:
    """One delivery of a message, as it came."""

    __slots__ = ("answered", "body", "exchange", "properties", "received_at", "routing_key", "session", "tag")

    def __init__(self, session: Session, message: Any, received_at: float) -> None:
        """`message` is the driver's."""
        self.session = session
        self.body: bytes = message.body
        self.properties: Basic.Properties = message.header.properties
        self.tag: int = message.delivery.delivery_tag
        self.exchange: str = message.delivery.exchange or ""
        self.routing_key: str = message.delivery.routing_key or ""
        self.received_at = received_at
        self.answered = False  # somebody has decided what becomes of it

    @property
    def id(self) -> str:
        """For people. A stranger wrote it: no line of a log may end in it."""
        id = self.properties.message_id
        return repr(id)[:ID_MAX_CHARS] if id else f"without id (delivery {self.tag})"

    @property
    def returns(self) -> int:
        """How often it was given back, by whomever. Only quorum queues count; others have no limit either."""
        count = self.header("x-delivery-count")
        return count if type(count) is int and count > 0 else 0

    def header(self, name: str) -> Any:
        return (self.properties.headers or {}).get(name)


class Hand:
    """The broker keeps it bounded: it delivers no more than the prefetch."""

    def __init__(self) -> None:
        self._held: dict[Held, None] = {}  # in the order of their arrival
        self._ready: deque[Held] = deque()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: Held) -> None:
        self._held[held] = None
        self._ready.append(held)
        self.wake()

    def take(self, limit: int) -> list[Held]:
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def waiting(self) -> list[Held]:
        """Take everything that was not handed out, in order."""
        return self.take(len(self._ready))

    def older_than(self, moment: float) -> list[Held]:
        """What arrived before that and is still unanswered."""
        return [held for held in self._held if held.received_at <= moment and not held.answered]

    def unanswered(self) -> list[Held]:
        return [held for held in self._held if not held.answered]

    def forget(self, held: Held) -> None:
        """The broker knows our answer, or will never hear it."""
        held.answered = True
        self._held.pop(held, None)

    def lose(self, session: Session) -> int:
        """Its channel is closed: the broker delivers all of it again, to somebody. Returns how many."""
        lost = [held for held in self._held if held.session is session]
        for held in lost:
            self.forget(held)
        self._ready = deque(held for held in self._ready if held.session is not session)
        return len(lost)

    def drop(self, held: Held) -> None:
        """Do not hand it out, if that has not happened yet."""
        if held in self._ready:
            self._ready.remove(held)

    async def changed(self) -> None:
        """Until something has come, or somebody called `wake`."""
        await self._changed.wait()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

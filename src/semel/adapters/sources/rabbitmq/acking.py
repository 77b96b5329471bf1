"""Acknowledgements of one channel, in as few frames as can be.

What is answered while frames are on their way forms the next batch. Where everything up to a delivery is answered, one
frame says so for all of it; what was answered out of order gets a frame of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from aiormq.abc import AbstractChannel

from semel.adapters.sources.rabbitmq.connecting import LOST
from semel.adapters.sources.rabbitmq.steps import Observer, Step


class Acks:
    """Adding does not wait. A channel that is closed hears nothing any more, and that is no loss."""

    def __init__(self, channel: AbstractChannel, observe: Observer, told: Callable[[int, int], None]) -> None:
        """`told` is called with how many were acknowledged and how many were given back."""
        self._channel = channel
        self._observe = observe
        self._told = told
        self._acked: list[int] = []
        self._returned: list[int] = []
        self._floor = 0  # everything up to this delivery is answered
        self._above: set[int] = set()  # what is answered beyond it
        self._telling: asyncio.Task[None] | None = None

    def ack(self, tag: int) -> None:
        self._acked.append(tag)
        self._tell_soon()

    def give_back(self, tag: int) -> None:
        """To the front of its queue, for anybody."""
        self._returned.append(tag)
        self._tell_soon()

    async def drained(self) -> None:
        while self._telling is not None:
            await asyncio.wait([self._telling])

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._acked or self._returned:
                acked, self._acked = self._acked, []
                returned, self._returned = self._returned, []
                with suppress(*LOST):
                    await self._send(acked, returned)
        finally:
            self._telling = None

    async def _send(self, acked: list[int], returned: list[int]) -> None:
        for tag in returned:
            await self._channel.basic_nack(tag, requeue=True, wait=False)
        self._above.update(returned)
        if acked:
            self._observe(Step.BEFORE_BROKER_ACK)
        for tag, multiple in self._frames(acked):
            await self._channel.basic_ack(tag, multiple=multiple, wait=False)
        if acked:
            self._observe(Step.AFTER_BROKER_ACK)
        self._told(len(acked), len(returned))

    def _frames(self, acked: list[int]) -> list[tuple[int, bool]]:
        """The tags to name, and whether everything before is meant too. The broker wants a tag that is still open."""
        self._above.update(acked)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        below = [tag for tag in acked if tag <= self._floor]
        single = [(tag, False) for tag in acked if tag > self._floor]
        return [(max(below), True), *single] if below else single

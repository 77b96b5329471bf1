"""Parts that the sources share: opening and closing once, the observer of crash steps, and when a failure is logged.

Kafka uses only the last two, because its consumer runs in a separate thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

Observer: TypeAlias = Callable[[str], None]
"""Called with each step between which a consumer can die. The crash tests kill the process at every step."""


def is_logged(failures: int) -> bool:
    """True for the first, second, fourth, eighth, … failure in a row, so that an outage does not fill the disk."""
    return failures & (failures - 1) == 0


class QueueSource(ABC):
    """Opens a source with the first `receive` and closes it once, however many workers share it.

        receive ─▶ _open (one task for all callers) ─▶ … ─▶ stop ─▶ close (one task for all callers)

    Opening and closing run in tasks of their own, so that the cancellation of one caller does not end them.
    """

    def __init__(self) -> None:
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opened = False
        self._stopping = False

    @abstractmethod
    def stop(self) -> None:
        """Stop delivering. Call it on the source's loop."""

    @abstractmethod
    async def _open_once(self) -> None:
        """Connect, check the queues and start receiving. Sets `_opened`."""

    @abstractmethod
    async def _close_once(self) -> None:
        """Send every answer, return the rest to the queue and disconnect."""

    async def _open(self) -> None:
        if self._opened or self._stopping:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_once())
        opening = self._opening
        await asyncio.wait([opening])
        if opening.done() and not opening.cancelled() and opening.exception() is not None:
            if self._opening is opening:
                self._opening = None  # the next receive tries again
            opening.result()

    async def close(self) -> None:
        """Stop, send every answer, return unanswered messages to the queue and disconnect.

        Closing continues when its caller is cancelled: an open connection would keep messages from other consumers.
        """
        self.stop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_once())
        await asyncio.shield(self._closing)

"""Groups calls from concurrent tasks into few round trips.

A call waits for the end of the current loop tick, so that everything asked in one tick travels together; what is asked
while a round trip is in flight forms the next batch. There is no timer: a lone call is delayed by one tick only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

BATCH_MAX = 500  # one statement's worth; larger batches only make the first caller wait longer


class Batcher(Generic[Asked, Answer]):
    """One lane to the ledger, on one event loop."""

    def __init__(
        self,
        call: Callable[[Sequence[Asked]], Awaitable[list[Answer]]],
        unwanted: Callable[[list[Answer]], None] | None = None,
    ) -> None:
        """`unwanted` is told the answers whose caller has gone away."""
        self._call = call
        self._unwanted = unwanted
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Sequence[Asked], asyncio.Future[list[Answer]]]] = []
        self._in_flight: asyncio.Task[None] | None = None
        self._scheduled = False

    def ask(self, asked: Sequence[Asked]) -> asyncio.Future[list[Answer]]:
        """Answers in the order of what was asked. The round trip goes on when the caller goes away."""
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        self._waiting.append((asked, future))
        if not self._scheduled and self._in_flight is None:
            self._scheduled = True
            self._loop.call_soon(self._send)
        return future

    def _send(self) -> None:
        self._scheduled = False
        group, size = 0, 0
        while group < len(self._waiting) and (group == 0 or size + len(self._waiting[group][0]) <= BATCH_MAX):
            size += len(self._waiting[group][0])
            group += 1
        sending, self._waiting = self._waiting[:group], self._waiting[group:]
        self._in_flight = self._loop.create_task(self._round_trip(sending))

    async def _round_trip(self, sending: list[tuple[Sequence[Asked], asyncio.Future[list[Answer]]]]) -> None:
        try:
            asked = sending[0][0] if len(sending) == 1 else [one for group, _ in sending for one in group]
            answers = await self._call(asked)
        except BaseException as error:
            for _, future in sending:
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()  # the loop is ending
                elif not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            start = 0
            for group, future in sending:
                mine = answers[start : start + len(group)]
                start += len(group)
                if not future.done():
                    future.set_result(mine)
                elif self._unwanted is not None:
                    self._unwanted(mine)
        finally:
            self._in_flight = None
            if self._waiting:
                self._send()

"""Groups calls from concurrent tasks into few round trips.

A call waits for the end of the current loop tick, so that all calls of one tick share a round trip. Calls that arrive
during a round trip form the next batch. A lone call is delayed by one tick only. If more calls are known to be coming,
the batch waits for them briefly, because one round trip costs as much as many calls. Large calls take turns with small
ones, so that a small call waits for one large call at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

LINGER_S = 0.002  # about one round trip to a store on this machine
BATCH_MAX = 500  # one statement's worth; larger batches only make the first caller wait longer
LARGE = 50  # items of one call: they take the store longer than a commit


class Batcher(Generic[Asked, Answer]):
    """One lane to a store, on one event loop."""

    def __init__(
        self,
        call: Callable[[Sequence[Asked]], Awaitable[list[Answer]]],
        unwanted: Callable[[list[Answer]], None] | None = None,
        more: Callable[[], bool] | None = None,
    ) -> None:
        """`unwanted` gets the answers whose caller was cancelled. `more` returns whether more calls are coming."""
        self._call = call
        self._unwanted = unwanted
        self._more = more
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Sequence[Asked], asyncio.Future[list[Answer]]]] = []
        self._in_flight: asyncio.Task[None] | None = None
        self._next: asyncio.Handle | None = None
        self._lingers = False  # the next one
        self._large_before = False  # the last round trip carried a large call

    def ask(self, asked: Sequence[Asked]) -> asyncio.Future[list[Answer]]:
        """Returns the answers, in order. The round trip continues when the caller is cancelled."""
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        self._waiting.append((asked, future))
        if self._in_flight is None and (self._next is None or self._lingers):
            self._schedule()
        return future

    def _schedule(self) -> None:
        lingers = self._more is not None and self._more()
        if self._next is not None:
            if lingers or not self._lingers:
                return
            self._next.cancel()  # the calls that it waited for have come
        self._lingers = lingers
        self._next = self._loop.call_later(LINGER_S, self._send) if lingers else self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._next = None
        if self._large_before:
            self._waiting.sort(key=_is_large)  # small calls first, each kind in its order: they take turns
        group, size = 0, 0
        while group < len(self._waiting) and (group == 0 or size + len(self._waiting[group][0]) <= BATCH_MAX):
            size += len(self._waiting[group][0])
            group += 1
        sending, self._waiting = self._waiting[:group], self._waiting[group:]
        self._large_before = size > LARGE and any(map(_is_large, sending))
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
                own = answers[start : start + len(group)]
                start += len(group)
                if not future.done():
                    future.set_result(own)
                elif self._unwanted is not None:
                    self._unwanted(own)
        finally:
            self._in_flight = None
            if self._waiting and self._more is not None and self._more():
                self._schedule()
            elif self._waiting:
                self._send()


def _is_large(call: tuple[Sequence[object], object]) -> bool:
    return len(call[0]) > LARGE

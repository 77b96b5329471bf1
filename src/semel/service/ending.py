"""Signals that say to end: the first one gently, the second at once. Behind each of them there is a deadline, for what
does not let itself be ended."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from semel.values.log import log

LATE_S = 5.0  # beyond the drain: then the process ends, whatever somebody still does in it
SAY_S = 1.0  # for the line that says so: who reads our logs may be what hangs
NOT_IN_TIME = "drain_timed_out"
HURRY = getattr(signal, "SIGUSR1", None)  # of a supervisor to its workers: a second signal has come (not on Windows)
AT_ONCE_S = 3.0  # for what can be given back and written, when a second signal has come


def ending_signals() -> list[signal.Signals]:
    """Those that say so here. A terminal that was closed is one, unless who started us has said that it is none."""
    signals = [signal.SIGTERM, signal.SIGINT]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        signals.append(hang_up)
    return signals


def end_after(seconds: float, code: int, event: str = "") -> None:
    """End the whole process, also where its event loop is stuck. `event` is logged then."""

    def end() -> None:
        time.sleep(seconds)
        if event:
            said = threading.Thread(target=log.error, args=(event,), daemon=True)
            said.start()
            said.join(SAY_S)
        os._exit(code)

    threading.Thread(target=end, daemon=True, name="semel-deadline").start()


class Ending:
    """Of a process whose work is on the running loop."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._gently = asyncio.Event()
        self._at_once = asyncio.Event()
        self.number = 0  # of the first signal; 0: none has come
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, partial(self._hear, number))

    @property
    def is_at_once(self) -> bool:
        return self._at_once.is_set()

    async def told(self) -> None:
        """Until a signal says so."""
        await self._gently.wait()

    async def end(self, stop: Callable[[float], Awaitable[None]]) -> None:
        """`stop` what is under way, within the drain; or now, when a second signal comes."""
        ending, hurried = asyncio.ensure_future(stop(self._drain_s)), asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((ending, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ending.done():
            ending.cancel()
            await asyncio.wait([ending])
            ending = asyncio.ensure_future(stop(0.0))
        await ending

    def _hear(self, number: int) -> None:
        if self._at_once.is_set():
            os._exit(128 + number)  # as a crash: nothing that was answered is lost by it
        if self._gently.is_set():
            end_after(AT_ONCE_S, 128 + number, NOT_IN_TIME)
            self._at_once.set()
            return
        log.info("drain_started", deadline_s=self._drain_s)
        self.number = number
        end_after(self._drain_s + LATE_S, 1, NOT_IN_TIME)
        self._gently.set()

"""Runs coroutines for sync callers on one event loop in a thread, which is kept between calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from semel.values.errors import ConfigError

T = TypeVar("T")


class SyncFace:
    """One event loop in a thread. The thread starts with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process with the loop's thread: a forked process does not have it
        self._changing = threading.Lock()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._changing:  # so that the loop is not stopped before it has the call
                called = asyncio.run_coroutine_threadsafe(make(), self._running_loop())
            return called.result()
        raise ConfigError(
            "process_sync (or a Lambda handler) was called inside an event loop, which it would block: "
            "await process instead"
        )

    def end(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make the last call, then end the loop and its thread. A later call starts another loop."""
        self.call(make)
        thread = self._thread
        self.close()
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """End the loop after the running calls. A later call starts another loop."""
        with self._changing:
            loop, self._loop = self._loop, None
            if loop is not None and self._pid == os.getpid():
                loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
            self._thread = threading.Thread(target=_serve, args=(self._loop,), name="semel-sync", daemon=True)
            self._thread.start()
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        while under_way := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(under_way))
    finally:
        loop.close()

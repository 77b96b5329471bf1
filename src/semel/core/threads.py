"""A thread for each run of a sync handler.

Not a pool: one that hangs would keep its place for ever, and a process that is to end would wait for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """What `call` comes to in a thread of its own, with the variables of the calling task."""
    variables = contextvars.copy_context()
    job: Future[T] = Future()

    def work() -> None:
        try:
            job.set_result(variables.run(call))
        except BaseException as error:
            job.set_exception(error)

    job.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only left behind
    threading.Thread(target=work, name=f"semel-{name}", daemon=True).start()
    return asyncio.wrap_future(job)

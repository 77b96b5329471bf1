"""The check that a request makes right before its first byte leaves.

A process may stall between the decision to send and the first byte: while a name is resolved, a connection is opened or
a token is fetched. The code that decides knows the lease, and the client that writes knows the moment. A context
variable carries the check from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("_check", default=None)


@contextmanager
def checked_by(check: Callable[[], None]) -> Iterator[None]:
    """Requests of this block call `check` before their first byte. It raises LeaseLost when they must not be sent."""
    outside = _check.set(check)
    try:
        yield
    finally:
        _check.reset(outside)


def check_first_byte() -> None:
    """Called by every client between the last wait and the first byte."""
    if (check := _check.get()) is not None:
        check()

"""Keeps events that may kill their process from running beside each other.

A process that dies takes along whatever it runs. An event that was in flight in several processes that died may be the
cause. Such events run one at a time for each handler, so that an innocent event is not counted a further attempt for a
death that another event causes. Nothing waits here: an event that cannot start is given back and comes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_inside: ContextVar[bool] = ContextVar("_inside", default=False)


class Isolation:
    """The isolated runs of one engine."""

    def __init__(self) -> None:
        self._handlers: set[str] = set()  # those with an isolated run
        self._last_attempt = False

    @contextmanager
    def slot(self, handler: str, last_attempt: bool) -> Iterator[bool]:
        """Whether an event of this handler may run now. The slot is free again after the block.

        An event in its last attempt shares the process with no other isolated run: a death that another event causes
        would make it a dead letter. Events that the handler of an isolated run processes itself belong to that run."""
        if _inside.get():
            yield True
            return
        if handler in self._handlers or self._last_attempt or (last_attempt and self._handlers):
            yield False
            return
        self._handlers.add(handler)
        self._last_attempt = last_attempt
        outside = _inside.set(True)
        try:
            yield True
        finally:
            _inside.reset(outside)
            self._handlers.discard(handler)
            self._last_attempt = False

"""The servers of a run: always our own, since every measure begins by emptying them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar


class Server(Protocol):
    @property
    def start(self) -> Callable[[], Any]: ...
    @property
    def stop(self) -> Callable[[], Any]: ...


Started = TypeVar("Started", bound=Server)


@contextmanager
def running(server: Started) -> Iterator[Started]:
    """A server of `tests.support.servers` for as long as it is needed; also one that started only in part is ended."""
    try:
        server.start()
        yield server
    finally:
        server.stop()

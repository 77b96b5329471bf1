"""Servers that all tests of a process share, whichever folder they are in.

A fixture of scope `session` that several conftest files import is made once for each of them, and so was its server: a
PostgreSQL takes seconds of processor time until it is there, an emulator of AWS too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol, TypeVar

import pytest
from tests.support.servers.emulator import Emulator
from tests.support.servers.process import NoServer, not_here


class Aws(Emulator):
    """Every service that tests ask for, in one emulator: each start takes two seconds of processor time."""

    kind = "AWS"
    services = "dynamodb,sqs,sns,events"


class Server(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


AnyServer = TypeVar("AnyServer", bound=Server)
AnyEmulator = TypeVar("AnyEmulator", bound=Emulator)
STARTED = pytest.StashKey[dict[str, Any]]()


def shared_server(request: pytest.FixtureRequest, name: str, make: Callable[[Path], AnyServer]) -> AnyServer:
    """The server of this name: started for the first test that needs it, stopped with the process."""
    started = request.config.stash.setdefault(STARTED, {})
    if name not in started:
        # Not one of pytest's folders: each start of another pytest closes those to everybody but their owner.
        folder = Path(mkdtemp(prefix=f"semel-{name}-"))
        request.config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        server = make(folder)
        try:
            server.start()
        except NoServer as error:
            not_here(error)
        request.config.add_cleanup(server.stop)  # ahead of its folder
        started[name] = server
    found: AnyServer = started[name]
    return found


def shared_emulator(request: pytest.FixtureRequest, kind: type[AnyEmulator]) -> AnyEmulator:
    """The service of this kind that was given, or the one emulator of this process."""
    if (given := kind.given()) is not None:
        return given
    way = kind(Path())
    way.port = shared_server(request, "aws", Aws).port
    return way

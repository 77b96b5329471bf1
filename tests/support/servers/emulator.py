"""AWS for tests: the emulator `ministack` on a free port of loopback, by real HTTP, or a service that is given.

A given one (SEMEL_TEST_<KIND>_URL, `kind://any?region=…&endpoint=…`) is neither started nor stopped here, and
credentials for it come by the usual AWS chain.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.servers.process import NoServer, ServerProcess, free_port, given_url

REGION = "eu-central-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}  # the emulator takes any


class Emulator:
    """One server and the way to it."""

    kind: ClassVar[str]  # of the variable that may name another
    services: ClassVar[str]  # what it speaks, as the emulator calls it

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: ServerProcess | None = None
        self._given: dict[str, str] | None = None
        self.port = 0

    @classmethod
    def given(cls) -> Self | None:
        """The service that SEMEL_TEST_…_URL names; None: there is none."""
        url = given_url(cls.kind)
        if url is None:
            return None
        server = cls(Path())
        server._given = dict(parse_qsl(urlsplit(url).query))
        return server

    @property
    def is_given(self) -> bool:
        return self._given is not None

    @property
    def process(self) -> ServerProcess:
        """To be killed and paused. After a kill it has forgotten everything."""
        assert self._process is not None, "a given server belongs to somebody else, or it was not started"
        return self._process

    @property
    def region(self) -> str:
        return (self._given or {}).get("region", REGION)

    @property
    def endpoint(self) -> str | None:
        """None: the service itself."""
        return f"http://127.0.0.1:{self.port}" if self._given is None else self._given.get("endpoint")

    def start(self) -> None:
        """Raises NoServer. Credentials that the emulator takes are put into this process's environment."""
        if self._given is not None:
            return
        if self._process is None:
            self._process = self._made()
        for name, value in CREDENTIALS.items():
            os.environ.setdefault(name, value)
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _made(self) -> ServerProcess:
        if find_spec("ministack") is None:
            raise NoServer(
                f"the emulator of {self.services} is not here: pip install ministack, or set SEMEL_TEST_{self.kind}_URL"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        environment = {
            **os.environ,
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": self.services,
            "LOG_LEVEL": "ERROR",
            "TMPDIR": str(self._folder),  # where it writes its process id
        }
        return ServerProcess(
            [sys.executable, "-m", "ministack"], self._answers, self._folder / "log", environment=environment
        )

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

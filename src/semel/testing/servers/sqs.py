"""SQS for tests: the emulator `ministack` on a free port of loopback, by real HTTP, or a service that is given.

    server = SqsServer(folder)               # or SqsServer.given()
    server.start()
    source = SqsSource(url_of_a_queue, endpoint=server.endpoint, region=server.region)

What the emulator does otherwise than the service: there is no limit of 12 hours on an extended visibility, nothing is
throttled, nobody is refused for a missing permission, no message is delivered twice unless its visibility ends, an
expired receipt is good until the message is received again, and a long poll whose client has gone still takes messages.
Tests bring the first four about by hooks of the client.

A given service (SEMEL_TEST_SQS_URL, `sqs://?region=…&endpoint=…`) must let its user create queues. It is not started
or stopped here, and credentials for it come by the usual AWS chain.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from semel.testing.servers.dynamodb import CREDENTIALS, REGION
from semel.testing.servers.process import NoServer, ServerProcess, free_port, given_url


class SqsServer:
    """One server and the way to it. It also speaks SNS and EventBridge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: ServerProcess | None = None
        self._given: dict[str, str] | None = None
        self.port = 0

    @classmethod
    def given(cls) -> SqsServer | None:
        """The service that SEMEL_TEST_SQS_URL names; None: there is none."""
        url = given_url("SQS")
        if url is None:
            return None
        server = cls(Path())
        server._given = dict(parse_qsl(urlsplit(url).query))
        return server

    @property
    def region(self) -> str:
        return (self._given or {}).get("region", REGION)

    @property
    def endpoint(self) -> str:
        """Empty: the service itself."""
        return f"http://127.0.0.1:{self.port}" if self._given is None else self._given.get("endpoint", "")

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
            raise NoServer("SQS's emulator is not here: pip install ministack, or set SEMEL_TEST_SQS_URL")
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        environment = {
            **os.environ,
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "sqs,sns,events",
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

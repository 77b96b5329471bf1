"""A server as a child process: started when it listens, killed as a crash would, started again on the same data.

It ends with the process that started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from semel.testing.child_processes import end_orphans, forget_child, record_child, start_child

START_S = 110.0  # a busy machine may need long; under the 120 s of a test
STOP_S = 20.0


class NoServer(Exception):
    """It could not be found or did not start; the message says what to do."""


def given_url(kind: str) -> str | None:
    """The URL of a server that somebody else runs: `given_url("REDIS")`."""
    return os.environ.get(f"SEMEL_TEST_{kind}_URL") or None


def not_here(why: Exception | str) -> NoReturn:
    """A missing server fails in CI, and skips on a laptop, saying so."""
    if os.environ.get("CI"):
        pytest.fail(f"{why} (in CI a missing server is a failure)")
    pytest.skip(str(why))


def free_port() -> int:
    """A port of loopback that nobody listens on. On Linux nobody else is given it as long as this process lives: a
    server may take seconds until it listens, and again after a kill. Two may bind it there who both say that it may be
    used again, as servers do, if only one of them listens; other systems do not let them."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = int(kept.getsockname()[1])
    if sys.platform == "linux":
        kept.detach()
    else:
        kept.close()
    return port


class ServerProcess:
    """One server in the foreground. `ready` tells whether it answers; what it says goes to `log`."""

    def __init__(
        self,
        command: Sequence[str],
        ready: Callable[[], bool],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._command = command
        self._ready = ready
        self._log = log
        self._environment = environment
        self._user = user
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Also after a kill: same command, same data. Raises NoServer with its last words."""
        assert not self.running, "the server is running already"
        end_orphans()
        with self._log.open("ab") as said:
            self._process = start_child(
                self._command,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=None if self._environment is None else dict(self._environment),
                process_group=0,  # a Ctrl+C in the terminal is for the tests
            )
        record_child(self._process.pid)
        ends = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > ends:
                self.kill()
                raise NoServer(f"{self._command[0]} did not start: {self._last_words()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, as a crash would be. Returns when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and wait; kill it when it does not."""
        self._end(self._stop_signal)

    def pause(self) -> None:
        """It does not answer, and does not hang up either."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a paused one ends too
            process.send_signal(by)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        forget_child(process.pid)

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else "it said nothing"

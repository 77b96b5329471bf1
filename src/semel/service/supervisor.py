"""Several server processes on one socket. The parent serves nothing: it starts them, replaces what dies, ends them."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import FrameType

log = logging.getLogger("semel")

LOOK_S = 0.05
GRACE_S = 5.0  # beyond the drain's own deadline
SOON_S = 5.0  # a worker that dies within this time was not able to work
BACKOFF_MAX_S = 5.0
GIVE_UP_AFTER = 10  # workers in a row that died soon


class Worker:
    """One place for a process."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self.died_soon = 0
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def look(self, now: float) -> int | None:
        """Start it if it is time; the exit code if it has just ended."""
        if self.process is None:
            if now >= self.start_at:
                self.process, self._started = self._start(), now
            return None
        code = self.process.poll()
        if code is not None:
            self.process = None
            self.died_soon = self.died_soon + 1 if now - self._started < SOON_S else 0
            self.start_at = now + min(BACKOFF_MAX_S, 0.1 * 2**self.died_soon) if self.died_soon else now
        return code


class Supervisor:
    """Owns the workers until a signal says to end."""

    def __init__(self, count: int, arguments: Sequence[str], listening: socket.socket, drain_s: float) -> None:
        """`arguments` is the command line of a worker, to which the socket and the pipe are added."""
        self._arguments = arguments
        self._listening = listening
        self._drain_s = drain_s
        self._alive, self._held = os.pipe()  # workers see its end when we are gone
        os.set_inheritable(self._alive, True)
        self._shared = tempfile.mkdtemp(prefix="semel-metrics-")
        self._workers = [Worker(self._start_one) for _ in range(count)]
        self._stop_at: float | None = None

    def run(self) -> int:
        """Until all have ended. The exit code is 0 when that was asked for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            while self._stop_at is None:
                if not self._look():
                    return 1
                time.sleep(LOOK_S)
            return self._wait_for_end()
        finally:
            self._kill()
            shutil.rmtree(self._shared, ignore_errors=True)

    def _look(self) -> bool:
        """One round. False: they die as fast as they are started."""
        now = time.monotonic()
        for worker in self._workers:
            pid = worker.process.pid if worker.process else 0
            code = worker.look(now)
            if code is not None and self._stop_at is None:
                log.error("worker %d ended with %s, starting another", pid, _words(code))
        return all(worker.died_soon < GIVE_UP_AFTER for worker in self._workers)

    def _start_one(self) -> subprocess.Popen[bytes]:
        listening = self._listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "semel", *self._arguments, "--worker", f"{listening},{self._alive},{self._shared}"],
            pass_fds=(listening, self._alive),
            start_new_session=True,  # Ctrl-C reaches the supervisor, which tells them in its own way
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_at is not None:
            self._kill()
            os._exit(128 + number)
        self._stop_at = time.monotonic() + self._drain_s + GRACE_S
        for worker in self._workers:
            if worker.process is not None:
                worker.process.terminate()

    def _wait_for_end(self) -> int:
        assert self._stop_at is not None
        self._listening.close()
        while time.monotonic() < self._stop_at:
            if all(worker.process is None or worker.process.poll() is not None for worker in self._workers):
                return 0
            time.sleep(LOOK_S)
        log.error("workers did not end in time and are killed")
        return 1

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()


def _words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

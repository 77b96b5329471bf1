"""Runs several server processes on one socket. The parent only starts, replaces and ends them."""

from __future__ import annotations

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

from semel.service.server import AT_ONCE_S, HURRY, ending_signals
from semel.values.log import log

CHECK_S = 0.05
GRACE_S = 8.0  # beyond the drain: more than the time after which a worker ends itself (server.LATE_S)
SOON_S = 5.0  # a worker that ends within this time failed to start
BACKOFF_MAX_S = 5.0
GIVE_UP_AFTER = 10  # failed starts in a row, of every worker


class WorkerProcess:
    """Starts one worker process, and restarts it when it ends."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._start_at = 0.0
        self._started = 0.0
        self._failed_starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_hopeless(self) -> bool:
        return self.process is None and self._failed_starts >= GIVE_UP_AFTER

    def check(self, now: float) -> str | None:
        """Start the process when it is due. Returns a message if it has just ended, or cannot be started."""
        if self.process is None:
            if now >= self._start_at:
                try:
                    self.process, self._started = self._start(), now
                except OSError as error:  # no memory, processes or files left: this may pass, and the others work
                    self._schedule_start(now, soon=True)
                    return f"a worker cannot be started: {error.strerror or error}"
            return None
        code = self.process.poll()
        if code is None:
            return None
        pid, self.process = self.process.pid, None
        self._schedule_start(now, soon=now - self._started < SOON_S)
        return f"worker {pid} ended with {_describe(code)}"

    def _schedule_start(self, now: float, *, soon: bool) -> None:
        """Delay the next start if the last one failed."""
        self._failed_starts = min(self._failed_starts + 1, GIVE_UP_AFTER) if soon else 0
        self._start_at = now + min(BACKOFF_MAX_S, 0.1 * 2**self._failed_starts) if soon else now


class Supervisor:
    """Owns the workers until a signal ends the service."""

    def __init__(
        self, count: int, arguments: Sequence[str], settings: bytes, listening: socket.socket, drain_s: float
    ) -> None:
        """`arguments` is the command line of a worker, without the inherited files. `settings` is the text of the
        settings file: a worker that starts later must use the same."""
        self._arguments = arguments
        self._listening = listening
        self._drain_s = drain_s
        self._alive, self._held = os.pipe()  # closed when this process ends, which the workers notice
        self._settings = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
        self._settings.write(settings)
        self._settings.flush()
        self._shared = tempfile.mkdtemp(prefix="semel-metrics-")
        self._workers = [WorkerProcess(self._start_one) for _ in range(count)]
        self._stopping = False
        self._hurried = 0  # the second signal

    def run(self, greet: Callable[[], None]) -> int:
        """Run until all workers have ended. Returns the exit code: 0 after a drain. `greet` is called when the signal
        handlers are set."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)
        try:
            greet()
            while not self._stopping:
                self._check()
                if all(worker.is_hopeless for worker in self._workers):
                    log.error("workers_given_up", attempts=GIVE_UP_AFTER)
                    return 1
                time.sleep(CHECK_S)
            return self._end()
        finally:
            self._kill()
            shutil.rmtree(self._shared, ignore_errors=True)

    def _check(self) -> None:
        for worker in self._workers:
            if self._stopping:
                return
            if (message := worker.check(time.monotonic())) is not None:
                log.error("worker_ended", detail=message)

    def _start_one(self) -> subprocess.Popen[bytes]:
        inherited = self._listening.fileno(), self._alive, self._settings.fileno()
        value = ",".join(map(str, (*inherited, self._shared)))
        return subprocess.Popen(
            [sys.executable, "-m", "semel", *self._arguments, "--worker", value],
            pass_fds=inherited,
            start_new_session=True,  # Ctrl-C reaches only the supervisor, which signals the workers
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only record the signal: a worker that is being started must get it too."""
        if self._hurried:
            self._kill()
            os._exit(128 + number)
        if self._stopping:
            self._hurried = number
        self._stopping = True

    def _end(self) -> int:
        """Let the workers drain. A worker that is still starting ends at once."""
        self._listening.close()
        running = [worker.process for worker in self._workers if worker.process is not None]
        for process in running:
            process.terminate()
        if self._have_ended(running, self._drain_s + GRACE_S, unless_hurried=True):
            return 0
        if not self._hurried:
            log.error("workers_killed", after_s=self._drain_s + GRACE_S)
            return 1
        for process in running:
            if HURRY is not None:
                process.send_signal(HURRY)
        self._have_ended(running, AT_ONCE_S + 1.0, unless_hurried=False)
        return 128 + self._hurried

    def _have_ended(self, running: Sequence[subprocess.Popen[bytes]], within_s: float, *, unless_hurried: bool) -> bool:
        """Whether all processes end within this time, and before a second signal if `unless_hurried`."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not (unless_hurried and self._hurried):
            if all(process.poll() is not None for process in running):
                return True
            time.sleep(CHECK_S)
        return False

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"

"""Several server processes on one socket. The parent serves nothing: it starts them, replaces what dies, ends them."""

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

LOOK_S = 0.05
GRACE_S = 8.0  # beyond the drain: more than the time after which a worker ends itself (ending.LATE_S)
SOON_S = 5.0  # a worker that dies within this time was not able to work
BACKOFF_MAX_S = 5.0
GIVE_UP_AFTER = 10  # deaths in a row that came soon, in every place


class Worker:
    """One place for a process."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._start_at = 0.0
        self._started = 0.0
        self._died_soon = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def is_hopeless(self) -> bool:
        return self.process is None and self._died_soon >= GIVE_UP_AFTER

    def look(self, now: float) -> str | None:
        """Start it if it is time. What became of it, if it has just ended or cannot be started."""
        if self.process is None:
            return self._try_to_start(now) if now >= self._start_at else None
        code = self.process.poll()
        if code is None:
            return None
        pid, self.process = self.process.pid, None
        self._wait(now, soon=now - self._started < SOON_S)
        return f"worker {pid} ended with {_words(code)}"

    def _try_to_start(self, now: float) -> str | None:
        try:
            self.process, self._started = self._start(), now
        except OSError as error:  # no memory, no processes, no files left: the others work, and it may pass
            self._wait(now, soon=True)
            return f"a worker cannot be started: {error.strerror or error}"
        return None

    def _wait(self, now: float, *, soon: bool) -> None:
        """Before the next start, if the last one came to nothing."""
        self._died_soon = min(self._died_soon + 1, GIVE_UP_AFTER) if soon else 0
        self._start_at = now + min(BACKOFF_MAX_S, 0.1 * 2**self._died_soon) if soon else now


class Supervisor:
    """Owns the workers until a signal says to end."""

    def __init__(
        self, count: int, arguments: Sequence[str], settings: bytes, listening: socket.socket, drain_s: float
    ) -> None:
        """`arguments` is the command line of a worker, to which what it inherits is added. `settings` is the text of
        the file as we read it: a worker that starts later must not read another."""
        self._arguments = arguments
        self._listening = listening
        self._drain_s = drain_s
        self._alive, self._held = os.pipe()  # workers see its end when we are gone
        self._settings = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as we live
        self._settings.write(settings)
        self._settings.flush()
        self._shared = tempfile.mkdtemp(prefix="semel-metrics-")
        self._workers = [Worker(self._start_one) for _ in range(count)]
        self._told_to_end = False
        self._hurried = 0  # the second signal

    def run(self, greet: Callable[[], None]) -> int:
        """Until all have ended. The exit code is 0 when that was asked for. `greet`s when a signal does no harm."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)
        try:
            greet()
            while not self._told_to_end:
                self._look()
                if all(worker.is_hopeless for worker in self._workers):
                    log.error("workers_given_up", attempts=GIVE_UP_AFTER)
                    return 1
                time.sleep(LOOK_S)
            return self._end()
        finally:
            self._kill()
            shutil.rmtree(self._shared, ignore_errors=True)

    def _look(self) -> None:
        for worker in self._workers:
            if self._told_to_end:
                return
            news = worker.look(time.monotonic())
            if news is not None:
                log.error("worker_ended", detail=news)

    def _start_one(self) -> subprocess.Popen[bytes]:
        inherited = self._listening.fileno(), self._alive, self._settings.fileno()
        said = ",".join(map(str, (*inherited, self._shared)))
        return subprocess.Popen(
            [sys.executable, "-m", "semel", *self._arguments, "--worker", said],
            pass_fds=inherited,
            start_new_session=True,  # Ctrl-C reaches the supervisor, which tells them in its own way
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only takes note: it may have come in the middle of a start, and that worker must be told too."""
        if self._hurried:
            self._kill()
            os._exit(128 + number)
        if self._told_to_end:
            self._hurried = number
        self._told_to_end = True

    def _end(self) -> int:
        """Workers drain; one that has not come as far as that just ends."""
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
        """False: in this time they have not, or a second signal has come, whenever it came."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not (unless_hurried and self._hurried):
            if all(process.poll() is not None for process in running):
                return True
            time.sleep(LOOK_S)
        return False

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()


def _words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"

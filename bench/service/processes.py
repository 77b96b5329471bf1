"""Starts the server under load and its senders. No process outlives its `with` block."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from urllib.request import urlopen

import msgspec
from bench.service.sender import Job, Seen
from msgspec import Struct

from semel.values.errors import ConfigError, SemelError

START_S = 60.0  # the machine may be busy
DRAIN_S = 30.0  # `semel run` ends within 25 s
SOON_S = 0.05  # from the start command until senders start
LATE_S = 30.0  # after the end: for the last answers
LOG_SHOWN_CHARS = 2_000

ROOT = Path(__file__).parents[2]  # where `python -m bench…` is found

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Usage(Struct, frozen=True):
    """The resources that a process has used so far."""

    cpu_s: float
    rss_mib: float
    rss_max_mib: float


class ServerProcess:
    """A server that is up."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.port = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_up(self) -> None:
        """Wait for the first output line of the server, which is its address. Raises SemelError."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if found := re.search(r" on http://127\.0\.0\.1:(\d+)", self.log):
                self.port = int(found[1])
                if self._answers():
                    return
            time.sleep(0.02)
        raise SemelError(f"the server did not start:\n{self.log}")

    def get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=START_S) as answer:
            page: bytes = answer.read()
            return page

    def usage(self) -> Usage:
        return usage(self.pid)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LOG_SHOWN_CHARS:]

    def end(self) -> None:
        """Terminate the server, so that it closes its ledger. Kill it if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.get("/healthz"))
        except OSError:
            return False


@contextmanager
def server(module: Sequence[str], folder: Path) -> Iterator[ServerProcess]:
    """Start `python -m …` in this folder, without settings from our environment."""
    log = folder / "server.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SEMEL_", "OTEL_"))}
    environment["PYTHONPATH"] = str(ROOT)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for us, and we end our processes
        )
    running = ServerProcess(process, log)
    try:
        running.wait_until_up()
        yield running
    finally:
        running.end()


class Senders:
    """Processes that share one load."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def begin(self, warm_s: float, seconds: float) -> tuple[float, float]:
        """Tell them when to measure, once all of them are connected: monotonic begin and end."""
        for process in self._processes:
            if self._line(process) != b"ready\n":
                raise SemelError("a sender did not start; what it said is above")
        begin = time.monotonic() + SOON_S + warm_s
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"%r %r\n" % (begin, begin + seconds))
            process.stdin.flush()
        return begin, begin + seconds

    def seen(self) -> list[Seen]:
        lines = [self._line(process) for process in self._processes]
        if not all(lines):
            raise SemelError("a sender ended early; what it said is above")
        return [msgspec.json.decode(line, type=Seen) for line in lines]

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        return process.stdout.readline()


@contextmanager
def senders(jobs: Sequence[Job]) -> Iterator[Senders]:
    with ExitStack() as ended:
        processes = [ended.enter_context(_sender(job)) for job in jobs]
        yield Senders(processes)


@contextmanager
def _sender(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.service.sender"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            yield process
    finally:
        process.kill()  # a sender that has finished is gone already
        process.wait()


def usage(pid: int) -> Usage:
    """Read the processor time of all threads and the current and peak memory from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    kib = dict(re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB", status, re.MULTILINE))
    ticks = int(fields[11]) + int(fields[12])  # utime and stime
    return Usage(ticks / _TICKS_A_SECOND, int(kib["VmRSS"]) / 1024, int(kib["VmHWM"]) / 1024)


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: end only after all child processes have ended."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check_system() -> None:
    if not Path("/proc/self/stat").exists():
        raise ConfigError("bench.service reads the usage of processes from /proc, which this system does not have")

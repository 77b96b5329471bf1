"""Crash injection: observers that kill or stop their own process at a boundary of the flow.

    app = Semel("sqlite:///x.db", observe=crash_at("before_settle", marker=Path("landed")))

The marker file is synced to disk before the signal. A test that does not find it, or finds another text in it, proves
nothing and must fail.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path


def crash_at(boundary: str, hit: int = 1, *, marker: Path) -> Callable[[str], None]:
    """Kill the process by SIGKILL at the `hit`-th announcement of `boundary`: no finally, no atexit, no flush."""
    return _signal_at(boundary, hit, marker, signal.SIGKILL)


def stop_at(boundary: str, hit: int = 1, *, marker: Path) -> Callable[[str], None]:
    """Stop all threads by SIGSTOP at a boundary, as if the virtual machine were paused. SIGCONT resumes them."""
    return _signal_at(boundary, hit, marker, signal.SIGSTOP)


def landing(boundary: str, hit: int = 1) -> str:
    """The text of the marker file after the fault has landed."""
    return f"{boundary} {hit}"


def _signal_at(boundary: str, hit: int, marker: Path, number: signal.Signals) -> Callable[[str], None]:
    if hit < 1:
        raise ValueError(f"hit={hit!r}: the first announcement is 1")
    lock = threading.Lock()  # boundaries are announced by the loop's thread and by the ledger's
    seen = 0

    def observe(announced: str) -> None:
        nonlocal seen
        if announced != boundary:
            return
        with lock:
            seen += 1
            if seen != hit:
                return
            _write_through(marker, landing(boundary, hit))
            # Sent to this thread, not to the process, so that it is delivered before the call returns.
            signal.pthread_kill(threading.get_ident(), number)

    return observe


def _write_through(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)

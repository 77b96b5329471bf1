"""Child processes that end with the process that started them, even if it is killed.

On Linux they receive a signal when their parent ends. Servers are also recorded in a folder of the user. The next start
of a server kills the recorded servers whose parent is gone. This covers systems without such a signal, and a parent
that was killed before its child requested the signal. A process is the recorded one only if its id and its start time
match.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

# Runs in the child before the program of the server. It requests the signal after the change of user, which would reset
# the request, and before the exec, which keeps it.
_LAUNCHER = """
import os, sys
starter, user, preload = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if sys.platform == "linux":
    import ctypes  # here: the other user may not be able to read it
    libc = ctypes.CDLL(None)
if user >= 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
if sys.platform == "linux":
    libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != starter:
        sys.exit("the starter of this process is gone")
if preload:
    os.environ["LD_PRELOAD"] = preload
os.execvp(sys.argv[4], sys.argv[4:])
"""


def start_child(command: Sequence[str], *, user: int | None = None, **options: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with this one. `options` as for Popen; `user`: run it as this user and group."""
    env = dict(options.pop("env", None) or os.environ)
    preload = env.pop("LD_PRELOAD", "")  # not for the launcher: another user could not open the files that it creates
    arguments = [str(os.getpid()), str(-1 if user is None else user), preload]
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *arguments]
    start = functools.partial(subprocess.Popen[Any], [*launcher, *command], env=env, **options)
    if threading.current_thread() is threading.main_thread():
        return start()
    # The signal is sent when the starting thread ends, so a permanent thread starts the child.
    return _staying_thread(os.getpid()).submit(start).result()


def record_child(pid: int) -> None:
    """Record that this process started a child."""
    record = {"child": [pid, started_at(pid)], "starter": [os.getpid(), started_at(os.getpid())]}
    half = _folder() / f"{pid}.half"
    half.write_text(json.dumps(record))
    half.rename(half.with_suffix(".json"))


def forget_child(pid: int) -> None:
    """Remove the record of a child that has ended."""
    (_folder() / f"{pid}.json").unlink(missing_ok=True)


def end_orphans() -> list[int]:
    """Kill the recorded children whose starter is gone, with their process groups. Returns their ids."""
    ended = []
    for path in sorted(_folder().glob("*.json")):
        try:
            record = json.loads(path.read_text())
            child, starter = tuple(record["child"]), tuple(record["starter"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # another process is removing or writing it
        if _is_alive(*starter):
            continue
        if _is_alive(*child):
            _kill(child[0])
            ended.append(child[0])
        path.unlink(missing_ok=True)
    return ended


def started_at(pid: int) -> str:
    """The start time of a running process, which distinguishes it from a later one with the same id. Empty: no such
    process runs."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # any other error does not mean that the process has ended
            return ""
        return "" if fields[0] in "ZX" else fields[19]  # in clock ticks since the machine started
    asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return asked.stdout.strip()


def _is_alive(pid: int, start: str) -> bool:
    return bool(start) and started_at(pid) == start


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _folder() -> Path:
    """The folder of records. Only its owner may write to it, because a record names a process to kill."""
    folder = Path(gettempdir()) / f"semel-test-children-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    details = folder.stat()
    if details.st_uid != os.getuid() or details.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to this user alone")
    return folder


@functools.cache
def _staying_thread(pid: int) -> ThreadPoolExecutor:
    """A thread that lasts as long as this process. `pid` is part of the cache key, because a fork has no threads."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"starts-children-of-{pid}")

"""Runs a command while other processes keep every processor busy, and ends them with it.

    python tools/under_load.py COMMAND…

Each busy process ends by itself when its starter is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys

# A short sleep now and then, as a program that waits for its disk; without the parent that started it, it ends.
BUSY = """
import os, time
starter = int(os.environ["LOAD_STARTER"])
while os.getppid() == starter:
    ends = time.monotonic() + 0.2
    while time.monotonic() < ends:
        sum(range(1000))
    time.sleep(0.001)
"""


def run_under_load(command: list[str], busy: int) -> int:
    """The exit code of the command."""
    environment = {**os.environ, "LOAD_STARTER": str(os.getpid())}
    load = [subprocess.Popen([sys.executable, "-I", "-S", "-c", BUSY], env=environment) for _ in range(busy)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in load:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(run_under_load(sys.argv[1:], busy=os.cpu_count() or 1))

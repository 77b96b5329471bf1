"""The ledger is locked, its disk is full: fail closed, answer at once, recover by itself."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.service.running import Running, service

APP = "tests.service.handlers_app:app"

SETTINGS = """
[[endpoints]]
path = "/inline"
mode = "inline"

[[endpoints]]
path = "/inbox"
"""

HOLD = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(10_000)
connection.execute("begin immediate")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"  # the fault has landed
        yield
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()


def event(kind: str, id: str) -> dict[str, object]:
    return {"id": id, "type": kind, "data": {}}


def ran(running: Running, id: str) -> int:
    path = running.folder / "runs.txt"
    return sum(line.split()[0] == id for line in path.read_text().splitlines()) if path.exists() else 0


def metric(running: Running, name: str) -> float:
    lines = running.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_a_locked_ledger_is_503_at_once_and_recovers_by_itself(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP) as running:
        assert running.post("/inline", event("ok", "before")).status == 200
        with locked(tmp_path / "semel.db"):
            slowest = 0.0
            for number in range(20):
                for path in ("/inline", "/inbox"):
                    begun = time.monotonic()
                    reply = running.post(path, event("ok", f"locked{path}{number}"))
                    slowest = max(slowest, time.monotonic() - begun)
                    assert reply.status == 503
                    assert int(reply.headers["retry-after"]) >= 1
            assert slowest < 2.0  # the patience is 0.05 s; SQLite alone would wait for 5
            assert running.get("/healthz").status == 200
            assert metric(running, "semel_ledger_breaker_state") > 0
        running.until(lambda: running.get("/readyz").status == 200, "it did not recover", within_s=20)
        running.until(
            lambda: running.post("/inline", event("ok", "after")).status == 200, "it did not recover", within_s=20
        )
        running.until(
            lambda: metric(running, "semel_ledger_breaker_state") == 0, "the breaker did not close", within_s=20
        )
        for number in range(20):
            for path in ("/inline", "/inbox"):
                id = f"locked{path}{number}"
                assert ran(running, id) <= (path == "/inbox")  # a late acceptance may have been handled; nothing twice
                running.until(
                    lambda path=path, id=id: running.post(path, event("ok", id)).status == 200, "still refused"
                )
                running.until(lambda id=id: ran(running, id) == 1, "not handled once")


def test_a_ledger_that_is_not_ready_is_reported(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP) as running:
        running.until(lambda: running.get("/readyz").status == 200, "not ready")
        with locked(tmp_path / "semel.db"):
            running.until(lambda: running.get("/readyz").status == 503, "it calls itself ready", within_s=20)
        running.until(lambda: running.get("/readyz").status == 200, "not ready again", within_s=20)


def test_a_route_that_fails_open_runs_and_is_counted(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP) as running:
        with locked(tmp_path / "semel.db"):
            reply = running.post("/inline", event("open", "o1"))
            assert (reply.status, reply.json["status"]) == (200, "processed")
            assert ("ledger" in reply.json["reason"], reply.json["result"]) == (True, "token 0")
            assert metric(running, "semel_fail_open_runs_total") == 1
            running.until(lambda: "fail_open_run" in running.text, "it does not say so")
            assert running.post("/inline", event("ok", "o2")).status == 503  # the others fail closed


def small_disk(folder: Path) -> list[str]:
    """A command that runs ours with a small file system of its own at `folder`, gone with its last process."""
    mount = f'mount -t tmpfs -o size=3m none "{folder}" && cd "{folder}" && exec "$@"'
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", mount, "sh"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs mount namespaces")
def test_a_full_disk_is_503_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    env = {"LEDGER": f"sqlite:///{disk}/semel.db", "RUNS": str(tmp_path / "runs.txt")}
    with service(tmp_path, SETTINGS, APP, env=env, inside=small_disk(disk)) as running:
        there = Path(f"/proc/{running.pid}/root{disk}")
        assert running.post("/inline", event("ok", "before")).status == 200
        assert (there / "semel.db").exists()
        fill(there / "filler")
        full = 0
        for number in range(2_000):
            reply = running.post("/inbox", {**event("slow", f"w{number}"), "data": {"seconds": 0, "pad": "x" * 5_000}})
            if reply.status == 503:
                full += 1
                if full == 5:
                    break
        assert full == 5, "the disk was not full"
        assert running.get("/healthz").status == 200
        assert running.post("/inline", event("ok", "during")).status == 503
        assert ran(running, "during") == 0
        (there / "filler").unlink()
        running.until(lambda: running.post("/inline", event("ok", "during")).status == 200, "no recovery", within_s=30)
        assert ran(running, "during") == 1
        assert running.post("/inline", event("ok", "before")).json["status"] == "duplicate"


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (64 * 1024, 4096):
            with pytest.raises(OSError, match="No space left"):  # the fault has landed
                file.writelines(itertools.repeat(b"x" * size))

"""SIGTERM, SIGKILL and restarts: nothing that was answered is lost, and nothing is kept waiting."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.service.running import Reply, Running, service

APP = "tests.service.handlers_app:app"
ENV = {"LEASE": "3"}

SETTINGS = """
[server]
drain = 4

[[endpoints]]
path = "/inline"
mode = "inline"

[[endpoints]]
path = "/inbox"
"""


def event(kind: str, id: str, **data: object) -> dict[str, object]:
    return {"id": id, "type": kind, "data": data}


def lines(running: Running, id: str) -> list[str]:
    path = running.folder / "runs.txt"
    return [line for line in path.read_text().splitlines() if line.split()[0] == id] if path.exists() else []


def posted(running: Running, body: dict[str, object]) -> tuple[threading.Thread, list[Reply]]:
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(running.post("/inline", body)))
    thread.start()
    running.until(lambda: lines(running, str(body["id"])), "the handler did not begin")
    return thread, replies


def refuses(running: Running) -> bool:
    try:
        running.get("/healthz")
    except (OSError, http.client.HTTPException):
        return True
    return False


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
def test_sigterm_finishes_requests_in_flight_accepts_no_more_and_exits_with_0(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with service(tmp_path, SETTINGS, APP, *arguments, env=ENV) as running:
        thread, replies = posted(running, event("slow", "s1", seconds=1.5))
        assert running.post("/inbox", event("slow", "s2", seconds=1.0)).json["status"] == "accepted"
        running.until(lambda: lines(running, "s2"), "the inbox was not handled")
        running.terminate()
        running.until(lambda: refuses(running), "it still takes connections")
        assert running.wait() == 0
        thread.join()
        assert (replies[0].status, replies[0].json["status"]) == (200, "processed")
        assert lines(running, "s2")[-1] == "s2 ended"


def test_inbox_items_past_the_deadline_are_returned_and_run_again_at_once(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP, env=ENV | {"LEASE": "60"}) as running:
        running.post("/inbox", event("slow", "d1", seconds=30))
        running.until(lambda: lines(running, "d1"), "the handler did not begin")
        begun = time.monotonic()
        running.terminate()
        assert running.wait(30) == 0
        assert time.monotonic() - begun < 20  # the drain is 4 s, its handler needs 30
        running.start()
        running.until(lambda: len(lines(running, "d1")) == 2, "it waits for a lease of 60 s", within_s=25)


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
def test_a_second_sigterm_ends_it_at_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    slow = ENV | {"LEASE": "40"}
    with service(tmp_path, SETTINGS.replace("drain = 4", "drain = 60"), APP, *arguments, env=slow) as running:
        posted_thread, _ = posted_or_cut(running)
        running.terminate()
        running.until(lambda: refuses(running), "the first signal did not land")
        begun = time.monotonic()
        running.terminate()
        assert running.wait(20) == 128 + signal.SIGTERM
        assert time.monotonic() - begun < 15
        posted_thread.join()


def posted_or_cut(running: Running) -> tuple[threading.Thread, list[Reply]]:
    def post() -> None:
        with suppress(OSError, http.client.HTTPException):
            running.post("/inline", event("slow", "x1", seconds=25))

    thread = threading.Thread(target=post)
    thread.start()
    running.until(lambda: lines(running, "x1"), "the handler did not begin")
    return thread, []


@pytest.mark.long
def test_sigkill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """Accepted events survive, in hand or not; what was being handled runs again when its lease is over."""
    with service(tmp_path, SETTINGS, APP, env=ENV) as running:
        for number in range(50):
            assert running.post("/inbox", numbered(number)).json["status"] == "accepted"
        in_hand = [number for number in range(50) if len(lines(running, f"k{number}")) == 1 and number % 2]
        running.kill()
        assert in_hand, "nothing was in hand: the fault did not land"
        running.start()
        running.until(
            lambda: all(running.post("/inbox", numbered(number)).json.get("reason") == "done" for number in range(50)),
            "something is lost",
            within_s=60,
        )
        for number in range(0, 50, 2):
            assert len(lines(running, f"k{number}")) in (1, 2)  # effect="retry": at least once


def numbered(number: int) -> dict[str, object]:
    return event("slow", f"k{number}", seconds=0.4) if number % 2 else event("ok", f"k{number}")


@pytest.mark.long  # a kill run
def test_a_worker_that_dies_is_replaced_and_the_others_go_on(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP, "--workers", "2", env=ENV) as running:
        running.until(lambda: len(running.workers()) == 2, "two workers did not start")
        before = set(running.workers())
        os.kill(min(before), signal.SIGKILL)
        running.until(lambda: len(set(running.workers()) - before) == 1, "no worker was started in its place")
        running.until(lambda: len(running.workers()) == 2, "a worker is missing")
        for number in range(20):
            assert running.post("/inline", event("ok", f"r{number}")).status == 200


@pytest.mark.long  # a kill run
def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP, "--workers", "2", env=ENV) as running:
        running.until(lambda: len(running.workers()) == 2, "two workers did not start")
        workers = running.workers()
        running.kill()
        running.until(lambda: not any(_alive(pid) for pid in workers), "they keep the port", within_s=20)


def test_a_signal_for_every_process_of_the_service_is_not_a_second_one(tmp_path: Path) -> None:
    """As systemd does it: the worker gets the supervisor's signal and another."""
    with service(tmp_path, SETTINGS, APP, "--workers", "2", env=ENV) as running:
        running.until(lambda: len(running.workers()) == 2, "two workers did not start")
        thread, replies = posted(running, event("slow", "g1", seconds=2))
        workers = running.workers()
        running.terminate()
        running.until(lambda: refuses(running), "the first signal did not land")
        for pid in workers:
            _tell(pid)
        assert running.wait() == 0
        thread.join()
        assert (replies[0].status, replies[0].json["status"]) == (200, "processed")


@pytest.mark.long  # a kill run
def test_workers_that_drain_go_on_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP, "--workers", "2", env=ENV) as running:
        running.until(lambda: len(running.workers()) == 2, "two workers did not start")
        thread, replies = posted(running, event("slow", "p1", seconds=2))
        workers = running.workers()
        running.terminate()
        running.until(lambda: refuses(running), "the signal did not land")
        running.kill()
        assert not lines(running, "p1")[1:], "the handler has ended: the kill came too late"
        thread.join()
        assert (replies[0].status, replies[0].json["status"]) == (200, "processed")
        running.until(lambda: not any(_alive(pid) for pid in workers), "they do not end", within_s=20)


@pytest.mark.long  # a kill run
def test_sigterm_while_workers_start_ends_all_of_them_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semel", "run", "--port", "0", "--workers", "8"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as supervisor:
        assert supervisor.stderr is not None
        assert supervisor.stderr.readline().startswith(b"Semel ")  # it has just begun
        begun = time.monotonic()
        supervisor.terminate()
        assert supervisor.wait(60) == 0
        assert time.monotonic() - begun < 15  # the drain is 20 s


@pytest.mark.long  # a kill run
def test_a_worker_that_starts_later_has_the_settings_of_the_others(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS, APP, "--workers", "2", env=ENV) as running:
        for turn, edited in enumerate((SETTINGS.replace("/inline", "/other"), "no = TOML [")):
            running.until(lambda: len(running.workers()) == 2, "two workers did not start")
            (tmp_path / "semel.toml").write_text(edited)
            before = set(running.workers())
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            running.until(lambda before=before: not before & set(running.workers()), "they were not replaced")
            assert running.post("/inline", event("ok", f"s{turn}")).status == 200
            assert running.post("/other", event("ok", f"t{turn}")).status == 404


FRAGILE = """
import os, sys
from pathlib import Path
from tests.service.handlers_app import app
if Path("broken").exists():
    sys.exit(7)
Path(f"imported-{os.getpid()}").touch()
"""


@pytest.mark.long  # a kill run
def test_a_worker_that_cannot_start_is_tried_again_while_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    with service(tmp_path, SETTINGS, "fragile:app", "--workers", "2", env=ENV) as running:
        running.until(lambda: len(imported(tmp_path, running)) == 2, "two workers did not start")
        (tmp_path / "broken").touch()
        gone, healthy = running.workers()
        os.kill(gone, 40)  # a signal without a name
        running.until(
            lambda: sum(bool(re.search(r"exit.code\W*2\b", line)) for line in running.log) >= 2,
            "the fault did not land",
        )
        assert any(re.search(r"signal\W*40\b", line) for line in running.log)
        assert running.post("/inline", event("ok", "h1")).status == 200
        (tmp_path / "broken").unlink()
        running.until(lambda: len(imported(tmp_path, running)) == 2, "the worker does not come back")
        assert healthy in running.workers()


def imported(folder: Path, running: Running) -> list[int]:
    """Workers that have imported their app: a file that makes the import fail no longer ends them."""
    return [pid for pid in running.workers() if (folder / f"imported-{pid}").exists()]


HANGING = """
import asyncio, time
from pathlib import Path
from semel import Semel

app = Semel("sqlite:///semel.db", lease=120)

@app.on("thread", timeout=100)
def thread(event, ctx):
    Path("begun").touch()
    time.sleep(60)

@app.on("stubborn", timeout=100)
async def stubborn(event, ctx):
    Path("begun").touch()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass

@app.on("blocking", timeout=100)
async def blocking(event, ctx):
    Path("begun").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["inline", "inbox"])
@pytest.mark.parametrize(
    "kind",
    ["thread", pytest.param("stubborn", marks=pytest.mark.long), pytest.param("blocking", marks=pytest.mark.long)],
)
def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_process_alive(
    tmp_path: Path, kind: str, mode: str
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    with service(tmp_path, SETTINGS.replace("drain = 4", "drain = 1"), "hanging:app") as running:

        def post() -> None:
            with suppress(OSError, http.client.HTTPException):
                running.post(f"/{mode}", event(kind, "h1"))

        thread = threading.Thread(target=post)
        thread.start()
        running.until((tmp_path / "begun").exists, "the handler did not begin")
        begun = time.monotonic()
        running.terminate()
        code = running.wait()
        assert time.monotonic() - begun < 20  # the drain is 1 s, its handler needs 60
        if code != 0:
            running.until(lambda: "drain_timed_out" in running.text, "the log does not say so")
        thread.join()


def _tell(pid: int) -> None:
    with suppress(ProcessLookupError):  # it had nothing to do and has ended
        os.kill(pid, signal.SIGTERM)


def _alive(pid: int) -> bool:
    return "zombie" not in (_status(pid) or "zombie")


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
@pytest.mark.parametrize(
    "after_s", [0.0, pytest.param(0.2, marks=pytest.mark.long), pytest.param(0.5, marks=pytest.mark.long), 1.0]
)
def test_a_signal_in_the_first_second_ends_it_with_0(
    tmp_path: Path, after_s: float, arguments: tuple[str, ...]
) -> None:
    """Nothing has begun: there is nothing to drain, and an orchestrator must not see a crash."""
    (tmp_path / "semel.toml").write_text(SETTINGS, "utf-8")
    imported = tmp_path / "imported.txt"
    with imported.open("w") as out:
        command = [sys.executable, "-X", "importtime", "-m", "semel", "run", "--port", "0", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=out)
    try:
        deadline = time.monotonic() + 30
        while not re.search(r"\bsemel\.cli$", imported.read_text(), re.MULTILINE):  # ours from here on
            assert time.monotonic() < deadline, imported.read_text()[-300:]
            time.sleep(0.01)
        time.sleep(after_s)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)

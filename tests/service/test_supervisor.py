"""One place for a worker, with real processes; what a whole service does is in test_ending."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from semel.service.supervisor import GIVE_UP_AFTER, SOON_S, WorkerProcess
from semel.settings.loading import load, source

FOR_EVER = [sys.executable, "-c", "import time; time.sleep(600)"]


def ended(worker: WorkerProcess, now: float) -> str | None:
    assert worker.process is not None
    worker.process.wait(30)
    return worker.check(now)


def test_a_worker_that_cannot_be_started_is_tried_again_later() -> None:
    missing = [True]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/nowhere/python"] if missing else FOR_EVER)

    worker = WorkerProcess(start)
    news = worker.check(100.0)
    assert news is not None
    assert os.strerror(errno.ENOENT) in news
    assert worker.check(100.0) is None  # not yet
    missing.clear()
    assert worker.check(110.0) is None
    assert worker.process is not None
    worker.process.kill()
    assert ended(worker, 110.0 + SOON_S) is not None


def test_a_signal_without_a_name_is_logged_by_its_number() -> None:
    worker = WorkerProcess(lambda: subprocess.Popen(FOR_EVER))
    worker.check(0.0)
    assert worker.process is not None
    os.kill(worker.process.pid, 40)
    assert re.search(r"signal\W*40\b", str(ended(worker, 1.0)))


def test_a_place_is_hopeless_after_deaths_in_a_row_and_not_while_its_worker_runs() -> None:
    worker = WorkerProcess(lambda: subprocess.Popen(FOR_EVER))
    now = 0.0
    for _ in range(GIVE_UP_AFTER):
        assert not worker.is_hopeless
        worker.check(now)
        assert worker.process is not None
        worker.process.kill()
        ended(worker, now)
        now += 2 * SOON_S
    assert worker.is_hopeless
    worker.check(now)
    assert not worker.is_hopeless
    assert worker.process is not None
    worker.process.kill()
    ended(worker, now + SOON_S)  # it had worked
    assert not worker.is_hopeless


GIVING_UP = """
from semel.service import supervisor
from semel.service.server import listen
supervisor.GIVE_UP_AFTER = 2
made = supervisor.Supervisor(2, ["--version"], b"", listen("127.0.0.1", 0), 1.0)
raise SystemExit(40 + made.run(lambda: None))
"""


def test_a_supervisor_none_of_whose_workers_can_live_gives_up() -> None:
    run = subprocess.run([sys.executable, "-c", GIVING_UP], capture_output=True, text=True, timeout=60)
    assert run.returncode == 41
    assert "workers_given_up" in run.stderr


TOLD_TWICE = """
import os, signal, subprocess, sys, threading
from semel.service import supervisor
from semel.service.server import listen

STAYS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"

class Drain(float):
    def __add__(self, more):
        os.kill(os.getpid(), signal.SIGTERM)  # the second one, at the moment at which it begins to wait
        return float(self) + more

def start():
    process = subprocess.Popen([sys.executable, "-c", STAYS], stdout=subprocess.PIPE)
    process.stdout.readline()
    threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return process

made = supervisor.Supervisor(1, [], b"", listen("127.0.0.1", 0), Drain(3600))
made._workers = [supervisor.WorkerProcess(start)]
raise SystemExit(made.run(lambda: None))
"""


def test_a_second_signal_is_heard_whenever_it_comes() -> None:
    run = subprocess.run([sys.executable, "-c", TOLD_TWICE], capture_output=True, text=True, timeout=60)
    assert run.returncode == 128 + signal.SIGTERM, run.stderr


SECRET = """
[[endpoints]]
path = "/in"
verify = { scheme = "header", header = "x-secret", secrets = ["file:s"] }
"""


def test_inherited_settings_find_their_secrets_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_text(SECRET)
    (tmp_path / "s").write_text("a secret of some length, for this test")
    content = source(path, {})
    before = load(path, {})
    path.unlink()
    assert load(path, {}, content) == before

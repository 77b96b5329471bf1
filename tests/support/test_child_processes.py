"""Servers that tests start end with the test run, also when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.servers.valkey import Valkey

from semel.testing import child_processes
from semel.testing.child_processes import end_orphans, forget_child, record_child, start_child, started_at

ROOT = Path(__file__).parents[2]
SOON_S = 120.0  # a loaded machine needs long for PostgreSQL's first start
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent is gone")
FOR_LONG = [sys.executable, "-c", "import time; time.sleep(600)"]

SERVERS = """
import os, time
from pathlib import Path

from tests.support.servers.postgres import PostgresServer
from tests.support.servers.valkey import Valkey


def test_that_is_cut_off(tmp_path):
    folder = Path(os.environ["SERVER_FOLDER"])
    valkey, postgres = Valkey(tmp_path), PostgresServer(folder / "postgres")
    valkey.start()
    postgres.start()
    half = folder / "pids.half"
    half.write_text(f"{os.getpid()} {valkey.pid} {postgres.process.pid}")
    half.rename(folder / "pids")
    time.sleep(600)
"""


def until(is_so: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < ends, f"waited {SOON_S:g} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: each start of another pytest closes those to everybody but their owner."""
    with TemporaryDirectory(prefix="semel-cut-off-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records of this test's own."""
    monkeypatch.setattr(child_processes, "gettempdir", lambda: str(tmp_path))
    return child_processes._folder()


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    """A process that nothing ends with us."""
    with subprocess.Popen(FOR_LONG, process_group=0) as process:
        yield process
        process.kill()


@LINUX
@pytest.mark.timeout(3 * SOON_S)
def test_servers_end_with_a_test_run_that_is_killed(folder: Path) -> None:
    (folder / "test_cut_off.py").write_text(SERVERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "--rootdir", str(folder)]
    found_at = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "SERVER_FOLDER": str(folder), "PYTHONPATH": found_at}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    run = subprocess.Popen(
        [*command, "-c", os.devnull, str(folder / "test_cut_off.py")],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        try:
            until(lambda: (folder / "pids").exists() or run.poll() is not None, "the servers")
            if run.poll() is not None:
                pytest.fail(f"the inner run ended by itself: {run.stdout.read() if run.stdout else ''}")
            tester, *servers = (int(pid) for pid in (folder / "pids").read_text().split())
            assert all(started_at(pid) for pid in servers)
        finally:
            run.send_signal(signal.SIGKILL)
    until(lambda: not any(started_at(pid) for pid in servers), "Valkey and PostgreSQL to end")
    until(lambda: not started_at(tester), "the process of the tests to end")


@LINUX
def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    made: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: made.append(start_child(FOR_LONG)))
    thread.start()
    thread.join()
    (child,) = made
    with child:
        time.sleep(0.2)
        assert child.poll() is None
        child.kill()


def test_a_recorded_server_whose_starter_is_gone_is_ended(records: Path, stray: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as starter:
        gone = [starter.pid, started_at(starter.pid)]
    record = {"child": [stray.pid, started_at(stray.pid)], "starter": gone}
    (records / f"{stray.pid}.json").write_text(json.dumps(record))
    assert end_orphans() == [stray.pid]
    assert stray.wait(SOON_S) == -signal.SIGKILL
    assert not list(records.iterdir())


def test_a_server_whose_starter_lives_is_left_alone(records: Path, stray: subprocess.Popen[bytes]) -> None:
    record_child(stray.pid)
    assert end_orphans() == []
    assert stray.poll() is None
    assert [path.name for path in records.iterdir()] == [f"{stray.pid}.json"]
    forget_child(stray.pid)
    assert not list(records.iterdir())


def test_another_process_with_the_id_of_a_recorded_one_is_left_alone(
    records: Path, stray: subprocess.Popen[bytes]
) -> None:
    record = {"child": [stray.pid, "1"], "starter": [os.getpid(), "1"]}
    (records / f"{stray.pid}.json").write_text(json.dumps(record))
    assert end_orphans() == []
    assert stray.poll() is None
    assert not list(records.iterdir()), "the record is of no use any more"


def test_records_that_others_could_write_are_refused(records: Path) -> None:
    records.chmod(0o777)
    with pytest.raises(PermissionError):
        end_orphans()


def test_a_server_that_is_stopped_leaves_no_record(records: Path, tmp_path: Path) -> None:
    server = Valkey(tmp_path / "valkey")
    server.start()
    try:
        assert (records / f"{server.pid}.json").exists()
    finally:
        with suppress(AssertionError):
            server.stop()
    assert not list(records.iterdir())

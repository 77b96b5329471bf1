"""Several processes count into one directory, and whichever is asked tells of all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.service.telemetry.page import value

from semel.service.metrics import Metrics
from semel.service.shared_counters import SIZE
from semel.values.inbox import Depth

COUNTING = Path(__file__).parent / "counting_process.py"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(
        handler: str = "greet", count: int = 0, in_flight: int = 0, breaker: str = "closed"
    ) -> subprocess.Popen[str]:
        arguments = [str(tmp_path), handler, str(count), str(in_flight), breaker]
        process = subprocess.Popen(
            [sys.executable, str(COUNTING), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "counted\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait() == -signal.SIGKILL


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_counters_of_two_processes_are_added_up(tmp_path: Path, start: Start) -> None:
    start(count=300, in_flight=2, breaker="half-open")
    start(count=40, in_flight=5, breaker="open")
    metrics = Metrics(tmp_path)
    metrics.handler("greet").outcomes["done"].up()
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 341
    assert value(metrics, "semel_handler_seconds_count", handler="greet") == 340
    assert value(metrics, "semel_handler_seconds_sum", handler="greet") == 85
    assert value(metrics, "semel_in_flight") == 7
    assert value(metrics, "semel_workers") == 3
    assert value(metrics, "semel_destination_breaker_state", destination="crm") == 2, "the worst of them"
    metrics.close()


def test_each_process_tells_the_same_and_the_inbox_only_once(tmp_path: Path, start: Start) -> None:
    start(count=1)
    one, other = Metrics(tmp_path), Metrics(tmp_path)
    depths = [Depth("greet", waiting=4, taken=0, oldest_ms=0)]
    assert one.exposition(depths, 5) == other.exposition(depths, 5)
    assert value(other, "semel_inbox_depth", depths, lane="greet", state="waiting") == 4
    one.close()
    other.close()


def test_a_killed_process_keeps_what_it_counted_and_loses_what_it_was_doing(tmp_path: Path, start: Start) -> None:
    metrics = Metrics(tmp_path)
    victim = start(count=300, in_flight=2, breaker="open")
    start(count=40, in_flight=5)
    assert value(metrics, "semel_in_flight") == 7
    kill(victim)
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 340
    assert value(metrics, "semel_in_flight") == 5
    assert value(metrics, "semel_workers") == 2
    assert value(metrics, "semel_destination_breaker_state", destination="crm") == 0
    assert value(metrics, "semel_destination_breaker_transitions_total", destination="crm", to="open") == 1
    metrics.close()


def test_the_next_process_counts_on_where_a_killed_one_stopped(tmp_path: Path, start: Start) -> None:
    metrics = Metrics(tmp_path)
    for round_ in range(1, 5):
        victim = start(count=10, in_flight=3)
        assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 10 * round_
        assert value(metrics, "semel_in_flight") == 3
        kill(victim)
    assert len(files(tmp_path)) == 2, "a worker that dies again and again leaves one file, not many"
    metrics.close()


def test_a_process_that_counts_on_keeps_its_own_series_apart(tmp_path: Path, start: Start) -> None:
    kill(start("greet", count=10))
    kill(start("farewell", count=7))
    start("greet", count=1)
    metrics = Metrics(tmp_path)
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 11
    assert value(metrics, "semel_handler_seconds_count", handler="greet") == 11
    assert value(metrics, "semel_deliveries_total", handler="farewell", outcome="done") == 7
    assert value(metrics, "semel_handler_seconds_sum", handler="farewell") == 1.75
    metrics.close()


def test_processes_that_start_at_once_share_nothing(tmp_path: Path) -> None:
    """Two files of the dead are there to be taken over: no two of the new ones take the same."""
    for gone in [Metrics(tmp_path), Metrics(tmp_path)]:
        gone.close()
    assert len(files(tmp_path)) == 2
    arguments = [str(tmp_path), "greet", "1000", "1", "closed"]
    crowd = [
        subprocess.Popen([sys.executable, str(COUNTING), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    metrics = Metrics(tmp_path)
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == b"counted\n"
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 6_000
    assert value(metrics, "semel_workers") == 7
    for process in crowd:
        process.communicate()
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 6_000
    assert value(metrics, "semel_workers") == 1
    metrics.close()


def test_a_page_is_whole_while_processes_come_and_go(tmp_path: Path, start: Start) -> None:
    metrics = Metrics(tmp_path)
    last = 0.0
    for _ in range(5):
        process = start(count=50)
        for _ in range(20):
            told = value(metrics, "semel_deliveries_total", handler="greet", outcome="done")
            assert told is not None
            assert told >= last, "a counter never goes back"
            last = told
        kill(process)
    assert last == 250
    metrics.close()


def test_a_process_that_dies_while_it_begins_a_file_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "4711-abcd.new").write_bytes(b"half")
    metrics = Metrics(tmp_path)
    metrics.handler("greet").outcomes["done"].up()
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 1
    metrics.close()


def test_without_a_directory_that_can_be_used_a_process_counts_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(tmp_path / "missing")
    metrics.handler("greet").outcomes["done"].up()
    assert "metrics_not_shared" in caplog.text
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 1
    metrics.close()


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes.numbers").write_bytes(b"seven")
    metrics = Metrics(tmp_path)
    metrics.handler("greet").outcomes["done"].up()
    assert "metrics_not_shared" in caplog.text
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 1
    assert (tmp_path / "notes.numbers").read_bytes() == b"seven"
    metrics.close()


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from semel.service.metrics import Metrics
metrics = Metrics(sys.argv[1])
metrics.handler("greet").outcomes["done"].up()
assert b'outcome="done"} 1.0' in metrics.exposition()[0]
"""


def test_a_full_disk_is_noticed_at_the_start_and_kills_no_process(tmp_path: Path) -> None:
    """A mapped file that the disk has no room for would kill its process at some later increment."""
    assert SIZE > 100_000
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "metrics_not_shared" in done.stderr
    assert files(tmp_path) == [], "what could not be written whole is removed"


def test_a_file_of_numbers_has_its_room_on_the_disk_before_it_is_used(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    (path,) = tmp_path.iterdir()
    written = tmp_path / "written"
    written.write_bytes(bytes(SIZE))
    assert written.stat().st_blocks <= path.stat().st_blocks, "a file with holes"
    metrics.close()

"""`semel process` in its own process: killed at every step, interrupted, and behind a pipe."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.process.conftest import Shop, event
from tests.forking import START, preload

from semel.cli.process import ProcessRequest, run
from semel.cli.process_run import ProcessOptions, Step
from semel.core.crash_points import Boundary
from semel.testing.crash import crash_at, landing

preload("semel.cli.process", "semel.cli.doctor")
SOON_S = 60.0
LOOK_S = 0.02
EVENTS = 450  # several batches
STEPS = {  # the crash point, and on which pass the process is killed there
    Step.AFTER_READ: 2,
    Boundary.BEFORE_ACK: 1,
    Step.AFTER_REJECT: 1,
    Boundary.AFTER_ACK: 3,
}


def _process(folder: Path, module: str, step: str, hit: int) -> None:
    """Runs the command, which is killed at a step."""
    os.chdir(folder)
    out = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    options = ProcessOptions(rejects=Path("rejects.jsonl"))
    request = ProcessRequest(files=["events.jsonl"], target=f"{module}:app", as_json=True, options=options)
    observe = crash_at(step, hit, marker=Path("landed")) if step else None
    os._exit(run(request, observe))


def process(shop: Shop, step: str = "", hit: int = 1) -> int:
    child = START.Process(target=_process, args=(shop.folder, shop.module, step, hit), daemon=True)
    child.start()
    child.join(SOON_S)
    if child.exitcode is None:
        child.kill()
        pytest.fail(f"it did not end: {(shop.folder / 'output').read_text()[-2000:]}")
    return child.exitcode


def test_nothing_is_lost_or_doubled_when_the_command_is_killed_at_any_step(shop: Shop) -> None:
    events = [event(f"e{number:04}") for number in range(EVENTS)]
    malformed = [b"{ broken %d" % number for number in range(3)]
    content = [*events[:100], malformed[0], *events[100:300], malformed[1], *events[:50], *events[300:], malformed[2]]
    shop.write(content)
    marker = shop.folder / "landed"
    for step, hit in STEPS.items():
        marker.unlink(missing_ok=True)
        code = process(shop, step, hit)
        assert code in (0, 1, -signal.SIGKILL), f"failed with {code} before {step}"
        assert marker.exists(), f"inconclusive: the crash at {step} did not land"
        assert marker.read_text() == landing(step, hit)
        assert code == -signal.SIGKILL
    code = process(shop)
    assert code == 1, "malformed documents are reported by every run"
    assert Counter(shop.booked()) == {f"e{number:04}": 1 for number in range(EVENTS)}
    kept = {json.loads(line)["body"] for line in (shop.folder / "rejects.jsonl").read_text().splitlines()}
    assert kept == {body.decode() for body in malformed}


def until(true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends, f"waited for {what}"
        time.sleep(LOOK_S)


def started(shop: Shop, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "semel.cli.main", "process", *arguments, "--app", f"{shop.module}:app"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=shop.folder, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_finishes_its_batch_and_the_next_run_processes_the_rest(
    shop: Shop, number: signal.Signals
) -> None:
    shop.write([event(f"e{at:04}") for at in range(2_000)])
    process = started(shop, "events.jsonl", "--rate", "100")
    until(lambda: _booked(shop) > 0, "the first events")
    process.send_signal(number)
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 130, err
    assert b"run the same command again" in b" ".join(out.split())
    done = shop.booked()
    assert 0 < len(done) < 2_000
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 0
    assert ended.json["outcomes"] == {"duplicate": len(done), "done": 2_000 - len(done)}
    assert len(set(shop.booked())) == len(shop.booked()) == 2_000


def test_a_pipe_is_processed_as_it_is_written_and_ends_with_its_writer(shop: Shop) -> None:
    process = started(shop, "-", "--json")
    assert process.stdin is not None
    for number in range(3):
        process.stdin.write(event(str(number)) + b"\n")
        process.stdin.flush()
        _until_booked(shop, number + 1)
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert json.loads(out)["outcomes"] == {"done": 3}


def _until_booked(shop: Shop, count: int) -> None:
    until(lambda: _booked(shop) == count, f"{count} events")


def _booked(shop: Shop) -> int:
    return len(shop.booked()) if (shop.folder / "shop.db").exists() else 0


def test_a_compressed_pipe_is_read(shop: Shop) -> None:
    process = started(shop, "-", "--json")
    out, err = process.communicate(gzip.compress(event("1") + event("2")), timeout=SOON_S)
    assert process.returncode == 0, err
    assert json.loads(out)["outcomes"] == {"done": 2}


def test_an_interrupt_does_not_wait_for_a_silent_pipe(shop: Shop) -> None:
    process = started(shop, "-")
    assert process.stdin is not None
    process.stdin.write(event("1") + b"\n")
    process.stdin.flush()
    until(lambda: _booked(shop) == 1, "the first event")
    process.send_signal(signal.SIGINT)
    until(lambda: process.poll() is not None, "its end")
    process.communicate()
    assert process.returncode == 130


def test_a_closed_standard_input_is_refused(shop: Shop) -> None:
    command = f"{sys.executable} -m semel.cli.main process - --app {shop.module}:app <&-"
    ended = subprocess.run(["sh", "-c", command], cwd=shop.folder, capture_output=True, text=True, timeout=SOON_S)
    assert ended.returncode == 2
    assert re.search("standard input|stdin", ended.stderr)
    assert not (shop.folder / "shop.db").exists()


def test_the_rest_of_a_file_that_grows_while_it_is_read_is_processed_by_the_next_run(shop: Shop) -> None:
    shop.write([event(f"e{at:04}") for at in range(1_000)])
    process = started(shop, "events.jsonl", "--rate", "2000", "--json")
    with shop.file.open("ab", buffering=0) as file:
        for at in range(1_000, 1_200):
            file.write(event(f"e{at:04}") + b"\n")
    process.communicate(timeout=SOON_S)
    assert shop.process("events.jsonl", "--json").code == 0
    assert len(set(shop.booked())) == len(shop.booked()) == 1_200


def test_a_file_that_vanishes_is_read_to_its_end(shop: Shop) -> None:
    shop.write([event(f"e{at:04}") for at in range(1_000)])
    process = started(shop, "events.jsonl", "--rate", "1000", "--json")
    until(lambda: _booked(shop) > 0, "the first events")
    shop.file.unlink()
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert json.loads(out)["outcomes"] == {"done": 1_000}

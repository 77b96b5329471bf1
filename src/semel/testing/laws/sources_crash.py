"""Nothing is lost, and nothing is done twice, when the consumer is killed at any step."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.testing.crash import landing
from semel.testing.laws.sources_harness import LANDED, SAID, SOON_S, Process, SourceBinding, SourceHarness, document

AGAIN = "again"  # `data.again`: the handler asks for a retry in the first attempt
EACH = 2  # good events for each death
POLL_S = 0.02


class CrashLaws(SourceBinding):
    """A real process works, and dies by SIGKILL. Its handler, for the type `law`, has effect="transaction" or another
    by which an effect happens once; with `data.again` it raises `Retry(after=0)` in its first attempt. Attempts are
    without limit, leases as short as can be."""

    def test_nothing_is_lost_when_the_consumer_is_killed_at_any_step(
        self, harness: SourceHarness, tmp_path: Path
    ) -> None:
        """One process after the other, each with events of its own and those that the dead have left."""
        events: list[str] = []
        malformed: list[bytes] = []
        for step in harness.steps:
            mine = [f"{step} {number}" for number in range(EACH)]
            events += [*mine, f"{step} again"]
            malformed.append(f"{{ {step}".encode())
            harness.put(*[document(event) for event in mine], group=step)
            harness.put(document(f"{step} again", again=True), group=f"{step} again")
            harness.put(malformed[-1], group=f"{step} malformed")
            _die(harness, step, tmp_path)
        with _working(harness, "", tmp_path) as process:
            _wait(harness, process, tmp_path)
        assert Counter(harness.happened()) == dict.fromkeys(events, 1)
        kept = Counter(letter.body for letter in harness.letters())
        assert set(kept) == set(malformed), "what is no event is kept"
        assert all(letter.reason for letter in harness.letters())


def _die(harness: SourceHarness, step: str, folder: Path) -> None:
    marker = folder / LANDED
    marker.unlink(missing_ok=True)
    with _working(harness, step, folder) as process:
        try:
            code = process.wait(SOON_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the consumer did not come to {step} within {SOON_S:g} s{_said(folder)}")
    assert code in (0, -signal.SIGKILL), f"the consumer failed with {code} before {step}{_said(folder)}"
    assert marker.exists(), f"inconclusive: the crash at {step} did not land, exit code {code}{_said(folder)}"
    assert marker.read_text() == landing(step)
    assert code == -signal.SIGKILL, f"the consumer outlived its crash at {step}{_said(folder)}"


def _wait(harness: SourceHarness, process: Process, folder: Path) -> None:
    ends = time.monotonic() + SOON_S
    while harness.left():
        assert process.poll() is None, f"it ended with {process.poll()}{_said(folder)}"
        assert time.monotonic() < ends, f"{harness.left()} messages are left{_said(folder)}"
        time.sleep(POLL_S)


@contextmanager
def _working(harness: SourceHarness, step: str, folder: Path) -> Iterator[Process]:
    process = harness.consumer(step, folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _said(folder: Path) -> str:
    file = folder / SAID
    return "; it said:\n" + file.read_text("utf-8", "replace")[-4000:] if file.exists() else ""

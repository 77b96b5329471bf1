"""The whole service under a storm, with workers killed at random: 0 lost, 0 doubled at a sink that honours keys."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import Running, service

SETTINGS = """
[server]
drain = 10

[destinations.sink]
url = "{sink}"
allow = ["127.0.0.1"]
timeout = 2
concurrency = 32

[[routes]]
name = "forwarded"
topics = ["**"]
forward = "sink"
effect = "keyed"
window = 86_400
timeout = 3
lease = 4
max_attempts = 50
"""


@contextmanager
def sink(*arguments: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "sink", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def storm(running: Running, sink_url: str, events: int) -> subprocess.Popen[str]:
    options = ["--events", str(events), "--duplicates", "0.3", "--check", sink_url, "--settle", "90", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "semel", "storm", f"{running.url}/events", *options, "--seed", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    said: dict[str, Any] = json.loads(out)
    return said


@pytest.mark.long
@pytest.mark.timeout(280)
def test_workers_killed_under_a_storm_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with sink("--keyed") as url, service(tmp_path, SETTINGS.format(sink=url), "--workers", "2") as running:
        running.until(lambda: len(running.workers()) == 2, "two workers did not start")
        sending = storm(running, url, 20_000)
        kills = 0
        while sending.poll() is None and kills < 8:
            time.sleep(random.uniform(0.5, 1.5))
            with suppress(ProcessLookupError, IndexError):
                os.kill(random.choice(running.workers()), signal.SIGKILL)
                kills += 1
        said = report(sending)
        assert kills >= 3, "the storm was over before the fault landed"
        assert sum("SIGKILL" in line for line in running.log) >= 3
        assert (said["check"]["lost"], said["check"]["doubled"]) == (0, 0)
        assert said["check"]["effects"] == 20_000


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_rolling_restart_under_a_storm_loses_nothing(tmp_path: Path) -> None:
    with sink("--keyed") as url, service(tmp_path, SETTINGS.format(sink=url)) as running:
        sending = storm(running, url, 5_000)
        restarts = 0
        while sending.poll() is None and restarts < 3:
            time.sleep(1.0)
            running.terminate()
            assert running.wait(60) == 0
            running.start()
            restarts += 1
        said = report(sending)
        assert restarts >= 1
        assert (said["check"]["lost"], said["check"]["doubled"]) == (0, 0)

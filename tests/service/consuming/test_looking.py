"""`semel doctor` and the beginning of `semel run`: what they say of queues, and when they refuse."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.facts import rendered
from tests.service.consuming.settings_of import source_of
from tests.settings.writing import ROUTE, write
from tests.sources.places import Queue

from semel.cli.doctor import OUT_OF_REACH, DoctorReport, examine, to_json
from semel.settings.checks import Finding
from semel.values.errors import ConfigError

DAY_S = 86_400


def looked(folder: Path, text: str) -> DoctorReport:
    return examine(None, write(folder, 'ledger = "memory://"\n' + text + ROUTE))


def told(report: DoctorReport, check: str) -> list[Finding]:
    return [one for one in report.findings if one.check == check]


def ended(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """`semel run`, which does not start."""
    path = write(folder, text + ROUTE)
    return subprocess.run(
        [sys.executable, "-m", "semel", "run", "-c", str(path), "--port", "0"],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_doctor_shows_the_attributes_of_a_queue(tmp_path: Path, queue: Queue) -> None:
    queue.send([b"{}", b"{}"])
    report = looked(tmp_path, source_of(queue, visibility=30))
    assert [one.level for one in told(report, "source")] == ["ok"]
    facts = rendered(report.sources["source events"])
    assert facts["queue"] == queue.url
    assert facts["waiting"] == "2"
    document: dict[str, Any] = json.loads(to_json(report))
    assert document["sources"]["source events"]["waiting"] == "2"


def test_a_queue_that_does_not_exist_is_an_error_and_nothing_starts(tmp_path: Path, queue: Queue) -> None:
    settings = source_of(queue, queue=f"{queue.url}-not", visibility=30)
    (finding,) = told(looked(tmp_path, settings), "source")
    assert finding.level == "error"
    assert "NonExistentQueue" in finding.what
    run = ended(tmp_path, settings)
    assert run.returncode != 0
    assert "NonExistentQueue" in run.stderr
    assert not re.search(r"^Semel\b.*http://", run.stderr, re.MULTILINE), "it does not report that it listens"


def test_a_broker_that_cannot_be_reached_is_an_error(tmp_path: Path, queue: Queue) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        (finding,) = told(looked(tmp_path, source_of(queue, endpoint=endpoint, visibility=30)), "source")
        assert finding.level == "error"
        assert "source events" in finding.what
        assert OUT_OF_REACH in finding.what, "so that `semel run` starts all the same"
        assert "127.0.0.1" in finding.what


def test_a_queue_without_a_place_for_poison_is_an_error(tmp_path: Path, queue: Queue) -> None:
    settings = source_of(queue, visibility=30).replace(f"dead_letters = {queue.dead_url!r}\n", "")
    (finding,) = told(looked(tmp_path, settings), "source")
    assert finding.level == "error"
    assert "dead" in finding.what + finding.change


def test_a_queue_that_keeps_longer_than_an_event_may_come_again_is_an_error(tmp_path: Path, new_queue: Any) -> None:
    queue = new_queue(MessageRetentionPeriod=str(14 * DAY_S))
    report = looked(tmp_path, f"redelivery = {2 * DAY_S}\n" + source_of(queue, visibility=30))
    assert [one.level for one in told(report, "source")] == ["ok", "error"]
    finding = told(report, "source")[1]
    assert all(part in finding.what for part in ("14 d", "redelivery", "2 d")), finding
    assert "redelivery" in finding.change
    assert str(14 * DAY_S) in finding.change
    assert [one.level for one in told(looked(tmp_path, source_of(queue, visibility=30)), "source")] == ["ok"]


def test_a_lease_that_outlasts_the_visibility_of_its_source_is_refused(tmp_path: Path, queue: Queue) -> None:
    run = ended(tmp_path, source_of(queue, visibility=25))
    assert run.returncode != 0
    assert re.search(r"lease\D* 25 s\D*visibility\D* events\D* 25 s", run.stderr), run.stderr


@pytest.mark.parametrize("more", ["", "[[endpoints]]\n"])
def test_a_service_without_routes_consumes_nothing(tmp_path: Path, queue: Queue, more: str) -> None:
    """Where nobody says what to do, webhooks are written to the console; a queue would lose its messages by that."""
    queue.send([b'{"id": "1", "type": "x", "data": {}}'])
    path = write(tmp_path, source_of(queue, visibility=30) + more)
    run = subprocess.run(
        [sys.executable, "-m", "semel", "run", "-c", str(path), "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode != 0
    assert "source events" in run.stderr
    assert queue.visible() == 1


def test_a_broker_that_events_are_forwarded_to_is_checked_too(tmp_path: Path, queue: Queue) -> None:
    def broker(url: str) -> str:
        where = f"endpoint = '{queue.server.endpoint}'\nregion = '{queue.server.region}'\n"
        return f"[[endpoints]]\naccept = 'sqs'\n[brokers.sqs]\nqueue = '{url}'\n{where}"

    assert [one.level for one in told(looked(tmp_path, broker(queue.url)), "broker")] == ["ok"]
    (finding,) = told(looked(tmp_path, broker(f"{queue.url}-not")), "broker")
    assert finding.level == "error"


def test_the_error_of_the_settings_names_the_line(tmp_path: Path, queue: Queue) -> None:
    with pytest.raises(ConfigError, match=r"semel\.toml:\d+: \[\[sources\]\] \"events\": workers: "):
        looked(tmp_path, source_of(queue, workers=0))

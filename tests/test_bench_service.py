"""`python -m bench.service`: the form of its report, its counts, and that no process or file is left behind.

No test looks at a time or a rate: they are the machine's.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from bench.service.processes import senders, server, usage
from bench.service.report import AIMS, SENDER_BUSY, Report, as_table, legend, run
from bench.service.scenarios import CONNECTIONS, SCENARIOS, Measured, Scenario, ServiceBench
from bench.service.sender import COPY_BEHIND, Job, Seen, in_order, send, write_requests
from rich.console import Console
from tests.cli.scripted import listening
from tests.wording import lacks

from semel.settings.schema import ServerSettings
from semel.values.errors import SemelError

QUICK = ("--quick", "--rounds", "1", "--seconds", "0.5")
ROOT = Path(__file__).parents[1]
WITHIN_S = 100
MAX_IN_FLIGHT = ServerSettings().max_in_flight

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def started(mark: str, *arguments: str) -> subprocess.Popen[str]:
    """The command. All processes that come of it have the mark in their environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.service", *arguments],
        cwd=ROOT,
        env={**os.environ, "BENCH_MARK": mark, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def marked(mark: str) -> list[int]:
    """Living processes with this mark."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)]


def _has(entry: Path, mark: str) -> bool:
    try:
        return f"BENCH_MARK={mark}".encode() in (entry / "environ").read_bytes()
    except OSError:  # gone, or somebody else's
        return False


@pytest.mark.long
def test_every_scenario_is_measured_and_no_process_is_left() -> None:
    mark = uuid4().hex
    bench = started(mark, *QUICK, "--json")
    out, err = bench.communicate(timeout=WITHIN_S)
    assert bench.returncode == 0, err
    assert marked(mark) == []
    report = json.loads(out)
    assert (report["rounds"], report["seconds"], report["connections"]) == (1, 0.5, 64)
    assert 1_300 <= report["body_bytes"] <= 1_500
    assert [finding["scenario"] for finding in report["findings"]] == [aim.scenario for aim in AIMS] == list(SCENARIOS)
    for finding in report["findings"]:
        assert (finding["ratio"] is not None) == bool(finding["against"])
        assert (finding["verdict"] in ("ok", "below")) == bool(finding["target"])
    one = {name: rounds[0] for name, rounds in report["measured"].items() if len(rounds) == 1}
    assert one.keys() == SCENARIOS.keys()
    for name, measured in one.items():
        assert measured["answers"]["200"] > 0, name
        assert measured["cpu_us"] > 0, name
        assert 0 < measured["p50_ms"] <= measured["p99_ms"], name
        assert 0 < measured["rss_begin_mib"] <= measured["rss_max_mib"], name
        assert measured["lost"] == 0, name
        assert (measured["duplicates"] > 0) == (name == "duplicates"), "inconclusive: it is about other events"
        assert (measured["handled_rate"] is not None) == (name == "inbox"), name
    assert one["inbox"]["handled_rate"] > 0
    assert one["overload"]["in_flight"] > MAX_IN_FLIGHT, "inconclusive: it was not overloaded"
    assert one["sqlite"]["in_flight"] <= CONNECTIONS


def test_a_terminated_bench_takes_its_processes_along(tmp_path: Path) -> None:
    mark = uuid4().hex
    bench = started(mark, *QUICK, "--rounds", "50", "--folder", str(tmp_path))
    try:
        deadline = time.monotonic() + WITHIN_S
        while len(marked(mark)) < 3 and time.monotonic() < deadline:  # itself, a server and a sender
            time.sleep(0.02)
        assert len(marked(mark)) >= 3, "inconclusive: there is nothing to take along"
        bench.send_signal(signal.SIGTERM)
        bench.communicate(timeout=WITHIN_S)
    finally:
        bench.kill()
    assert bench.returncode != 0
    assert marked(mark) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--rounds", "0"), "--rounds"), (("--seconds", "61"), "--seconds"), (("--folder", "/nowhere"), "/nowhere")],
)
def test_a_bad_value_is_named_and_nothing_runs(arguments: tuple[str, ...], said: str) -> None:
    bench = started("", *arguments)
    out, err = bench.communicate(timeout=WITHIN_S)
    assert bench.returncode == 2
    assert said in err
    assert out == "", "there is no report"


# -------------------------------------------------------------------------------------------------------- reporting


def measured(rate: float, **others: Any) -> Measured:
    plain = Measured(rate, 1.0, 2.0, 30.0, 0.1, 1, {"200": 90, "503": 10}, 45, 0, 600, 50.0, 60.0, 61.0)
    return replace(plain, **others)


class ScriptedBench(ServiceBench):
    """Measures what it is told to."""

    rates: dict[str, Iterator[float]]
    shares: Iterator[float]

    def prepare(self) -> int:
        return 1_400

    def measure(self, scenario: Scenario) -> Measured:
        return measured(next(self.rates[scenario.name]), sender_share=next(self.shares), senders=self.processes)


def report_of(
    monkeypatch: pytest.MonkeyPatch, rounds: int, rates: dict[str, list[float]], shares: list[float]
) -> Report:
    monkeypatch.setattr("bench.service.report.ServiceBench", ScriptedBench)
    monkeypatch.setattr(ScriptedBench, "rates", {name: iter(own) for name, own in rates.items()}, raising=False)
    monkeypatch.setattr(ScriptedBench, "shares", iter(shares), raising=False)
    return run(rounds, 1.0, 0.1, None, Console(stderr=True, quiet=True))


def test_ratios_are_of_one_round_and_a_missed_aim_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {name: [10.0, 20.0, 30.0] for name in SCENARIOS}
    rates |= {"hello": [100.0, 20.0, 300.0], "memory": [80.0, 19.0, 90.0], "sqlite": [40.0, 30.0, 30.0]}
    report = report_of(monkeypatch, 3, rates, [0.1] * 18)
    found = {finding.scenario: finding for finding in report.findings}
    assert found["hello"].ratio is None
    assert (found["memory"].ratio, found["memory"].verdict) == (0.8, "ok")
    assert (found["sqlite"].ratio, found["sqlite"].verdict) == (0.4, "below")
    assert found["sqlite"].rate == 30.0
    assert (found["overload"].against, found["overload"].verdict) == ("sqlite", "below")
    assert found["overload"].refused == pytest.approx(0.1)
    assert (found["inbox"].target, found["inbox"].verdict) == ("", "")
    assert as_table(report).row_count == len(SCENARIOS)
    assert lacks(legend(report), "50% 10% 600 50 MiB 60 61") == []


def test_a_busy_sender_gets_a_second_one_and_the_legend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {name: [10.0, 11.0] for name in SCENARIOS}
    report = report_of(monkeypatch, 1, rates, [0.1, SENDER_BUSY + 0.01, 0.5, *[0.1] * 4])
    assert [rounds[0].senders for rounds in report.measured.values()] == [1, 2, 2, 2, 2, 2]
    assert report.measured["memory"][0].rate == 11.0, "it was measured again"
    assert lacks(legend(report), "2 processes 50%") == []


# ---------------------------------------------------------------------------------------------------------- sending


def test_every_other_request_is_a_copy_of_an_earlier_one() -> None:
    requests = [b"%d" % number for number in range(3 * COPY_BEHIND)]
    assert list(in_order(requests, "once")) == requests
    sent = list(in_order(requests, "copies"))
    assert sent[:COPY_BEHIND] == requests[:COPY_BEHIND]
    assert sent[COPY_BEHIND::2] == requests[COPY_BEHIND:]
    assert sent[COPY_BEHIND + 1 :: 2] == requests[: 2 * COPY_BEHIND]
    assert COPY_BEHIND > 2 * CONNECTIONS, "or its original may still be under way"
    again = in_order(requests[:2], "cycle")
    assert [next(again) for _ in range(5)] == [b"0", b"1", b"0", b"1", b"0"]


class Script:
    """Gives its answers in order, whoever asks; the last one again and again. An empty one is the end."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heard: list[bytes] = []

    def talk(self, connection: socket.socket) -> None:
        while request := connection.recv(65536):
            self.heard.append(request)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if not answer:
                return
            connection.sendall(answer)


def said(status: int, word: str = "processed") -> bytes:
    body = b'{"status":"%b"}' % word.encode()
    return b"HTTP/1.1 %d Word\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def seen_by(script: Script, requests: list[bytes], tmp_path: Path) -> Seen:
    """What one connection sees, from the beginning until there is nothing more to send."""
    write_requests(tmp_path / "requests", requests)
    lines: list[str] = []
    with listening(script.talk) as url:
        job = Job(int(url.rpartition(":")[2]), str(tmp_path / "requests"), "once", connections=1, pause_s=0.01)
        now = time.monotonic()
        asyncio.run(send(job, lambda: f"{now} {now + WITHIN_S}", lines.append))
    ready, seen = lines
    assert ready == "ready"
    return msgspec.json.decode(seen, type=Seen)


@pytest.mark.parametrize("refusal", [409, 429, 503])
def test_a_refused_request_is_sent_again_and_counted_once(refusal: int, tmp_path: Path) -> None:
    script = Script(said(200), said(refusal), said(200, "duplicate"), said(200))
    seen = seen_by(script, [b"a", b"b", b"c"], tmp_path)
    assert script.heard == [b"a", b"b", b"b", b"c"]
    assert seen.codes == {"200": 3, str(refusal): 1}
    assert len(seen.good_s) == 3
    assert (seen.duplicates, seen.lost, seen.trouble) == (1, 0, "")


def test_an_answer_that_nobody_expects_is_told(tmp_path: Path) -> None:
    seen = seen_by(Script(said(200), said(401, "Not verified"), said(200)), [b"a", b"b", b"c"], tmp_path)
    assert seen.codes == {"200": 2, "401": 1}
    assert "401" in seen.trouble
    assert "Not verified" in seen.trouble


@pytest.mark.parametrize("last", [b"", b"no HTTP at all\r\n\r\n"])
def test_a_connection_that_is_lost_is_counted_and_ends_nothing_else(last: bytes, tmp_path: Path) -> None:
    seen = seen_by(Script(said(200), last), [b"a", b"b", b"c"], tmp_path)
    assert (seen.codes, seen.lost) == ({"200": 1}, 1)


# -------------------------------------------------------------------------------------------------------- processes


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(SemelError, match="nothing_here"):
        with server(["semel", "run", "nothing_here:app", "--port", "0"], tmp_path):
            pass


def test_our_own_environment_configures_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_SERVER__PORT", "not a port")
    with server(["bench.service.hello"], tmp_path) as running:
        pid = running.pid
        assert b"processed" in running.get("/anything")
        assert b"SEMEL_" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert not Path(f"/proc/{pid}").exists()


def test_a_sender_ends_with_its_block(tmp_path: Path) -> None:
    write_requests(tmp_path / "requests", [b"a"])
    with pytest.raises(SemelError, match="sender"):
        with senders([Job(1, str(tmp_path / "requests"), "once", 1, 0.01)]) as sending:  # nobody listens there
            sending.begin(0.1, 0.1)


def test_what_a_process_uses_is_read_off_the_system() -> None:
    before = usage(os.getpid())
    begun = time.process_time()
    while time.process_time() - begun < 0.2:
        pass
    after = usage(os.getpid())
    assert after.cpu_s - before.cpu_s >= 0.15  # it is told in hundredths
    assert 1 < after.rss_mib <= after.rss_max_mib

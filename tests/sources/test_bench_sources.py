"""`python -m bench.sources`: every scenario runs, and says what it is compared with. No test looks at a time or a rate:
they are the machine's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from bench.sources.__main__ import PARTS
from bench.sources.fake_sqs import FakeSqs
from bench.sources.plan import Line, Sample, Sizes
from bench.sources.rounds import finding, run
from bench.sources.sqs import MEMORY, by_hand, by_semel, messages
from bench.stores.report import Report, as_json, as_table, legend
from bench.stores.timing import Watch
from rich.console import Console
from tests.support.servers.process import NoServer, not_here

TINY = Sizes(rounds=1, messages=12_000, singly=20)
ROOT = Path(__file__).parent.parent.parent
NO_SERVER = Watch(lambda: 0.0)


def measured(part: str) -> Report:
    try:
        return run({part: PARTS[part]}, TINY, Console(file=StringIO()))
    except NoServer as error:
        not_here(error)


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
def test_every_scenario_of_a_part_runs_and_shows_its_ratio(name: str) -> None:
    report = measured(name)
    (part,) = report.stores
    assert all(len(samples) == TINY.rounds for samples in part.samples.values())
    assert all(one.rate > 0 and one.cpu_us > 0 for samples in part.samples.values() for one in samples)
    assert {line.scenario for line in part.findings} == set(part.samples), "measured, and not in the table"
    console = Console(file=StringIO(), width=250)
    console.print(as_table(part))
    console.print(legend(report))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    for line in part.findings:
        assert line.label in text
        assert (line.ratio is not None) == (line.by_cpu is not None) == bool(line.against)
        assert (line.verdict != "") == (line.aim != "")
    assert any(line.verdict for line in part.findings), "a part without an aim"
    assert json.loads(as_json(report))["stores"][0]["findings"][0]["ratio"] == part.findings[0].ratio


def test_the_bench_makes_the_requested_number_of_messages_with_duplicates() -> None:
    made = messages(1_000)
    assert len(made) == 1_000
    assert len(set(made)) == 700


def test_the_manual_loop_calls_the_queue_twice_per_message_and_semel_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[FakeSqs] = []

    class Noted(FakeSqs):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            queues.append(self)

    class NoStore:
        """SET NX, in memory."""

        def __init__(self) -> None:
            self.known: set[str] = set()

        async def __aenter__(self) -> NoStore:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def ping(self) -> None: ...

        async def set(self, key: str, value: bytes, **options: object) -> bool:
            return key not in self.known and not self.known.add(key)  # type: ignore[func-returns-value]

    monkeypatch.setattr("bench.sources.sqs.FakeSqs", Noted)
    monkeypatch.setattr("bench.sources.sqs.redis.asyncio.Redis.from_url", lambda _: NoStore())
    made = messages(300)
    asyncio.run(by_semel(NO_SERVER, made, MEMORY, pollers=4, workers=2))
    asyncio.run(by_hand(NO_SERVER, made[:20], ""))
    ours, theirs = (queue.requests for queue in queues)
    assert ours / 300 < 0.5
    assert theirs / 20 == 2


def test_a_returned_message_is_redelivered_with_another_receipt() -> None:
    async def story() -> None:
        queue = FakeSqs([b"{}"], 0)
        (first,) = (await queue.receive_message())["Messages"]
        entry = {"Id": "0", "ReceiptHandle": first["ReceiptHandle"]}
        await queue.change_message_visibility_batch(Entries=[{**entry, "VisibilityTimeout": 0}])
        (again,) = (await queue.receive_message(WaitTimeSeconds=1))["Messages"]
        assert again["ReceiptHandle"] != first["ReceiptHandle"]
        assert (await queue.delete_message_batch(Entries=[entry]))["Failed"], "the old receipt"
        await queue.delete_message(ReceiptHandle=again["ReceiptHandle"])
        assert queue.empty.is_set()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("line", "aim", "verdict"),
    [
        (Line("ours", "loop", at_least=2), "≥ 2 ×", "ok"),
        (Line("ours", "loop", at_least=3), "≥ 3 ×", "below"),
        (Line("ours", rate_at_least=200), "≥ 200/s", "ok"),
        (Line("ours", rate_at_least=201), "≥ 201/s", "below"),
        (Line("ours", rate_at_least=201, or_reaches="loop"), "≥ 201/s or the loop by hand", "ok"),
        (Line("ours", rate_at_least=201, or_reaches="client"), "≥ 201/s or the bare client", "below"),
        (Line("ours"), "", ""),
    ],
)
def test_a_missed_aim_is_below(line: Line, aim: str, verdict: str) -> None:
    labels = {"ours": "Semel", "loop": "loop by hand", "client": "bare client"}
    samples = {"ours": [Sample(200, 2, 0)], "loop": [Sample(100, 4, 0)], "client": [Sample(300, 1, 0)]}
    found = finding(line, labels, samples)
    assert (found.aim, found.verdict) == (aim, verdict)


def test_the_command_refuses_a_part_that_is_not_there() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.sources", "--only", "sqs,pigeons"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "pigeons" in ran.stderr


def test_a_rate_is_not_judged_on_a_busy_machine_and_a_ratio_is() -> None:
    samples = {"ours": [Sample(200, 2, 0)], "loop": [Sample(100, 4, 0)]}
    lines = (Line("ours", rate_at_least=201), Line("ours", rate_at_least=200), Line("ours", "loop", at_least=3))
    found = [finding(line, {"ours": "Semel", "loop": "loop"}, samples, busy=True).verdict for line in lines]
    assert found == ["unjudged", "ok", "below"]

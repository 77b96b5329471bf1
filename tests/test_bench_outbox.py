"""`python -m bench.outbox`: every scenario runs, and says what it is compared with. No test looks at a time or a rate:
they are the machine's. Statements are counted, and have a limit."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from bench.outbox.far_end import away
from bench.outbox.plan import Line, Sizes
from bench.outbox.report import Report, as_json, as_table, finding, legend
from bench.outbox.rounds import STORES, run
from bench.outbox.sending import by_client, notifications
from bench.stores.timing import Watch
from rich.console import Console
from tests.support.servers.process import NoServer, not_here
from tests.wording import lacks

TINY = Sizes(rounds=1, relayed=60, looped=40, added=5, takes=2, asked=20, finished=1_000, store_s=600)
ROOT = Path(__file__).parent.parent
STATEMENTS_MAX = {"sqlite": 0.4, "postgres": 0.03}  # for each message of a hundred: take, cross and record


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: each of its sessions takes the rights of others away there, also of a PostgreSQL that is not
    root's, in the middle of another session."""
    with TemporaryDirectory(prefix="semel-test-") as made:
        yield Path(made)


def measured(store: str, folder: Path) -> Report:
    try:
        return run(TINY, [store], folder, Console(file=StringIO()))
    except NoServer as error:
        not_here(error)


@pytest.mark.long
@pytest.mark.parametrize("name", STORES)
def test_every_scenario_of_a_store_runs_and_no_message_takes_more_statements_than_it_may(
    name: str, folder: Path
) -> None:
    report = measured(name, folder)
    (store,) = report.stores
    assert all(len(found) == TINY.rounds and min(found) >= 0 for found in store.figures.values())
    assert {line.figure for line in store.findings} == set(store.figures), "measured, and not in the table"
    console = Console(file=StringIO(), width=250)
    console.print(as_table(store))
    console.print(legend(report))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    for line in store.findings:
        assert line.label in text
        assert (line.ratio is not None) == bool(line.against)
        assert (line.verdict != "") == (line.aim != "")
    assert json.loads(as_json(report))["stores"][0]["findings"][0]["ratio"] == store.findings[0].ratio
    assert not list(folder.iterdir()), "something of the run was left over"

    statements = {line.figure: line.value for line in store.findings if line.unit.startswith("statements")}
    assert 0 < statements["batch.statements"] <= STATEMENTS_MAX[name]
    assert 1 <= statements["add_1.statements"] <= 2
    assert 1 <= statements["add_100.statements"] <= 2


@pytest.mark.parametrize(
    ("line", "aim", "verdict"),
    [
        (Line("own", "", "/s", "other", at_least=1.9), "≥ 1.9 ×", "ok"),
        (Line("own", "", "/s", "other", at_least=2.1), "≥ 2.1 ×", "below"),
        (Line("own", "", "/s", "other", at_most=2), "≤ 2 ×", "ok"),
        (Line("own", "", "/s", "other", at_most=1.9), "≤ 1.9 ×", "below"),
        (Line("own", "", "ms p99", at_most=400), "≤ 400 ms p99", "ok"),
        (Line("own", "", "ms p99", at_most=399), "≤ 399 ms p99", "below"),
        (Line("own", "", "ms p99", at_most=400, unjudged="too few"), "≤ 400 ms p99", "unjudged"),
        (Line("own", "", "/s", "other"), "", ""),
    ],
)
def test_an_aim_is_judged_by_the_median_of_the_rounds(line: Line, aim: str, verdict: str) -> None:
    figures = {"own": [20.0, 400.0, 9_000.0], "other": [10.0, 200.0, 3_000.0]}  # the rounds' ratios are 2, 2 and 3
    found = finding(line, {"other": "theirs"}, figures)
    assert (found.value, found.aim, found.verdict) == (400, aim, verdict)
    assert found.ratio == (2 if line.against else None)


def test_a_time_that_is_too_long_is_not_judged_on_a_busy_machine_and_a_ratio_is() -> None:
    figures = {"own": [400.0], "other": [200.0]}
    lines = (Line("own", "", "ms p99", at_most=399), Line("own", "", "ms p99", at_most=400))
    ratio = Line("own", "", "/s", "other", at_least=3)
    found = [finding(line, {"other": "theirs"}, figures, busy=True).verdict for line in (*lines, ratio)]
    assert found == ["unjudged", "ok", "below"]


def test_messages_that_come_twice_or_not_at_all_are_no_measure() -> None:
    with away() as far:
        asyncio.run(by_client(Watch(lambda: 0.0), far, 20, 4))  # which looks by itself
        with pytest.raises(AssertionError, match=r"\b0 messages"):
            far.check(20)
        asyncio.run(_twice(far.url))
        with pytest.raises(AssertionError, match=r"\b2 messages.*\b1 different"):
            far.check(2)


async def _twice(url: str) -> None:
    from semel.http_client.client import Client
    from semel.http_client.resolver import server_address

    client = Client(server_address("far end", url), ["127.0.0.1"], 30.0)
    (one,) = notifications(1)
    for _ in range(2):
        await client.ask(url, one.content, {"Idempotency-Key": one.id.hex()})
    await client.close()


def test_the_command_refuses_a_store_that_has_no_outbox() -> None:
    asked = [sys.executable, "-m", "bench.outbox", "--only", "sqlite,redis"]
    ran = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert lacks(ran.stderr, "redis sqlite postgres") == []

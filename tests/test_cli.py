"""The command line, as a user starts it: in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.wording import lacks
from typer.testing import CliRunner

from semel import Semel, __version__
from semel.cli import demo, main
from semel.cli.bench import COMPARISONS, SCENARIOS
from semel.testing import traffic

PEERS = Path(__file__).parent.parent / "bench" / "peers.py"
QUICK = ("bench", "--quick", "--rounds", "1")


def semel(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semel.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def document(*arguments: str) -> Any:
    ended = semel(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_version_is_the_package_s() -> None:
    assert semel("--version").stdout == f"semel {__version__}\n"


@pytest.mark.parametrize("name", [name for group in main.COMMANDS.values() for name in group])
def test_the_list_of_commands_shows_the_first_line_of_each_help(name: str) -> None:
    (listed,) = [group[name] for group in main.COMMANDS.values() if name in group]
    assert main.load(name).help.split("\n\n")[0].replace("\n", " ") == listed


def test_help_imports_no_command() -> None:
    code = "import sys; from semel.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("semel.cli.")] == ["semel.cli.main"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ((), ("--version", "bench", "demo")),
        (("bench",), ("--rounds", "--keys", "--quick", "--peers", "--folder", "--json")),
        (("demo",), ("--events", "--duplicates", "--kills", "--workers", "--seed", "--db", "--json")),
    ],
)
def test_help_names_every_option(command: tuple[str, ...], options: tuple[str, ...]) -> None:
    ended = semel(*command, "--help")
    assert ended.returncode == 0
    assert [option for option in options if option not in ended.stdout] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--events", "3"), "--events"),
        (("demo", "--duplicates", "-1"), "--duplicates"),
        (("demo", "--kills", "many"), "--kills"),
        (("demo", "--evnets", "100"), "--evnets"),
        (("demo", "--db", __file__), "--db"),
        (("bench", "--rounds", "0"), "--rounds"),
        (("bench", "--peers", "nowhere.py"), "nowhere.py"),
        ((*QUICK, "--keys", "100000001"), "--keys"),
        (("bnech",), "bnech"),
    ],
)
def test_a_bad_value_is_named_and_nothing_runs(arguments: tuple[str, ...], said: str) -> None:
    ended = semel(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_the_demo_adds_up() -> None:
    report: dict[str, Any] = {}
    events = 0
    for events in (300, 1_200, 5_000):  # on a fast or busy machine few events are over before the second kill
        report = document("demo", "--events", str(events), "--duplicates", "0.5", "--kills", "2")
        if report["kills"] == 2:
            break
    assert report["holds"] is True
    assert report["kills"] == 2, "inconclusive: a kill did not land"
    assert report["sent"] == report["distinct"] + report["redeliveries"] + report["producer_retries"] == 1.5 * events
    assert report["tickets"] == report["distinct"] == events
    assert report["doubled_tickets"] == report["lost_tickets"] == report["lost_calls"] == 0
    assert report["calls"] == report["distinct"] + report["repeated_calls"]
    assert report["duplicates_answered"] >= events / 2
    assert report["unexpected"] == {}


@pytest.mark.parametrize("fault", ["doubled_tickets", "lost_tickets", "lost_calls"])
def test_the_demo_fails_when_something_was_lost_or_doubled(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = dict.fromkeys([field.name for field in fields(demo.DemoReport)], 0) | {"seconds": 1, fault: 1}
    report = demo.DemoReport(**{**numbers, "unexpected": {}})  # type: ignore[arg-type]
    monkeypatch.setattr(demo, "run", lambda *_: report)
    ended = CliRunner().invoke(main.app, ["demo"])
    assert ended.exit_code == 1
    assert "1" in ended.output.splitlines()[-1]


def test_without_kills_nothing_is_repeated() -> None:
    report = document("demo", "--events", "100", "--kills", "0", "--workers", "1")
    assert (report["calls"], report["repeated_calls"], report["kills"]) == (100, 0, 0)


def test_the_demo_is_readable_without_a_terminal(tmp_path: Path) -> None:
    ended = semel("demo", "--events", "50", "--kills", "0", "--db", str(tmp_path / "kept.db"))
    assert ended.returncode == 0, ended.stderr
    assert lacks(ended.stdout, "50 events tickets once") == []
    assert not [char for char in ended.stdout + ended.stderr if char < " " and char != "\n"]
    assert (tmp_path / "kept.db").exists()


@pytest.mark.long
def test_the_bench_measures_every_scenario() -> None:
    report = document(*QUICK, "--keys", "2000", "--peers", str(PEERS))
    assert report["missing"] == {}
    assert [finding["scenario"] for finding in report["findings"]] == [line.scenario for line in COMPARISONS]
    assert {finding["scenario"] for finding in report["findings"]} == set(SCENARIOS)
    for finding in report["findings"]:
        assert len(finding["values"]) == 1
        assert (finding["ratio"] is not None) == bool(finding["against"])
        assert (finding["verdict"] in ("ok", "below")) == bool(finding["target"])


@pytest.mark.long
def test_the_bench_lists_scenarios_that_were_not_measured() -> None:
    ended = semel(*QUICK, "--keys", "0")
    assert ended.returncode == 0, ended.stderr
    assert lacks(ended.stdout, "--peers bench/peers.py --keys") == []


def test_the_same_seed_creates_the_same_storm() -> None:
    assert traffic.storm(200, 0.5, seed=7) == traffic.storm(200, 0.5, seed=7)
    assert traffic.storm(200, 0.5, seed=7) != traffic.storm(200, 0.5, seed=8)


def test_a_storm_has_both_kinds_of_copies_and_is_out_of_order() -> None:
    storm = traffic.storm(500, 0.4, seed=1)
    envelopes = [json.loads(body) for body in storm.deliveries]
    details = {json.dumps(envelope["detail"]) for envelope in envelopes}
    times = [envelope["detail"]["eventBody"]["eventTime"] for envelope in envelopes]
    assert len(storm.deliveries) == 700
    assert len(details) == storm.distinct == 500
    assert len({envelope["id"] for envelope in envelopes}) == 500 + storm.producer_retries
    assert len(set(storm.deliveries)) == 500 + storm.producer_retries
    assert storm.producer_retries > 0
    assert storm.redeliveries > 0
    assert times != sorted(times)


@pytest.mark.parametrize(("events", "duplicates"), [(0, 0.3), (10, -0.1), (10, 11.0)])
def test_an_impossible_storm_is_refused(events: int, duplicates: float) -> None:
    with pytest.raises(ValueError, match="events="):
        traffic.storm(events, duplicates)


def test_purge_forgets_what_is_over_and_says_how_much(tmp_path: Path) -> None:
    async def fill() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:
            app.on("**", name="h", retention=0.001)(lambda event, ctx: None)
            await app.process_many([{"id": str(number), "type": "x", "data": {}} for number in range(1_500)])

    asyncio.run(fill())
    assert document("purge", "--ledger", f"sqlite:///{tmp_path}/semel.db") == {"forgotten": 1_500}
    assert semel("purge", "--ledger", f"sqlite:///{tmp_path}/none.db").returncode == 2
    assert not (tmp_path / "none.db").exists()

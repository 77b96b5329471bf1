"""`semel doctor` as a command: its output and its exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from tests.settings.writing import ROUTE, write
from tests.wording import lacks
from typer.testing import CliRunner, Result

from semel.cli import doctor
from semel.cli.doctor import DoctorReport, Reach, diagnose, report, show, to_json
from semel.ports import Fact, Traits
from semel.settings.checks import Finding, RouteFacts
from semel.settings.schema import DestinationSettings, Settings
from semel.values.effect import guarantee
from semel.values.errors import ConfigError, LedgerUnavailable

FACTS = RouteFacts("a", "retry", timeout_s=20.0, lease_s=25.0, retention_s=38 * 86_400, window_s=900.0)
PROMISE = guarantee("a", ("**",), "retry", 900.0, "SQLite", "")


class Store:
    """A ledger with an inbox, as far as doctor looks at it."""

    traits = Traits("SQLite", durable=True, transactional=True)

    async def accept(self, arrivals: object) -> None: ...
    async def take(self, wanted: object, lease_ms: int) -> None: ...
    async def finish(self, endings: object) -> None: ...
    async def depths(self) -> None: ...
    async def history(self, key: str) -> None: ...


class Telling(Store):
    def __init__(self, *facts: Fact) -> None:
        self._facts = list(facts)

    async def diagnose(self) -> list[Fact]:
        return self._facts

    async def claim(self, claims: object) -> object:
        raise LedgerUnavailable("it cannot be measured")


class Broken(Store):
    async def diagnose(self) -> list[Fact]:
        raise LedgerUnavailable("semel.db belongs to another application")


def looked(store: Any, settings: Settings | None = None, reaches: Mapping[str, Reach] | None = None) -> DoctorReport:
    return asyncio.run(report(settings or Settings(), [FACTS], [PROMISE], store, reaches or {}))


def printed(found: DoctorReport) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        show(found, console)
    return captured.get()


# ------------------------------------------------------------------------------------------------------- its parts


def test_the_facts_of_the_store_become_findings_by_their_level() -> None:
    found = looked(
        Telling(
            Fact("journal", "wal"),
            Fact("free disk", "5 bytes", "warning"),
            Fact("writable", "read-only file", "error"),
        )
    )
    assert found.store[0] == Fact("journal", "wal")
    warning, error = [one for one in found.findings if one.check == "store"]
    assert (warning.level, error.level) == ("warning", "error")
    assert lacks(warning.what, "SQLite free disk 5 bytes") == []
    assert lacks(error.what, "SQLite writable read-only file") == []
    assert not found.ok


def test_the_facts_of_the_store_are_a_table_with_rounded_sizes() -> None:
    facts = [
        Fact("file", "/a/" + "b" * 120),
        Fact("free disk", "80,767,057,920 bytes"),
        Fact("unused", "4,096 bytes in the file"),
    ]
    found = looked(Telling(*facts, Fact("WAL", "1,234,567 bytes", "warning")))
    lines = [line.rstrip() for line in printed(found).splitlines()]
    assert "free disk  81 GB" in lines
    assert "unused     4.1 kB in the file" in lines
    assert "b" * 120 in "".join("".join(lines).split()), "a long one is folded, not cut"
    assert any(not lacks(one.what, "SQLite WAL 1.2 MB") for one in found.findings)
    assert json.loads(to_json(found))["store"]["free disk"] == "80,767,057,920 bytes", "programs get what was told"


def test_a_store_that_cannot_be_opened_is_an_error_not_a_crash() -> None:
    facts, (finding,) = asyncio.run(diagnose(Broken()))  # type: ignore[arg-type]
    assert facts == []
    assert finding.level == "error"
    assert "belongs to another application" in finding.what


def test_equal_facts_of_several_servers_are_merged() -> None:
    servers = ("10.0.0.1:7000", "10.0.0.2:7000", "[::1]:7000")
    facts = [Fact(f"persistence {server}", "none", "warning") for server in servers]
    facts += [
        Fact("clock 10.0.0.1:7000", "+0.001 s"),
        Fact("clock 10.0.0.2:7000", "+0.002 s"),
        Fact("cluster", "ok, 3 masters"),
    ]
    found = looked(Telling(*facts))
    (warning,) = [one for one in found.findings if one.level == "warning"]
    assert lacks(warning.what, "SQLite persistence 3 servers none") == []
    lines = [" ".join(line.split()) for line in printed(found).splitlines()]
    assert len([line for line in lines if not lacks(line, "persistence 3 warning: none")]) == 1
    assert "clock 10.0.0.2:7000 +0.002 s" in lines
    assert len(json.loads(to_json(found))["store"]) == 6, "programs get what was told"


def test_a_broken_store_has_no_ok_findings() -> None:
    def well(store: Store) -> set[str]:
        return {one.check for one in looked(store).findings if one.level == "ok"}

    of_store = {"inbox", "durability", "dead_letters"}
    assert well(Telling(Fact("journal", "wal"))) >= of_store
    assert well(Telling(Fact("readable", "connection refused", "error"))) & of_store == set()
    assert well(Broken()) & of_store == set()
    assert "timeout" in well(Broken()), "the settings could be looked at"


def test_a_store_without_a_diagnosis_is_ok() -> None:
    found = looked(Store())
    assert found.ok
    assert found.store == []


def test_every_destination_is_connected_to_and_a_failure_is_an_error() -> None:
    async def fine() -> str | None:
        return None

    async def refused() -> str | None:
        return "connection refused"

    async def raising() -> str | None:
        raise OSError("no route")

    crm = {"crm": DestinationSettings(url="https://crm.example/hook/k3y")}
    attempt_log = {"crm": refused, "http://a.example/k3y": fine, "http://b.example/k3y": raising}
    found = looked(Store(), Settings(destinations=crm), attempt_log)
    of_crm, of_a, of_b = [one for one in found.findings if one.check == "reach"]
    assert (of_crm.level, of_a.level, of_b.level) == ("error", "ok", "error")
    assert lacks(of_crm.what, "destination crm https://crm.example connection refused") == []
    assert "http://a.example" in of_a.what
    assert lacks(of_b.what, "http://b.example no route") == []
    assert "k3y" not in str(found.findings)


def test_a_silent_destination_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REACH_S", 0.01)

    async def endless() -> str | None:
        await asyncio.Event().wait()
        return None

    found = looked(Store(), None, {"http://a.example/": endless})
    (finding,) = [one for one in found.findings if one.check == "reach"]
    assert finding.level == "error"
    assert lacks(finding.what, "http://a.example 0.01 s") == []


def test_the_table_has_guarantees_on_one_line_and_changes() -> None:
    long = guarantee("a" * 120, ("**",), "keyed", 900.0, "SQLite", "")
    found = DoctorReport(
        [PROMISE, long], [Finding("error", "x [y] z", "do [that]"), Finding("ok", "fine")], [Fact("journal", "wal")]
    )
    lines = printed(found).splitlines()
    assert str(PROMISE) in lines
    assert str(long) in lines
    assert "error x [y] z" in " ".join(" ".join(lines).split())
    assert "→ do [that]" in " ".join(lines)
    assert "journal  wal" in [line.rstrip() for line in lines]
    assert lacks(lines[-1], "1 error 0 warnings semel run not") == []


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([], "errors 0 warnings"),
        ([Finding("warning", "x"), Finding("warning", "y")], "errors 2 warnings"),
        ([Finding("error", "x", check="reach")], "1 error 0 warnings semel run"),
    ],
)
def test_the_conclusion_counts_errors_and_warnings(findings: list[Finding], words: str) -> None:
    conclusion = printed(DoctorReport([], findings)).splitlines()[-1]
    assert lacks(conclusion, words) == []
    assert " not " not in conclusion, "`semel run` starts"


def test_the_json_document_has_the_same_content() -> None:
    found = DoctorReport([PROMISE], [Finding("warning", "x", "y", "drain")], [Fact("journal", "wal")])
    document = json.loads(to_json(found))
    assert document["ok"] is True
    assert document["guarantees"][0]["line"] == str(PROMISE)
    assert document["guarantees"][0]["handler"] == "a"
    assert document["findings"] == [{"level": "warning", "what": "x", "change": "y", "check": "drain"}]
    assert document["store"] == {"journal": "wal"}
    assert document["identities"] == []


def test_doctor_lists_which_events_are_recognised_again() -> None:
    found = looked(Store())
    document = json.loads(to_json(found))
    recognised = {row["shape"]: row["recognised"] for row in document["identities"]}
    assert (recognised["eventbridge"], recognised["cloudevents"]) == (False, True)
    lines = [" ".join(line.split()) for line in printed(found).splitlines()]
    for row in document["identities"]:
        assert any(line.startswith(f"{'yes' if row['recognised'] else 'no'} {row['events'][:20]}") for line in lines)


# ------------------------------------------------------------------------------------------------------ the command


def run(*arguments: str, **environ: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    return CliRunner().invoke(app, ["doctor", *arguments], env=environ)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the folder is put there
    return tmp_path


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_valid_settings_end_with_exit_code_0(folder: Path) -> None:
    write(folder, ROUTE)
    ended = run()
    assert ended.exit_code == 0, ended.output
    assert lacks(ended.output, "all: at least once [retry on SQLite] crash") == []
    assert lacks(ended.output.splitlines()[-1], "errors 0 warnings") == []


def test_an_error_ends_with_exit_code_1_and_a_change(folder: Path) -> None:
    write(folder, ROUTE + "timeout = 30\n")
    ended = run("--json")
    assert ended.exit_code == 1
    (wrong,) = [one for one in json.loads(ended.stdout)["findings"] if one["level"] == "error"]
    assert wrong["check"] == "timeout"
    assert lacks(wrong["change"], "timeout 25 s lease") == []


def test_unusable_settings_end_with_exit_code_2_also_in_json(folder: Path) -> None:
    write(folder, "[server]\nprot = 1\n")
    ended = run("--json")
    assert ended.exit_code == 2
    document = json.loads(ended.stdout)
    assert document["ok"] is False
    (problem,) = document["problems"]
    assert lacks(problem.pop("what"), '"prot" "port"') == []
    assert problem == {"file": "semel.toml", "line": 2, "where": "[server]"}


def test_doctor_connects_to_destinations(folder: Path, listening: int) -> None:
    forward = ROUTE.replace("console = true", 'forward = "here"')
    place = '[destinations.here]\nurl = "http://127.0.0.1:{}/x"\nallow = ["127.0.0.1"]\n'
    write(folder, forward + place.format(listening))
    ended = run("-c", "semel.toml", "--json")
    assert ended.exit_code == 0, ended.output
    (reached,) = [one for one in json.loads(ended.stdout)["findings"] if one["check"] == "reach"]
    assert reached["level"] == "ok"
    assert lacks(reached["what"], f"destination here http://127.0.0.1:{listening}") == []


def test_a_destination_that_may_not_be_called_is_an_error(folder: Path, listening: int) -> None:
    place = f'[destinations.here]\nurl = "http://127.0.0.1:{listening}/k3y"\n'
    write(folder, ROUTE.replace("console = true", 'forward = "here"') + place)
    ended = run("--json")
    assert ended.exit_code == 1
    (reached,) = [one for one in json.loads(ended.stdout)["findings"] if one["check"] == "reach"]
    assert reached["level"] == "error"
    assert "k3y" not in ended.output
    assert "k3y" not in run().output


def test_a_file_of_another_application_is_an_error(folder: Path) -> None:
    (folder / "semel.db").write_bytes(b"this is no database at all, but it is long enough to be looked at" * 100)
    write(folder, ROUTE)
    ended = run("--json")
    assert ended.exit_code == 1, ended.output
    findings = json.loads(ended.stdout)["findings"]
    assert {one["check"] for one in findings if one["level"] == "error"} == {"store"}


def test_the_handlers_of_a_python_app_are_checked(folder: Path) -> None:
    (folder / "doctored_app.py").write_text(
        "from semel import Semel\n"
        "app = Semel('sqlite:///own.db')\n"
        "@app.on('x', effect='transaction', lease=3)\n"
        "async def late(event, ctx): ...\n"
    )
    ended = run("doctored_app:app", "--json")
    assert ended.exit_code == 1, ended.output
    document = json.loads(ended.stdout)
    assert [one["handler"] for one in document["guarantees"]] == ["late"]
    (wrong,) = [one for one in document["findings"] if one["level"] == "error"]
    assert wrong["check"] == "timeout"
    assert ("late" in wrong["what"], "5 s" in wrong["what"], "3 s" in wrong["what"]) == (True, True, True)


def test_a_ledger_is_examined_without_settings(folder: Path) -> None:
    write(folder, "[server]\nprot = 1\n")
    missing = run("--ledger", "sqlite:///none.db")
    assert isinstance(missing.exception, ConfigError)
    assert "none.db" in str(missing.exception)
    assert not (folder / "none.db").exists()
    assert lacks(str(run("--ledger", "sqlite:///none.db", "-c", "semel.toml").exception), "--ledger") == []
    refused = run("--ledger", "sqlite:///none.db", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["ok"]) == (2, False)

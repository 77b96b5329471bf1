"""`semel doctor`, as it is called: what it prints, and how it ends."""

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
from typer.testing import CliRunner, Result

from semel.cli import doctor, doctor_view
from semel.cli.doctor_view import Reach, Report, as_json, diagnose, report, show
from semel.ports import Traits
from semel.settings.checking import Finding, RouteFacts
from semel.settings.schema import Destination, Settings
from semel.values.effect import guarantee
from semel.values.errors import LedgerUnavailable

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
    def __init__(self, *facts: tuple[str, str]) -> None:
        self._facts = list(facts)

    async def diagnose(self) -> list[tuple[str, str]]:
        return self._facts

    async def claim(self, claims: object) -> object:
        raise LedgerUnavailable("it cannot be measured")


class Broken(Store):
    async def diagnose(self) -> list[tuple[str, str]]:
        raise LedgerUnavailable("semel.db belongs to another application")


def looked(store: Any, settings: Settings | None = None, reaches: Mapping[str, Reach] | None = None) -> Report:
    return asyncio.run(report(settings or Settings(), [FACTS], [PROMISE], store, reaches or {}))


def printed(found: Report) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        show(found, console)
    return captured.get()


# ------------------------------------------------------------------------------------------------------- its parts


def test_the_facts_of_the_store_are_shown_and_its_own_judgement_counts() -> None:
    found = looked(
        Telling(("journal", "wal"), ("free disk", "warning: 5 bytes"), ("writable", "error: read-only file"))
    )
    assert found.store[0] == ("journal", "wal")
    assert [(one.level, one.what) for one in found.findings if one.check == "store"] == [
        ("warning", "SQLite, free disk: 5 bytes"),
        ("error", "SQLite, writable: read-only file"),
    ]
    assert not found.ok


def test_the_facts_of_the_store_are_a_table_with_sizes_for_people() -> None:
    facts = [("file", "/a/" + "b" * 120), ("free disk", "80,767,057,920 bytes"), ("unused", "4,096 bytes in the file")]
    found = looked(Telling(*facts, ("WAL", "warning: 1,234,567 bytes")))
    lines = [line.rstrip() for line in printed(found).splitlines()]
    assert "free disk  81 GB" in lines
    assert "unused     4.1 kB in the file" in lines
    assert "b" * 120 in "".join("".join(lines).split()), "a long one is folded, not cut"
    assert "SQLite, WAL: 1.2 MB" in [one.what for one in found.findings]
    assert json.loads(as_json(found))["store"]["free disk"] == "80,767,057,920 bytes", "programs get what was told"


def test_a_store_that_cannot_be_opened_is_an_error_not_a_crash() -> None:
    facts, (finding,) = asyncio.run(diagnose(Broken()))  # type: ignore[arg-type]
    assert facts == []
    assert finding.level == "error"
    assert "belongs to another application" in finding.what


def test_what_several_servers_say_in_the_same_words_is_said_once() -> None:
    servers = ("10.0.0.1:7000", "10.0.0.2:7000", "[::1]:7000")
    facts = [(f"persistence {server}", "warning: none") for server in servers]
    facts += [("clock 10.0.0.1:7000", "+0.001 s"), ("clock 10.0.0.2:7000", "+0.002 s"), ("cluster", "ok, 3 masters")]
    found = looked(Telling(*facts))
    assert [one.what for one in found.findings if one.level == "warning"] == ["SQLite, persistence of 3 servers: none"]
    lines = [" ".join(line.split()) for line in printed(found).splitlines()]
    assert lines.count("persistence of 3 servers warning: none") == 1
    assert "clock 10.0.0.2:7000 +0.002 s" in lines
    assert len(json.loads(as_json(found))["store"]) == 6, "programs get what was told"


def test_nothing_is_called_well_of_a_store_that_could_not_be_looked_at() -> None:
    def well(store: Store) -> set[str]:
        return {one.check for one in looked(store).findings if one.level == "ok"}

    of_store = {"inbox", "durability", "letters"}
    assert well(Telling(("journal", "wal"))) >= of_store
    assert well(Telling(("readable", "error: connection refused"))) & of_store == set()
    assert well(Broken()) & of_store == set()
    assert "timeout" in well(Broken()), "the settings could be looked at"


def test_a_store_without_a_diagnosis_is_let_be() -> None:
    found = looked(Store())
    assert found.ok
    assert found.store == []


def test_every_destination_is_tried_and_a_reason_is_an_error() -> None:
    async def fine() -> str | None:
        return None

    async def refused() -> str | None:
        return "connection refused"

    async def raising() -> str | None:
        raise OSError("no route")

    crm = {"crm": Destination(url="https://crm.example/hook/k3y")}
    tried = {"crm": refused, "http://a.example/k3y": fine, "http://b.example/k3y": raising}
    found = looked(Store(), Settings(destinations=crm), tried)
    reached = {one.what: one.level for one in found.findings if one.check == "reach"}
    assert reached == {
        "destination crm (https://crm.example) cannot be reached: connection refused": "error",
        "http://a.example can be reached": "ok",
        "http://b.example cannot be reached: no route": "error",
    }


def test_a_destination_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_view, "REACH_S", 0.01)

    async def endless() -> str | None:
        await asyncio.Event().wait()
        return None

    assert "no answer within 0.01 s" in str(looked(Store(), None, {"http://a.example/": endless}).findings)


def test_the_table_has_each_guarantee_on_one_line_and_what_to_change() -> None:
    long = guarantee("a" * 120, ("**",), "keyed", 900.0, "SQLite", "")
    found = Report(
        [PROMISE, long], [Finding("error", "x [y] z", "do [that]"), Finding("ok", "fine")], [("journal", "wal")]
    )
    lines = printed(found).splitlines()
    assert str(PROMISE) in lines
    assert str(long) in lines
    assert "error x [y] z" in " ".join(" ".join(lines).split())
    assert "→ do [that]" in " ".join(lines)
    assert "journal  wal" in [line.rstrip() for line in lines]
    assert lines[-1] == "1 error, 0 warnings: `semel run` does not start like this."


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([], "No errors, 0 warnings."),
        ([Finding("warning", "x"), Finding("warning", "y")], "No errors, 2 warnings."),
        ([Finding("error", "x", check="reach")], "1 error, 0 warnings; `semel run` starts all the same."),
    ],
)
def test_the_conclusion_counts(findings: list[Finding], said: str) -> None:
    assert printed(Report([], findings)).splitlines()[-1] == said


def test_the_machine_form_has_the_same() -> None:
    found = Report([PROMISE], [Finding("warning", "x", "y", "drain")], [("journal", "wal")])
    document = json.loads(as_json(found))
    assert document["ok"] is True
    assert document["guarantees"][0]["line"] == str(PROMISE)
    assert document["guarantees"][0]["handler"] == "a"
    assert document["findings"] == [{"level": "warning", "what": "x", "change": "y", "check": "drain"}]
    assert document["store"] == {"journal": "wal"}
    assert document["identities"] == []


def test_it_says_which_events_are_recognised_when_their_producer_sends_them_again() -> None:
    found = looked(Store())
    document = json.loads(as_json(found))
    recognised = {row["events"]: row["recognised"] for row in document["identities"]}
    assert recognised["any other EventBridge event"] is False
    assert recognised["CloudEvents 1.0"] is True
    lines = [" ".join(line.split()) for line in printed(found).splitlines()]
    assert "no any other EventBridge event known by EventBridge id" in lines


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


def test_settings_that_are_well_end_with_0(folder: Path) -> None:
    write(folder, ROUTE)
    ended = run()
    assert ended.exit_code == 0, ended.output
    assert "all: at least once [retry on SQLite]; crash: runs again" in ended.output
    assert "No errors, 0 warnings." in ended.output


def test_an_error_ends_with_1_and_says_what_to_change(folder: Path) -> None:
    write(folder, ROUTE + "timeout = 30\n")
    ended = run("--json")
    assert ended.exit_code == 1
    (wrong,) = [one for one in json.loads(ended.stdout)["findings"] if one["level"] == "error"]
    assert (wrong["check"], wrong["change"]) == ("timeout", "set timeout below 25 s, or a longer lease")


def test_settings_that_cannot_be_used_end_with_2_also_for_machines(folder: Path) -> None:
    write(folder, "[server]\nprot = 1\n")
    ended = run("--json")
    assert ended.exit_code == 2
    document = json.loads(ended.stdout)
    assert document["ok"] is False
    assert document["problems"] == [
        {"file": "semel.toml", "line": 2, "where": "[server]", "what": 'unknown key "prot"; did you mean "port"?'}
    ]


def test_it_connects_to_what_is_configured(folder: Path, listening: int) -> None:
    forward = ROUTE.replace("console = true", 'forward = "here"')
    place = '[destinations.here]\nurl = "http://127.0.0.1:{}/x"\nallow = ["127.0.0.1"]\n'
    write(folder, forward + place.format(listening))
    ended = run("-c", "semel.toml")
    assert ended.exit_code == 0, ended.output
    assert f"destination here (http://127.0.0.1:{listening}) can be reached" in " ".join(ended.output.split())


def test_a_destination_that_may_not_be_called_is_an_error(folder: Path, listening: int) -> None:
    place = f'[destinations.here]\nurl = "http://127.0.0.1:{listening}/k3y"\n'
    write(folder, ROUTE.replace("console = true", 'forward = "here"') + place)
    ended = run()
    assert ended.exit_code == 1
    assert "cannot be reached" in ended.output
    assert "k3y" not in ended.output


def test_a_ledger_that_belongs_to_others_is_an_error(folder: Path) -> None:
    (folder / "semel.db").write_bytes(b"this is no database at all, but it is long enough to be looked at" * 100)
    write(folder, ROUTE)
    ended = run()
    assert ended.exit_code == 1, ended.output
    assert "error" in ended.output


def test_the_handlers_of_an_app_in_python_are_looked_at_too(folder: Path) -> None:
    (folder / "doctored_app.py").write_text(
        "from semel import Semel\n"
        "app = Semel('sqlite:///own.db')\n"
        "@app.on('x', effect='transaction', lease=3)\n"
        "async def late(event, ctx): ...\n"
    )
    ended = run("doctored_app:app")
    assert ended.exit_code == 1, ended.output
    assert "late: exactly once" in ended.output
    assert "a run may take 5 s, and its lease is 3 s" in " ".join(ended.output.split())


def test_a_ledger_alone_is_looked_at_without_settings(folder: Path) -> None:
    write(folder, "[server]\nprot = 1\n")
    missing = run("--ledger", "sqlite:///none.db")
    assert "there is no file none.db; nothing was made" in str(missing.exception)
    assert "leave it out" in str(run("--ledger", "sqlite:///none.db", "-c", "semel.toml").exception)
    refused = run("--ledger", "sqlite:///none.db", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["ok"]) == (2, False)

"""Commands that read create nothing and change nothing: no file, no schema, no byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import semel
from tests.cli.ledgers import fill, url_of
from tests.ledgers.later_schema import add_later_step, write_unreleased
from tests.wording import lacks

from semel.ledgers.sqlite import database

READING = (
    ("status",),
    ("events", "list"),
    ("dead", "list"),
    ("notify", "list"),
    ("notify", "status", "--to", "+491701234567", "--kind", "shipping"),
    ("doctor",),
)
names = [" ".join(command[:2]) for command in READING]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("command", READING, ids=names)
def test_a_ledger_stays_byte_for_byte_as_it_was(command: tuple[str, ...], tmp_path: Path) -> None:
    url = fill(tmp_path)
    before = content(tmp_path)
    assert semel(*command, "--ledger", url).code in (0, 1)
    assert content(tmp_path) == before


@pytest.mark.parametrize("command", READING, ids=names)
def test_a_log_that_a_killed_process_left_stays_as_it_was(command: tuple[str, ...], tmp_path: Path) -> None:
    """The last connection to close would move the log into the file."""
    script = f"""
import asyncio, os
from semel import Semel
async def main():
    app = Semel("{url_of(tmp_path)}")
    @app.on("**")
    async def handle(event, ctx): ...
    await app.process({{"id": "1", "type": "x", "data": {{}}}})
    os._exit(9)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 9
    before = {name: data for name, data in content(tmp_path).items() if not name.endswith("-shm")}
    assert before["semel.db-wal"], "inconclusive: there is no log"
    assert semel(*command, "--ledger", url_of(tmp_path)).code in (0, 1)
    after = {name: data for name, data in content(tmp_path).items() if not name.endswith("-shm")}
    assert after == before


@pytest.mark.parametrize("command", READING, ids=names)
def test_an_older_schema_is_read_and_not_migrated(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path)
    add_later_step(tmp_path, monkeypatch)
    before = content(tmp_path)
    assert semel(*command, "--ledger", url).code in (0, 1)
    assert content(tmp_path) == before


@pytest.mark.parametrize("command", READING, ids=names)
@pytest.mark.parametrize("version", range(1, database.FIRST_VERSION))
def test_a_file_of_an_unreleased_version_is_refused_and_stays_as_it_was(
    command: tuple[str, ...], version: int, tmp_path: Path
) -> None:
    write_unreleased(str(tmp_path / "semel.db"), version)
    before = content(tmp_path)
    ended = semel(*command, "--ledger", url_of(tmp_path))
    assert ended.code in (1, 2)
    assert lacks(" ".join((ended.out + ended.err).split()), f"version {version} unreleased another file") == []
    assert content(tmp_path) == before


def test_migrate_migrates_an_older_file_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(tmp_path)
    add_later_step(tmp_path, monkeypatch)
    before = content(tmp_path)
    (planned,) = semel("migrate", "--ledger", url, "--dry-run", "--json").json["stores"]
    assert (planned["done"], len(planned["pending"])) == ([], 1)
    assert content(tmp_path) == before, "the dry run changed nothing"
    (done,) = semel("migrate", "--ledger", url, "--json").json["stores"]
    assert (done["done"], done["pending"]) == (planned["pending"], [])
    assert semel("status", "--ledger", url).code == 0
    (again,) = semel("migrate", "--ledger", url, "--json").json["stores"]
    assert (again["done"], again["pending"]) == ([], [])


@pytest.mark.parametrize("dead_letters", ["", 'dead_letters = "sqlite:///letters.db"\n'])
def test_doctor_in_an_empty_folder_creates_no_ledger(
    dead_letters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = "redis://127.0.0.1:1" if dead_letters else "sqlite:///semel.db"
    (tmp_path / "semel.toml").write_text(f'ledger = "{ledger}"\n{dead_letters}[[endpoints]]\nmode = "inline"\n')
    ended = semel("doctor", "--json")
    assert ended.code == (1 if dead_letters else 0), ended.out
    assert sorted(content(tmp_path)) == ["semel.toml"]


def test_doctor_without_any_settings_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    semel("doctor")
    assert content(tmp_path) == {}


def test_doctor_reports_that_the_ledger_does_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = semel("doctor", "--json").json
    (finding,) = [finding for finding in report["findings"] if finding["check"] == "store"]
    assert lacks(finding["what"], "SQLite not created") == []

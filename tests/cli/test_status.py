"""`semel status` and how the operator's commands find their ledger."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.cli.command import ROOT, semel, started
from tests.cli.ledgers import an_app, fill, message, url_of
from tests.outbox.test_provider_pauses import WRONG, Scripted, note
from tests.wording import lacks

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.values.delivery_state import Accepted
from semel.values.secret import Secret


def test_status_shows_counts_and_what_needs_attention(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2, uncertain=1, done=3)
    ended = semel("status", "--ledger", url)
    assert ended.code == 0
    for text in ("2 dead", "semel dead list", "1 uncertain", "semel dead list --state uncertain"):
        assert text in ended.out
    found = semel("status", "--ledger", url, "--json").json
    expected = {"accepted": 0, "leased": 0, "waiting": 0, "done": 3, "dead": 2, "uncertain": 1}
    assert found["states"] == expected
    assert found["inbox"] == []
    dead, uncertain = found["hints"]
    assert "semel dead list" in dead
    assert "semel dead list --state uncertain" in uncertain
    assert ("2" in dead, "1" in uncertain) == (True, True)


def test_status_shows_the_inbox_by_lane(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2, uncertain=0)
    assert semel("dead", "replay", "--all", "--yes", "--reason", "fixed", "--ledger", url).code == 0
    (lane,) = semel("status", "--ledger", url, "--json").json["inbox"]
    assert (lane["lane"], lane["waiting"], lane["taken"]) == ("to-crm", 2, 0)
    assert 0 <= lane["oldest_age_s"] < 3_600
    people = semel("status", "--ledger", url).out
    assert "to-crm" in people
    assert "second" in people
    assert "semel dead list" not in people
    assert semel("status", "--ledger", url, "--json").json["hints"] == []


def test_status_of_an_empty_ledger(tmp_path: Path) -> None:
    fill(tmp_path, 0, 0, 0)

    async def open_it() -> None:
        async with an_app(tmp_path) as app:
            await app.process(message("nobody", "x"))
            await app.entries()

    asyncio.run(open_it())
    ended = semel("status", "--ledger", url_of(tmp_path))
    assert ended.code == 0
    assert set(semel("status", "--ledger", url_of(tmp_path), "--json").json["states"].values()) == {0}
    for text in (ended.out, *(semel(what, "list", "--ledger", url_of(tmp_path)).out for what in ("events", "dead"))):
        assert text.strip(), "it is said in words"
        assert "│" not in text, "and not by an empty table"


def test_the_settings_name_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(tmp_path)
    settings = tmp_path / "semel.toml"
    settings.write_text(f'ledger = "{url}"\n')
    for arguments in (("-c", str(settings)), ("--config", str(settings)), ("--ledger", url)):
        assert semel("status", *arguments, "--json").json["states"]["dead"] == 3
    monkeypatch.chdir(tmp_path)
    assert semel("status", "--json").json["states"]["dead"] == 3
    assert semel("status", "--json", env={"SEMEL_LEDGER": "sqlite:///other.db"}).code == 2


def test_settings_that_cannot_be_read_point_to_the_ledger_itself(tmp_path: Path) -> None:
    settings = tmp_path / "semel.toml"
    settings.write_text("ledgre = 1\n")
    ended = semel("status", "-c", str(settings))
    assert ended.code == 2
    assert "semel.toml:1" in ended.err
    assert "--ledger sqlite:///semel.db" in ended.err


COMMANDS = (
    ("status",),
    ("events", "list"),
    ("events", "show", "abcd"),
    ("dead", "list"),
    ("dead", "show", "abcd"),
    ("dead", "replay", "--all", "--dry-run"),
    ("dead", "discard", "--all", "--reason", "x", "--yes"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_ledger_is_never_created_by_reading(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = semel(*command, "--ledger", f"sqlite:///{tmp_path}/nowhere.db")
    assert ended.code == 2
    assert "nowhere.db" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_ledger_is_not_changed(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "foreign.db"))) as foreign:
        foreign.execute("create table theirs (x)")
    with closing(apsw.Connection(str(tmp_path / "in-use.db"))) as in_use:
        in_use.execute("pragma journal_mode=wal")
        in_use.execute("create table theirs (x)")
        (tmp_path / "empty.db").touch()
        (tmp_path / "notes.db").write_text("remember the milk")
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert before["in-use.db-wal"], "what it is made of is in its log"
        for name in ("foreign.db", "in-use.db", "empty.db", "notes.db"):
            ended = semel("status", "--ledger", f"sqlite:///{tmp_path}/{name}")
            assert ended.code == 2
            assert lacks(ended.err, f"{name} no ledger") == []
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("log", [b"", b"x" * 31, b"\x37\x7f\x06\x82" + b"\0" * 28, b"\x37\x7f\x06\x82" + b"\xff" * 99])
def test_a_broken_log_beside_an_empty_file_is_no_ledger(log: bytes, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "empty.db-wal").write_bytes(log)
    ended = semel("status", "--ledger", f"sqlite:///{tmp_path}/empty.db")
    assert (ended.code, lacks(ended.err, "empty.db no ledger")) == (2, [])


def test_a_ledger_in_use_can_be_read(tmp_path: Path) -> None:
    """A young ledger that is open elsewhere has everything in its write-ahead log."""

    async def look_while_open() -> None:
        async with an_app(tmp_path) as app:
            await app.process(message("fine", "one"))
            header = (tmp_path / "semel.db").read_bytes()[:100]
            assert b"SEML" not in header, "inconclusive: the log was written back"
            ended = await asyncio.to_thread(semel, "status", "--ledger", url_of(tmp_path), "--json")
            assert ended.json["states"]["done"] == 1

    asyncio.run(look_while_open())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ledger", "memory://"), "memory process"),
        (("--ledger", "mysql://x"), "sqlite:/// postgresql://"),
        (("--ledger", "sqlite:///a.db", "-c", "semel.toml"), "--ledger -c"),
        (("-c", "no/such/semel.toml"), "no/such/semel.toml"),
        (("--ledger", f"sqlite:///{ROOT}"), str(ROOT)),
    ],
)
def test_a_memory_ledger_cannot_be_read_by_another_process(arguments: tuple[str, ...], words: str) -> None:
    ended = semel("status", *arguments)
    assert ended.code == 2
    assert lacks(ended.err, words) == []


def test_a_password_is_not_shown() -> None:
    from semel.cli.ledger_place import Place

    where = Place(Secret("redis://anna:secret@db.example/0"), Secret("postgresql://bert:secret@db.example/semel"))
    assert lacks(str(where), "redis://anna:…@db.example/0 postgresql://bert:…@db.example/semel") == []
    assert "secret" not in str(where) + repr(where)
    assert str(Place(Secret("sqlite:///a:b@c.db"))) == "sqlite:///a:b@c.db"


def test_the_commands_work_in_a_separate_process(tmp_path: Path) -> None:
    url = fill(tmp_path)
    process = started("status", "--ledger", url, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert lacks(out, "3 dead semel list") == []
    assert not [char for char in out if char < " " and char != "\n"]


def test_a_paused_provider_is_reported_without_the_customer(tmp_path: Path) -> None:
    async def pause() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        try:
            await ledger.outbox.add([note("a")])
            await Relay(ledger.outbox, {"mail": Scripted("mail", WRONG)}, {"sms": ["mail"]}).run_once()
        finally:
            await ledger.close()

    asyncio.run(pause())
    found = semel("status", "--ledger", url_of(tmp_path), "--json").json
    ((provider, reason),) = [(one["provider"], one["reason"]) for one in found["paused_providers"]]
    assert (provider, reason.partition(" ")[0]) == ("mail", "535")
    assert note("a").recipient not in reason
    assert any("mail" in hint for hint in found["hints"])
    assert "mail" in semel("status", "--ledger", url_of(tmp_path)).out


def test_a_provider_that_accepts_is_not_reported_as_paused(tmp_path: Path) -> None:
    async def send() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        try:
            await ledger.outbox.add([note("a")])
            await Relay(ledger.outbox, {"mail": Scripted("mail", Accepted("r"))}, {"sms": ["mail"]}).run_once()
        finally:
            await ledger.close()

    asyncio.run(send())
    assert semel("status", "--ledger", url_of(tmp_path), "--json").json["paused_providers"] == []

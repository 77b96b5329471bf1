"""What an operator does, on every kind of store: make it ready, look, decide, forget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.stores.commands import migrated, semel, settings
from tests.support.servers.process import free_port

from semel import Context, Event, Reject, Semel

REASON = ("--reason", "fixed", "--by", "anna", "--yes")
ROUTE = 'endpoints = []\n[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'


def an_app(url: str, dead_letters: str = "") -> Semel:
    """One handler refuses, one leaves in doubt, one succeeds."""
    app = Semel(url, dead_letters=dead_letters, origin="test")

    @app.on("crm.*", name="to-crm")
    async def refuse(event: Event, ctx: Context) -> None:
        raise Reject("unknown customer")

    @app.on("mail.*", name="to-mail", effect="park")
    async def doubt(event: Event, ctx: Context) -> None:
        raise ConnectionResetError("the connection broke after the first byte")

    @app.on("fine.*", name="fine")
    async def succeed(event: Event, ctx: Context) -> dict[str, int]:
        return {"ticket": 7}

    return app


def message(kind: str, name: str) -> dict[str, Any]:
    return {"id": name, "type": f"{kind}.created", "createdTime": 1_678_886_400_000, "data": {}}


def process(app: Semel, *messages: dict[str, Any]) -> list[str]:
    async def run() -> list[str]:
        async with app:
            return [(await app.process(one)).status for one in messages]

    return asyncio.run(run())


def fill(url: str, dead_letters: str = "") -> None:
    kinds = ["crm", "crm", "mail", "fine", "fine", "fine"]
    statuses = process(an_app(url, dead_letters), *[message(kind, f"{kind}-{at}") for at, kind in enumerate(kinds)])
    assert statuses == ["dead", "dead", "uncertain", "done", "done", "done"]


def states(*arguments: str) -> dict[str, int]:
    found: dict[str, int] = semel("status", "--json", *arguments).json["states"]
    return {state: count for state, count in found.items() if count}


def keys(state: str, *arguments: str) -> list[str]:
    return [entry["key"] for entry in semel("events", "list", "--state", state, "--json", *arguments).json]


# ------------------------------------------------------------------------------------------------- making it ready


def test_migrate_tells_does_and_has_nothing_left_to_do(store: str) -> None:
    option = ("--ledger", store)
    foreseen = semel("migrate", "--dry-run", "--json", *option)
    (before,) = foreseen.json["stores"]
    assert foreseen.code == (1 if before["pending"] else 0)
    assert before["done"] == []
    assert before["migrates"] == store.startswith(("postgresql", "dynamodb"))
    assert bool(before["pending"]) == before["migrates"], "an empty store of that kind is not ready"
    told = semel("migrate", *option)
    assert told.code == 0
    assert all(step in told.out for step in before["pending"])
    assert "ready" in told.out if before["migrates"] else "migration" in told.out
    (after,) = semel("migrate", "--json", *option).json["stores"]
    assert (after["pending"], after["done"]) == ([], [])
    assert semel("migrate", "--dry-run", *option).code == 0


@pytest.mark.parametrize("store", ["postgres", "dynamodb"], indirect=True)
def test_a_store_that_is_not_ready_says_semel_migrate(store: str, tmp_path: Path) -> None:
    for command in (("status",), ("events", "list"), ("dead", "list"), ("purge",)):
        ended = semel(*command, "--ledger", store)
        assert ended.code == 2
        assert "semel migrate" in ended.err
    path = settings(tmp_path, store, ROUTE)
    report = semel("doctor", "-c", str(path), "--json")
    assert report.code == 1
    (unready,) = [one for one in report.json["findings"] if one["check"] == "migrations"]
    assert (unready["level"], "semel migrate" in unready["change"]) == ("error", True)
    run = semel("run", "-c", str(path), "--port", "0", "--workers", "2")
    assert run.code == 2
    assert "semel migrate" in run.err
    assert semel("migrate", "-c", str(path)).code == 0
    assert [one for one in semel("doctor", "-c", str(path), "--json").json["findings"] if one["level"] == "error"] == []


# --------------------------------------------------------------------------------------------- looking and deciding


def test_every_store_is_looked_into_and_decided_about(store: str) -> None:
    fill(migrated(store))
    option = ("--ledger", store)
    assert states(*option) == {"dead": 2, "uncertain": 1, "done": 3}
    assert len(semel("events", "list", "--json", *option).json) == 6
    assert [e["reason"] for e in semel("dead", "list", "--handler", "to-crm", "--json", *option).json] == [
        "unknown customer"
    ] * 2
    key, other = keys("dead", *option)
    shown = semel("dead", "show", key[:10], "--json", *option).json
    assert (shown["state"], shown["event"]["type"]) == ("dead", "crm.created")
    assert semel("events", "show", keys("done", *option)[0], "--json", *option).json["result"] == {"ticket": 7}

    has_inbox = semel("status", "--json", *option).json["inbox"] is not None
    assert has_inbox == store.startswith(("sqlite", "postgresql"))
    replayed = semel("dead", "replay", key, "--json", *REASON, *option)
    assert replayed.code == 0
    assert [event["goes_to"] for event in replayed.json["events"]] == ["inbox" if has_inbox else "next delivery"]
    assert semel("dead", "discard", other, *REASON, *option).code == 0
    assert states(*option) == {"uncertain": 1, "done": 3, **({"accepted": 1} if has_inbox else {})}
    shown = semel("events", "show", key, *option).out
    assert ("replayed" in shown, "anna" in shown) == (True, True)
    assert semel("purge", *option).code == 0


def test_a_replay_is_granted_to_whoever_brings_the_event_again(store: str) -> None:
    fill(migrated(store))
    option = ("--ledger", store)
    key = keys("dead", *option)[0]
    name = semel("events", "show", key, "--json", *option).json["event"]["id"]
    assert semel("dead", "replay", key, *REASON, *option).code == 0
    assert process(an_app(store), message("crm", name)) == ["dead"]
    history = semel("events", "show", key, "--json", *option).json["history"]
    assert ("dead", 2) in [(entry["state"], entry["generation"]) for entry in history]


def test_whoever_looks_for_letters_in_the_wrong_folder_is_told_so(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's path is relative: elsewhere there is none, and "all is well" would be wrong."""
    path = str(settings(tmp_path, redis_url, 'dead_letters = "sqlite:///letters.db"\n' + ROUTE))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert semel("dead", "list", "-c", path).code == 0, "nothing was given up on yet"
    monkeypatch.chdir(tmp_path)
    fill(redis_url, "sqlite:///letters.db")
    assert len(keys("dead", "-c", path)) == 2
    monkeypatch.chdir(elsewhere)
    for command in (("dead", "list"), ("status",), ("dead", "replay", "--all", *REASON)):
        ended = semel(*command, "-c", path)
        assert ended.code == 2
        assert str(elsewhere / "letters.db") in ended.err
    assert not list(elsewhere.iterdir()), "looking makes nothing"


def test_doctor_tells_what_every_store_says_of_itself(store: str, tmp_path: Path) -> None:
    path = settings(tmp_path, migrated(store), ROUTE)
    report = semel("doctor", "-c", str(path), "--json")
    assert report.code == 0
    document = report.json
    assert document["store"]
    dead_letters = [one for one in document["findings"] if one["check"] == "dead_letters"]
    keeps = store.startswith(("sqlite", "postgresql"))
    assert [one["level"] for one in dead_letters] == ["ok" if keeps else "warning"]
    (promise,) = document["guarantees"]
    assert "at least once" in promise["line"]


def test_an_inbox_on_a_store_without_one_is_refused_by_doctor_and_run(store: str, tmp_path: Path) -> None:
    path = settings(tmp_path, migrated(store), ROUTE.replace("endpoints = []", "[[endpoints]]"))
    report = semel("doctor", "-c", str(path), "--json")
    if store.startswith(("sqlite", "postgresql")):
        assert report.code == 0
        return
    (refused,) = [one for one in report.json["findings"] if one["level"] == "error"]
    assert refused["check"] == "inbox"
    run = semel("run", "-c", str(path), "--port", "0")
    assert run.code == 2
    assert "/events" in run.err
    assert 'mode = "inline"' in run.err


# ---------------------------------------------------------------------------------------------------- out of reach


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://semel:test-password@127.0.0.1:{port}/semel?connect_timeout=1",
        "redis://semel:s3cret-of-redis@127.0.0.1:{port}/0?timeout=1",
        "redis+cluster://semel:s3cret-of-redis@127.0.0.1:{port}?timeout=1",
        "redis+sentinel://127.0.0.1:{port}/service?timeout=1&sentinel_password=s3cret-of-redis",
        "dynamodb://semel?region=eu-central-1&endpoint=http://127.0.0.1:{port}",
    ],
    ids=lambda url: url.partition("://")[0],
)
def test_a_store_out_of_reach_is_named_and_its_password_is_not(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr("semel.ledgers.dynamodb.client.DEADLINE_S", 1.0)  # its URL has no timeout
    port = free_port()
    url = url.format(port=port)
    for command in (("status",), ("migrate",), ("dead", "replay", "--all", *REASON)):
        if command == ("migrate",) and url.startswith("redis"):
            continue  # it needs none, and is not asked
        ended = semel(*command, "--ledger", url)
        assert ended.code == 2
        assert str(port) in ended.err
    path = settings(tmp_path, url, ROUTE)
    report = semel("doctor", "-c", str(path), "--json")
    assert report.code == 1
    assert [one["check"] for one in report.json["findings"] if one["level"] == "error"] == ["store"]
    assert semel("run", "-c", str(path), "--port", "0").code == 2

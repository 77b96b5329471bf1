"""`semel dead replay` of what has succeeded: refused, unless it is named and forced; and where a replay goes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.cli.command import semel
from tests.cli.ledgers import an_app, fill, message
from tests.cli.test_dead import REASON, decide, keys, keys_done, states
from tests.wording import lacks


def test_an_event_that_succeeded_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1, done=1)
    (done,), (dead,) = keys_done(url), keys(url)
    for options in ((), ("--dry-run",), ("--yes",)):
        ended = semel("dead", "replay", done[:12], *options, *REASON, "--ledger", url)
        assert ended.code == 1
        assert lacks(ended.out, f"{done} succeeded --force twice") == []
    ended = semel("dead", "replay", done, dead, "--yes", *REASON, "--ledger", url, "--json")
    assert ended.code == 1, "the others are replayed, and it is still no success"
    assert (ended.json["replayed"], ended.json["refused"], ended.json["not_tried"]) == (1, 1, 0)
    assert [event["outcome"] for event in ended.json["events"]] == ["refused: done", "replayed"]
    assert keys_done(url) == [done]


def test_an_event_that_succeeded_after_a_replay_is_refused_too(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1)
    (key,) = keys(url)
    decide(url, "replay", key, *REASON)

    async def take_it() -> None:
        async with an_app(tmp_path, verdict={"ticket": 8}) as app, app.handling():
            deadline = time.monotonic() + 60
            while not [entry for entry in await app.entries("done") if entry.key == key]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(take_it())
    ended = semel("dead", "replay", key, *REASON, "--ledger", url)
    assert ended.code == 1
    assert lacks(ended.out, f"{key} succeeded --force") == []


def test_after_force_the_next_delivery_runs_once_more(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=0, done=1)
    (done,) = keys_done(url)
    asked = semel("dead", "replay", done, "--force", *REASON, "--by", "anna", "--ledger", url)
    assert asked.code == 2, "an effect that is known to happen twice is asked about"
    assert lacks(asked.err, "1 done twice --yes") == []
    shown = semel("dead", "replay", done, "--force", "--dry-run", "--ledger", url)
    assert (shown.code, keys_done(url)) == (0, [done])
    assert shown.out.splitlines()[-1].startswith("1 ")
    ended = semel("dead", "replay", done, "--force", "--yes", *REASON, "--by", "anna", "--ledger", url)
    assert ended.code == 0
    assert lacks(ended.out, "next delivery") == []

    async def send_copies() -> list[str]:
        async with an_app(tmp_path) as app:
            return [(await app.process(message("fine", "fine-0", customer="\u202ec0"))).status for _ in range(2)]

    assert asyncio.run(send_copies()) == ["done", "duplicate"]
    told = semel("events", "show", done, "--ledger", url).out
    assert lacks(told, "replayed done anna") == []
    assert "the CRM is fixed" in told


def test_force_also_replays_dead_events(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1, done=1)
    (done,), (dead,) = keys_done(url), keys(url)
    report = decide(url, "replay", dead, done, "--force", "--yes", *REASON)
    assert (report["replayed"], report["refused"]) == (2, 0)
    assert {event["key"]: event["goes_to"] for event in report["events"]} == {dead: "inbox", done: "next delivery"}
    ended = semel("dead", "replay", dead, done, "--force", "--yes", *REASON, "--ledger", url)
    assert ended.code == 0
    assert states(url)["accepted"] == 1, "what waits in the inbox is not put there twice"


@pytest.mark.parametrize("filters", [("--all",), ("--handler", "fine"), ("--since", "1d"), ()], ids=" ".join)
def test_force_is_refused_with_a_filter(filters: tuple[str, ...], tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2)
    ended = semel("dead", "replay", *filters, "--force", "--yes", *REASON, "--ledger", url)
    assert ended.code == 2
    assert lacks(ended.err, "--force keys") == []
    assert states(url)["dead"] == 2


def test_force_needs_a_reason(tmp_path: Path) -> None:
    url = fill(tmp_path, done=1)
    ended = semel("dead", "replay", *keys_done(url), "--force", "--yes", "--ledger", url)
    assert ended.code == 2
    assert "--reason" in ended.err


def test_discard_has_no_force_option(tmp_path: Path) -> None:
    ended = semel("dead", "discard", "--all", "--force", "--ledger", fill(tmp_path))
    assert ended.code == 2
    assert "--force" in ended.err

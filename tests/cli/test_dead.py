"""`semel dead replay|discard`: what is chosen, who is asked, what is told, and that others may decide too."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from rich.console import Console
from tests.cli.command import semel, started
from tests.cli.ledgers import an_app, fill, message, url_of
from tests.wording import lacks

from semel.cli import bulk_decision, dead_decisions, find, ledger_place
from semel.cli.find import Filters, every_entry
from semel.cli.ledger_place import Place, opened
from semel.values.secret import Secret
from semel.wiring import open_ledger

REASON = ("--reason", "the CRM is fixed")


def states(url: str) -> dict[str, int]:
    found: dict[str, int] = semel("status", "--ledger", url, "--json").json["states"]
    return found


def keys(url: str, state: str = "dead") -> list[str]:
    return [entry["key"] for entry in semel("dead", "list", "--state", state, "--ledger", url, "--json").json]


def keys_done(url: str) -> list[str]:
    return [entry["key"] for entry in semel("events", "list", "--state", "done", "--ledger", url, "--json").json]


def decide(url: str, *arguments: str) -> dict[str, Any]:
    ended = semel("dead", *arguments, "--ledger", url, "--json")
    assert ended.code == 0, ended.err
    report: dict[str, Any] = ended.json
    return report


def test_a_single_key_is_replayed_without_confirmation(tmp_path: Path) -> None:
    url = fill(tmp_path)
    first, *others = keys(url)
    ended = semel("dead", "replay", first[:12], *REASON, "--by", "anna", "--ledger", url)
    assert ended.code == 0
    assert lacks(ended.out, "inbox semel run") == []
    assert keys(url) == others
    assert states(url)["accepted"] == 1
    shown = semel("events", "show", first, "--ledger", url)
    assert lacks(shown.out, "replayed anna") == []
    assert "the CRM is fixed" in shown.out
    history = semel("events", "show", first, "--ledger", url, "--json").json["history"]
    assert [(entry["generation"], entry["state"]) for entry in history] == [(2, "accepted"), (1, "replayed")]


def test_a_replay_is_a_new_generation_and_no_duplicate_of_itself(tmp_path: Path) -> None:
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
    assert semel("events", "show", key, "--ledger", url, "--json").json["result"] == {"ticket": 8}


def test_all_selects_dead_events_and_never_uncertain_ones(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=3, uncertain=2)
    report = decide(url, "replay", "--all", "--yes", *REASON)
    assert (report["chosen"], report["replayed"], report["already_decided"], report["failed"]) == (3, 3, 0, 0)
    assert {event["outcome"] for event in report["events"]} == {"replayed"}
    assert len(keys(url, "uncertain")) == 2


def test_uncertain_events_are_replayed_when_selected_with_a_warning(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=0, uncertain=3)
    first = keys(url, "uncertain")[0]
    named = semel("dead", "replay", first, "--yes", *REASON, "--ledger", url)
    rest = semel("dead", "replay", "--state", "uncertain", "--yes", *REASON, "--ledger", url)
    for ended, count in ((named, 1), (rest, 2)):
        assert ended.code == 0
        assert f"{count} uncertain" in ended.err
    assert keys(url, "uncertain") == []
    assert states(url)["accepted"] == 3


@pytest.mark.parametrize("named", [True, False])
def test_an_uncertain_event_is_never_replayed_without_confirmation(named: bool, tmp_path: Path) -> None:
    url = fill(tmp_path, dead=0, uncertain=1)
    which = keys(url, "uncertain") if named else ["--state", "uncertain"]
    ended = semel("dead", "replay", *which, *REASON, "--ledger", url)
    assert ended.code == 2
    assert lacks(ended.err, "1 event --yes") == []
    assert states(url)["uncertain"] == 1
    assert decide(url, "discard", *keys(url, "uncertain"), *REASON)["discarded"] == 1, "which repeats nothing"


def test_a_filter_needs_confirmation_even_for_one_event(tmp_path: Path) -> None:
    """Else a script would pass or not by how many there happen to be."""
    url = fill(tmp_path, dead=1)
    assert semel("dead", "replay", "--all", *REASON, "--ledger", url).code == 2
    assert states(url)["dead"] == 1


def test_a_key_that_is_not_dead_is_reported_and_left_alone(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2, done=1)
    first, second = keys(url)
    (done,) = keys_done(url)
    decide(url, "replay", first, *REASON)
    for options in ((), ("--dry-run",)):
        ended = semel("dead", "discard", done[:12], *options, *REASON, "--ledger", url)
        assert ended.code == 0
        (line,) = [line for line in ended.out.splitlines() if line.startswith(done)]
        assert lacks(line, "done dead") == []
        assert "already" not in line
    report = decide(url, "discard", done, second, first, "--yes", *REASON)
    assert (report["discarded"], report["not_dead"], report["already_decided"], report["not_tried"]) == (1, 1, 1, 0)
    assert [event["outcome"] for event in report["events"]] == ["not dead", "discarded", "already decided"]
    assert keys_done(url) == [done]


def test_a_discarded_event_is_found_by_the_whole_key_in_the_output(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1)
    (key,) = keys(url)
    ended = semel("dead", "discard", key[:8], *REASON, "--ledger", url)
    assert any(line.startswith(key) and "discarded" in line for line in ended.out.splitlines())
    (row,) = [line for line in ended.out.splitlines() if "failed" in line]
    assert row.count("│") == 3, "a name and a number: no column for notes that nobody has"
    for command in (("events", "show"), ("dead", "show"), ("dead", "replay", *REASON)):
        unknown = semel(*command, key[:8], "--ledger", url)
        assert unknown.code == 2
        assert lacks(unknown.err, f"{key[:8]} discarded whole key") == []
    assert semel("events", "show", key, "--ledger", url).code == 0


def test_a_replayed_event_is_found_by_the_beginning_of_its_key(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1)
    (key,) = keys(url)
    decide(url, "replay", key, *REASON)
    assert semel("events", "show", key[:8], "--ledger", url, "--json").json["state"] == "accepted"
    again = semel("dead", "replay", key[:8], *REASON, "--ledger", url)
    assert any(line.startswith(key) and "already" in line for line in again.out.splitlines())


def test_filters_select_events(tmp_path: Path) -> None:
    fill(tmp_path, dead=2)
    url = fill(tmp_path, dead=3, tenant="acme")
    assert decide(url, "discard", "--tenant", "acme", "--dry-run")["chosen"] == 3
    assert decide(url, "discard", "--matching", "C1", "--dry-run")["chosen"] == 2
    assert decide(url, "discard", "--until", "1h", "--dry-run")["chosen"] == 0
    assert decide(url, "discard", "--handler", "to-crm", "--since", "1h", "--yes", *REASON)["discarded"] == 5
    assert keys(url) == []


def test_a_dry_run_changes_nothing_and_needs_no_reason(tmp_path: Path) -> None:
    url = fill(tmp_path)
    ended = semel("dead", "replay", "--all", "--dry-run", "--ledger", url)
    assert ended.code == 0
    assert ended.out.splitlines()[-1].startswith("3 ")
    assert states(url)["dead"] == 3
    assert decide(url, "replay", "--all", "--dry-run")["events"][0]["outcome"] == "would be replayed"


def test_a_discarded_event_still_answers_its_copies(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=1)
    (key,) = keys(url)
    assert decide(url, "discard", key, *REASON)["discarded"] == 1
    assert key[:8] not in semel("dead", "list", "--ledger", url, "--state", "dead").out

    async def send_a_copy() -> str:
        async with an_app(tmp_path) as app:
            return (await app.process(message("crm", "crm-0", customer="\u202ec0"))).status

    assert asyncio.run(send_a_copy()) == "duplicate"
    shown = semel("events", "show", key, "--ledger", url, "--json").json
    assert shown["state"] == "discarded"
    assert "the CRM is fixed" in shown["decision"]


def test_an_event_that_another_operator_decided_is_reported_and_no_failure(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2)
    first, second = keys(url)
    decide(url, "discard", first, *REASON)
    ended = semel("dead", "replay", first, second, "--yes", *REASON, "--ledger", url)
    assert ended.code == 0
    assert any(line.startswith(first) and "already" in line for line in ended.out.splitlines())
    report = decide(url, "replay", first, second, "--yes", *REASON)
    assert (report["chosen"], report["replayed"], report["already_decided"]) == (2, 0, 2)


def test_two_operators_decide_each_event_once(tmp_path: Path) -> None:
    """Both have chosen all of them before one decides: each event is decided by one, and the other is told."""
    url = fill(tmp_path, dead=40, uncertain=0, done=0)
    both_have_chosen = threading.Barrier(2, timeout=60)

    def confirm(question: str) -> bool:
        both_have_chosen.wait()
        return True

    def operate(name: str) -> dead_decisions.DeadLetterReport:
        wish = dead_decisions.DeadLetterRequest(
            action="replay", names=[], every=True, state=None, wanted=Filters(), reason="fixed", by=name, rate=500
        )
        decision = dead_decisions.EventDecision(Place(Secret(url)), wish)
        bulk_decision.run(decision, Console(stderr=True), confirm)
        return decision.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(operate, ("anna", "bert")))
    assert [len(report.chosen) for report in reports] == [40, 40]
    assert sorted(key for report in reports for key in report.decided) == sorted(reports[0].chosen)
    assert [len(report.decided) + len(report.already) for report in reports] == [40, 40]
    assert all(report.succeeded for report in reports)
    assert states(url) == {**states(url), "accepted": 40, "dead": 0}


def test_a_rate_is_kept(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=5)
    begun = time.monotonic()
    assert decide(url, "discard", "--all", "--yes", *REASON, "--rate", "10")["discarded"] == 5
    assert time.monotonic() - begun >= 0.39


def test_an_interrupted_decision_reports_its_progress(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=9)
    command = ("dead", "discard", "--all", "--yes", *REASON, "--rate", "1", "--ledger", url)
    process = started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while states(url)["dead"] == 9:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    left = states(url)["dead"]
    assert process.returncode == 130
    assert 0 < left < 9
    assert lacks(err, f"{9 - left} discarded {left}") == []


@pytest.mark.parametrize("what", ["replay", "discard"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "keys --all"),
        (("--all",), "--reason"),
        (("--all", "--reason", "  "), "--reason"),
        (("--all", "--reason", "two\nlines"), "--reason one line"),
        (("--all", "--reason", "x" * 1_001), "--reason 1,000"),
        (("--all", "abcd", *REASON), "keys --all"),
        (("abcd", "--handler", "to-crm", *REASON), "keys --all"),
        (("--all", *REASON, "--rate", "0"), "--rate"),
        (("--state", "done", *REASON), "--state"),
        (("--all", *REASON), "--yes"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_an_impossible_decision_is_refused_before_anything_is_done(
    what: str, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    url = fill(tmp_path, dead=2)
    ended = semel("dead", what, *arguments, "--ledger", url)
    assert ended.code == 2
    assert lacks(ended.err, words) == []
    assert states(url)["dead"] == 2


def test_one_unknown_key_among_several_stops_everything(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=2)
    ended = semel("dead", "discard", keys(url)[0], "0" * 32, "--yes", *REASON, "--ledger", url)
    assert ended.code == 2
    assert "0" * 32 in ended.err
    assert states(url)["dead"] == 2


def test_an_empty_selection_is_no_failure(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=0)
    ended = semel("dead", "replay", "--all", *REASON, "--ledger", url)
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 1, "no table"
    assert decide(url, "replay", "--all", *REASON)["chosen"] == 0


@pytest.mark.parametrize(("typed", "left"), [(b"y\n", 0), (b"n\n", 3)])
def test_the_command_asks_at_a_terminal(typed: bytes, left: int, tmp_path: Path) -> None:
    url = fill(tmp_path)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard:
        command = ("dead", "replay", "--all", *REASON, "--ledger", url)
        process = started(*command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(theirs)
        keyboard.write(typed)
        _, err = process.communicate(timeout=60)
    assert "3 events?" in err
    assert process.returncode == (2 if left else 0)
    assert states(url)["dead"] == left


def test_the_operator_is_stored_with_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "anna")
    assert bulk_decision.operator().startswith("anna@")
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setenv("LOGNAME", "bert")
    assert bulk_decision.operator().startswith("bert@")
    url = fill(tmp_path, dead=1)
    (key,) = keys(url)
    decide(url, "discard", key, *REASON)
    assert "bert@" in semel("events", "show", key, "--ledger", url).out


# ------------------------------------------------------------------------------------------ many, and failing ones


def test_all_dead_letters_are_found_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages smaller than what shares a millisecond, which one batch of settles does."""

    async def fill_at_once() -> int:
        async with an_app(tmp_path) as app:
            await app.process_many([message("crm", f"crm-{number}", customer="c") for number in range(300)])
            return len({entry.at_ms for entry in await app.entries("dead", 1_000)})

    moments = asyncio.run(fill_at_once())
    assert moments < 100, "inconclusive: too few letters share a millisecond"
    monkeypatch.setattr(find, "PAGE", 3)
    monkeypatch.setattr(find, "PAGE_MAX", 3)

    async def found() -> list[str]:
        async with opened(Place(Secret(url_of(tmp_path)))) as ledger:
            return [entry.key async for entry in every_entry(ledger, "dead", Filters())]

    listed = asyncio.run(found())
    assert len(listed) == len(set(listed)) == 300
    assert decide(url_of(tmp_path), "replay", "--all", "--yes", *REASON)["replayed"] == 300


def test_a_failing_ledger_is_given_up_after_a_few_attempts(tmp_path: Path) -> None:
    url = fill(tmp_path, dead=20)
    fails = """create trigger broken before insert on semel_decision
               when (select count(*) from semel_decision) >= 3 begin select raise(abort, 'out of order'); end"""
    with closing(apsw.Connection(f"{tmp_path}/semel.db")) as connection:
        connection.execute(fails)
    command = ("dead", "replay", "--all", "--yes", "--rate", "1000", *REASON, "--ledger", url)
    ended, people = semel(*command, "--json"), semel(*command)
    report = ended.json
    assert ended.code == people.code == 1
    assert (report["replayed"], report["failed"], report["not_tried"]) == (3, bulk_decision.FAILURES_MAX, 12)
    assert all("out of order" in why for why in report["problems"].values()), "the fault landed"
    assert "out of order" in people.out
    assert "not tried" in people.out
    assert states(url)["dead"] == 17


def test_a_ledger_without_dead_letters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every store keeps them: such a one can be looked at all the same."""
    url = fill(tmp_path)

    class Plain:
        def __init__(self, ledger: Any) -> None:
            self.entries, self.history, self.counts, self.close = (
                ledger.entries,
                ledger.history,
                ledger.counts,
                ledger.close,
            )

    monkeypatch.setattr(ledger_place, "open_ledger", lambda url, dead_letters: Plain(open_ledger(url)))
    assert semel("dead", "list", "--ledger", url).code == 0
    assert semel("status", "--ledger", url, "--json").json["inbox"] is None
    ended = semel("dead", "replay", "--all", "--yes", *REASON, "--ledger", url)
    assert ended.code == 2
    assert "dead_letters" in ended.err

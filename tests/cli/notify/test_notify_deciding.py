"""`semel notify resolve|cancel`: selection, confirmation, output, and concurrent decisions."""

from __future__ import annotations

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
from tests.cli.command import started
from tests.cli.notify.outboxes import (
    NUMBER,
    PROVIDER,
    REASON,
    add,
    apply_reports,
    at_a_terminal,
    carry,
    document,
    fill,
    in_box,
    notification,
    notify,
    shown,
    state,
    url_of,
)
from tests.wording import lacks

from semel.cli import bulk_decision, notification_decisions
from semel.cli.bulk_decision import FAILURES_MAX
from semel.cli.ledger_place import Place
from semel.testing.harness import crossing
from semel.values.delivery_state import Key, Resolution, Unknown
from semel.values.outbox import Lane, NotificationQuery
from semel.values.secret import Secret


def uncertain(url: str, *keys: str, **said: Any) -> list[str]:
    return [carry(url, notification(key, **said), Unknown("no answer")) for key in keys]


# ---------------------------------------------------------------------------------------------------------- one of


@pytest.mark.parametrize(
    ("word", "after"),
    [("--sent", "accepted"), ("--not-sent", "pending"), ("--give-up", "failed")],
)
def test_an_operator_resolves_an_uncertain_notification(word: str, after: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (id,) = uncertain(url, "a")
    ended = notify(url, "resolve", id[:12], word, *REASON)
    assert ended.code == 0
    assert lacks(ended.out, f"{id[:12]} {after}") == []
    assert ("twice" in ended.err) == (word == "--not-sent")
    assert state(url, id) == after
    decision = shown(url, id).attempts[-1]
    assert (decision.by, decision.evidence) == ("anna", "the carrier says so")
    history = notify(url, "show", id).out
    assert "anna" in history
    assert "the carrier says so" in history


@pytest.mark.parametrize(("word", "code"), [("--sent", 0), ("--give-up", 1), ("--not-sent", 1)])
def test_a_decided_notification_is_left_alone_and_reported(word: str, code: int, tmp_path: Path) -> None:
    """The same word again is no error; another one is, since it is not taken."""
    url = url_of(tmp_path)
    (id,) = uncertain(url, "a")
    assert notify(url, "resolve", id, "--sent", *REASON).code == 0
    ended = notify(url, "resolve", id, word, *REASON)
    assert ended.code == code
    assert lacks(ended.out, f"{id[:12]} accepted") == []
    assert ("already" in ended.out) == (code == 0)
    assert len(shown(url, id).attempts) == 2, "the crossing and the first word"


@pytest.mark.parametrize(
    ("name", "command", "told"),
    [
        ("sending", "resolve", "sending"),
        ("sending", "cancel", "sending"),
        ("pending", "resolve", "semel notify cancel"),
        ("uncertain", "cancel", "semel notify resolve"),
        ("delivered", "cancel", "delivered"),
        ("suppressed", "resolve", "suppressed"),
    ],
)
def test_a_decision_that_the_state_does_not_allow_is_refused(
    name: str, command: str, told: str, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    id = fill(url)[name]
    word = ("--sent",) if command == "resolve" else ()
    for options in ((), ("--dry-run",)):
        ended = notify(url, command, id, *word, *REASON, *options)
        assert ended.code == 1
        assert lacks(ended.out, f"{id[:12]} {name}") == []
        assert told in ended.out
    assert state(url, id) == name


def test_a_notification_that_a_relay_has_taken_is_not_cancelled(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    (taken,) = in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000))
    assert taken.id.hex() == id
    ended = notify(url, "cancel", id, *REASON)
    assert ended.code == 1
    assert lacks(ended.out, "relay again") == []
    assert state(url, id) == "pending"


def test_an_abandoned_notification_can_be_resolved_without_a_relay(tmp_path: Path) -> None:
    """Its provider is not in the settings any more, so nobody would ever call it uncertain."""
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    (taken,) = in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 1))
    in_box(url, lambda box: box.cross([crossing(taken)]))
    ended = notify(url, "resolve", id, "--sent", *REASON)
    assert (ended.code, state(url, id)) == (0, "accepted"), ended.out


def test_cancelling_a_notification_with_an_unknown_attempt_makes_it_uncertain(tmp_path: Path) -> None:
    """It waits to be sent again with the same key: the attempt before may have left."""
    url = url_of(tmp_path)
    id = carry(url, notification(), Unknown("reset"), key=Key("Idempotency-Key"))
    deadline = time.monotonic() + 60
    while state(url, id) == "uncertain":  # as a relay does when its exit has come
        assert time.monotonic() < deadline
        in_box(url, _replayed)
    assert state(url, id) == "pending"
    ended = notify(url, "cancel", id, *REASON)
    assert ended.code == 0
    assert "uncertain" in ended.out
    assert state(url, id) == "uncertain"


async def _replayed(box: Any) -> None:
    from semel.testing import harness
    from semel.values import delivery_state as states

    for dispatch in await box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000):
        again = states.replayed(dispatch.delivery_state)
        await box.record([harness.released(harness.with_delivery_state(dispatch, again))])


# ------------------------------------------------------------------------------------------------------------- many


def test_a_filter_decides_exactly_what_a_dry_run_lists(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    chosen = uncertain(url, "a", "b", kind="promo")
    others = uncertain(url, "c") + add(url, notification("d", kind="promo"))
    command = ("resolve", "--all", "--state", "uncertain", "--provider", PROVIDER, "--kind", "promo", "--sent")
    foreseen = notify(url, *command, "--dry-run")
    assert foreseen.code == 0
    assert [id for id in chosen if f"{id[:12]}…" not in foreseen.out] == []
    assert [id for id in others if f"{id[:12]}…" in foreseen.out] == []
    assert {one["id"] for one in document(url, *command, "--dry-run")["notifications"]} == set(chosen)
    assert NUMBER not in foreseen.out
    report = document(url, *command, "--yes", *REASON)
    assert (report["chosen"], report["decided"], report["refused"], report["not_tried"]) == (2, 2, 0, 0)
    assert {one["id"] for one in report["notifications"]} == set(chosen)
    assert [state(url, id) for id in chosen] == ["accepted"] * 2
    assert [state(url, id) for id in others] == ["uncertain", "pending"]


def test_all_pending_notifications_are_cancelled_and_counted(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    doubtful = uncertain(url, "u")
    add(url, *(notification(f"n-{number}", kind="campaign") for number in range(300)))
    ended = notify(url, "cancel", "--kind", "campaign", "--yes", *REASON)
    assert ended.code == 0
    assert [line.split("│")[2].strip() for line in ended.out.splitlines() if line.startswith("│ cancelled ")] == ["300"]
    assert len(document(url, "list", "--state", "cancelled", "--limit", "1000")) == 300
    assert state(url, doubtful[0]) == "uncertain"
    again = notify(url, "cancel", "--kind", "campaign", "--yes", *REASON)
    assert (again.code, len(again.out.splitlines())) == (0, 1), "no table"
    assert document(url, "cancel", "--kind", "campaign", "--yes", *REASON)["chosen"] == 0


@pytest.mark.parametrize("which", ["filter", "several"])
def test_several_notifications_are_never_decided_without_confirmation(which: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = uncertain(url, "a", "b")
    chosen = ids if which == "several" else ["--all"]
    ended = notify(url, "resolve", *chosen, "--not-sent", *REASON)
    assert ended.code == 2
    assert lacks(ended.err, "2 notifications --yes") == []
    assert [state(url, id) for id in ids] == ["uncertain"] * 2


@pytest.mark.parametrize(("typed", "after"), [(b"y\n", "accepted"), (b"n\n", "uncertain")])
def test_the_command_asks_at_a_terminal(typed: bytes, after: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = uncertain(url, "a", "b")
    err = at_a_terminal(typed, url, "resolve", "--all", "--sent", *REASON)
    assert lacks(err, "2 notifications sent ?") == []
    assert [state(url, id) for id in ids] == [after] * 2


def test_two_operators_and_a_callback_decide_each_notification_once(tmp_path: Path) -> None:
    """Both have chosen all of them, and a report of the provider comes, before anybody decides."""
    url = url_of(tmp_path)
    ids = uncertain(url, *(f"n-{number}" for number in range(12)))
    all_have_chosen = threading.Barrier(
        2, action=lambda: apply_reports(url, "delivered", ids[0], "callback"), timeout=60
    )

    def confirm(question: str) -> bool:
        all_have_chosen.wait()
        return True

    def operate(resolution: Resolution) -> notification_decisions.OutboxDecisionReport:
        ask = notification_decisions.OutboxDecisionRequest(
            decision=resolution,
            names=[],
            every=True,
            query=NotificationQuery(state="uncertain"),
            reason="so it is",
            by="anna",
            rate=500,
        )
        decision = notification_decisions.StateDecision(Place(Secret(url)), ask)
        bulk_decision.run(decision, Console(stderr=True), confirm)
        return decision.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(operate, ("sent", "given_up")))
    assert [len(report.chosen) for report in reports] == [12, 12]
    assert sorted(id for report in reports for id in report.decided) == sorted(ids[1:])
    assert [len(report.decided) + len(report.already) for report in reports] == [12, 12]
    assert all(report.succeeded for report in reports)
    assert state(url, ids[0]) == "delivered"
    for report in reports:
        assert {id: state(url, id) for id in report.decided} == report.decided


def test_an_interrupted_decision_reports_its_progress(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    add(url, *(notification(f"n-{number}") for number in range(9)))
    command = ("notify", "cancel", "--all", "--yes", *REASON, "--rate", "1", "--ledger", url)
    process = started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(document(url, "list", "--state", "pending")) == 9:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    left = len(document(url, "list", "--state", "pending"))
    if not left:
        pytest.fail("inconclusive: it was through before it was interrupted")
    assert process.returncode == 130
    assert lacks(err, f"{9 - left} cancelled {left}") == []
    assert document(url, "cancel", "--all", "--yes", *REASON)["decided"] == left


def test_a_failing_outbox_is_given_up_after_a_few_attempts(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    add(url, *(notification(f"n-{number}") for number in range(20)))
    fails = """create trigger broken before insert on semel_attempt
               when (select count(*) from semel_attempt) >= 3 begin select raise(abort, 'out of order'); end"""
    with closing(apsw.Connection(f"{tmp_path}/semel.db")) as connection:
        connection.execute(fails)
    command = ("cancel", "--all", "--yes", "--rate", "1000", *REASON)
    ended, people = notify(url, *command, "--json"), notify(url, *command)
    report = ended.json
    assert ended.code == people.code == 1
    assert (report["decided"], report["failed"], report["not_tried"]) == (3, FAILURES_MAX, 12)
    assert all("out of order" in why for why in report["problems"].values()), "the fault landed"
    assert "out of order" in people.out
    assert "not tried" in people.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resolve", "--sent", *REASON), "--all"),
        (("resolve", "abcd", *REASON), "--sent --not-sent --give-up"),
        (("resolve", "abcd", "--sent", "--give-up", *REASON), "--sent --not-sent --give-up"),
        (("resolve", "abcd", "--all", "--sent", *REASON), "--all"),
        (("resolve", "abcd", "--kind", "x", "--sent", *REASON), "--all"),
        (("resolve", "--all", "--sent"), "--reason"),
        (("resolve", "--all", "--sent", "--reason", "two\nlines"), "--reason one line"),
        (("resolve", "--all", "--sent", "--state", "pending", *REASON), "uncertain"),
        (("resolve", "--all", "--give-up", "--state", "failed", *REASON), "uncertain pending"),
        (("cancel", *REASON), "--all"),
        (("cancel", "abcd"), "--reason"),
        (("cancel", "abcd", *REASON), "id abcd"),
        (("cancel", "f" * 32, *REASON), "notification"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_done(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    ended = notify(url, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert lacks(ended.err, words) == []
    assert state(url, id) == "pending"

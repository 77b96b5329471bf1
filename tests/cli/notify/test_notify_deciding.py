"""`semel notify resolve|cancel`: what is chosen, who is asked, what is told, and that others may decide meanwhile."""

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
    witness,
)

from semel.cli.notifying import judging
from semel.cli.operating.deciding import FAILURES_MAX
from semel.cli.operating.place import Place
from semel.settings.secret import Secret
from semel.testing.sender import crossing
from semel.values.outbox import Lane, Sought
from semel.values.sending import Key, Resolution, Unknown


def uncertain(url: str, *keys: str, **said: Any) -> list[str]:
    return [carry(url, notification(key, **said), Unknown("no answer")) for key in keys]


# ---------------------------------------------------------------------------------------------------------- one of


@pytest.mark.parametrize(
    ("word", "after", "told"),
    [
        ("--sent", "accepted", "is accepted now: it counts as sent, by your word"),
        ("--not-sent", "pending", "is pending now: to be sent by the relay that runs"),
        ("--give-up", "failed", "is failed now: nothing more is sent"),
    ],
)
def test_an_uncertain_one_is_decided_by_a_person(word: str, after: str, told: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (id,) = uncertain(url, "a")
    ended = notify(url, "resolve", id[:12], word, *REASON)
    assert ended.code == 0
    assert told in ended.out
    assert ("gets it twice" in ended.err) == (word == "--not-sent")
    assert state(url, id) == after
    decision = shown(url, id).attempts[-1]
    assert (decision.by, decision.evidence) == ("anna", "the carrier says so")
    history = notify(url, "show", id).out
    assert "anna says: " in history
    assert "the carrier says so" in history


@pytest.mark.parametrize(("word", "code"), [("--sent", 0), ("--give-up", 1), ("--not-sent", 1)])
def test_what_is_decided_is_left_alone_and_that_is_told(word: str, code: int, tmp_path: Path) -> None:
    """The same word again is no error; another one is, since it is not taken."""
    url = url_of(tmp_path)
    (id,) = uncertain(url, "a")
    assert notify(url, "resolve", id, "--sent", *REASON).code == 0
    ended = notify(url, "resolve", id, word, *REASON)
    assert ended.code == code
    assert ("is accepted already" if not code else "is accepted: it is over") in ended.out
    assert len(shown(url, id).attempts) == 2, "the crossing and the first word"


@pytest.mark.parametrize(
    ("name", "command", "told"),
    [
        ("sending", "resolve", "is sending: it is leaving at this moment"),
        ("sending", "cancel", "is sending: it is leaving at this moment"),
        ("pending", "resolve", "is pending: a relay is about to send it; to stop that: semel notify cancel"),
        ("uncertain", "cancel", "is uncertain: it may have been sent: semel notify resolve"),
        ("delivered", "cancel", "is delivered: it is over"),
        ("suppressed", "resolve", "is suppressed: it is over"),
    ],
)
def test_what_cannot_be_said_now_is_refused(name: str, command: str, told: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = fill(url)[name]
    word = ("--sent",) if command == "resolve" else ()
    for options in ((), ("--dry-run",)):
        ended = notify(url, command, id, *word, *REASON, *options)
        assert ended.code == 1
        assert told in ended.out
    assert state(url, id) == name


def test_what_a_relay_has_in_hand_is_not_cancelled(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    (taken,) = in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000))
    assert taken.id.hex() == id
    ended = notify(url, "cancel", id, *REASON)
    assert ended.code == 1
    assert "a relay has it in its hands at this moment: try again" in ended.out
    assert state(url, id) == "pending"


def test_what_a_relay_has_left_behind_can_be_resolved_though_no_relay_comes(tmp_path: Path) -> None:
    """Its provider is not in the settings any more, so nobody would ever call it uncertain."""
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    (taken,) = in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 1))
    in_box(url, lambda box: box.cross([crossing(taken)]))
    ended = notify(url, "resolve", id, "--sent", *REASON)
    assert (ended.code, state(url, id)) == (0, "accepted"), ended.out


def test_a_cancelled_one_with_a_doubt_is_uncertain(tmp_path: Path) -> None:
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
    assert "is uncertain now: an attempt of it may have left." in ended.out
    assert state(url, id) == "uncertain"


async def _replayed(box: Any) -> None:
    from semel.testing import sender
    from semel.values import sending

    for dispatch in await box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000):
        again = sending.replayed(dispatch.standing)
        await box.record([sender.released(sender.with_standing(dispatch, again))])


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
    assert "2 would be resolved. Nothing was changed." in foreseen.out
    assert NUMBER not in foreseen.out
    report = document(url, *command, "--yes", *REASON)
    assert (report["chosen"], report["decided"], report["refused"], report["not_tried"]) == (2, 2, 0, 0)
    assert {one["id"] for one in report["notifications"]} == set(chosen)
    assert [state(url, id) for id in chosen] == ["accepted"] * 2
    assert [state(url, id) for id in others] == ["uncertain", "pending"]


def test_all_that_wait_are_cancelled_and_counted(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    doubtful = uncertain(url, "u")
    add(url, *(notification(f"n-{number}", kind="campaign") for number in range(300)))
    ended = notify(url, "cancel", "--kind", "campaign", "--yes", *REASON)
    assert ended.code == 0
    assert "│ cancelled       │ 300 │ cancelled now: nothing is sent │" in ended.out
    assert len(document(url, "list", "--state", "cancelled", "--limit", "1000")) == 300
    assert state(url, doubtful[0]) == "uncertain"
    again = notify(url, "cancel", "--kind", "campaign", "--yes", *REASON)
    assert (again.code, again.out) == (0, "Nothing matches: nothing to decide about.\n")


@pytest.mark.parametrize("which", ["filter", "several"])
def test_more_than_one_is_never_decided_unasked(which: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = uncertain(url, "a", "b")
    chosen = ids if which == "several" else ["--all"]
    ended = notify(url, "resolve", *chosen, "--not-sent", *REASON)
    assert ended.code == 2
    assert "Send 2 notifications again? There is nobody here to ask: say --yes" in ended.err
    assert [state(url, id) for id in ids] == ["uncertain"] * 2


@pytest.mark.parametrize(("typed", "after"), [(b"y\n", "accepted"), (b"n\n", "uncertain")])
def test_someone_at_a_terminal_is_asked(typed: bytes, after: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = uncertain(url, "a", "b")
    err = at_a_terminal(typed, url, "resolve", "--all", "--sent", *REASON)
    assert "Say that 2 notifications were sent?" in err
    assert [state(url, id) for id in ids] == [after] * 2


def test_two_operators_and_a_callback_decide_each_one_once(tmp_path: Path) -> None:
    """Both have chosen all of them, and a report of the provider comes, before anybody decides."""
    url = url_of(tmp_path)
    ids = uncertain(url, *(f"n-{number}" for number in range(12)))
    all_have_chosen = threading.Barrier(2, action=lambda: witness(url, "delivered", ids[0], "callback"), timeout=60)

    def confirm(question: str) -> bool:
        all_have_chosen.wait()
        return True

    def operate(says: Resolution) -> judging.Report:
        ask = judging.Ask(
            says=says, ids=[], every=True, sought=Sought(state="uncertain"), reason="so it is", by="anna", rate=500
        )
        return judging.run(Place(Secret(url)), ask, Console(stderr=True), confirm, None)

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(operate, ("sent", "given_up")))
    assert [len(report.chosen) for report in reports] == [12, 12]
    assert sorted(id for report in reports for id in report.decided) == sorted(ids[1:])
    assert [len(report.decided) + len(report.already) for report in reports] == [12, 12]
    assert all(report.holds for report in reports)
    assert state(url, ids[0]) == "delivered"
    for report in reports:
        assert {id: state(url, id) for id in report.decided} == report.decided


def test_an_interrupted_decision_tells_how_far_it_came(tmp_path: Path) -> None:
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
    assert f"Interrupted: {9 - left} cancelled, {left} not. The same command goes on with the rest." in err
    assert document(url, "cancel", "--all", "--yes", *REASON)["decided"] == left


def test_an_outbox_that_fails_is_left_alone_after_a_few_tries(tmp_path: Path) -> None:
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
    ("arguments", "said"),
    [
        (("resolve", "--sent", *REASON), "which ones?"),
        (("resolve", "abcd", *REASON), "what came of it?"),
        (("resolve", "abcd", "--sent", "--give-up", *REASON), "what came of it?"),
        (("resolve", "abcd", "--all", "--sent", *REASON), "not both"),
        (("resolve", "abcd", "--kind", "x", "--sent", *REASON), "not both"),
        (("resolve", "--all", "--sent"), "--reason: say why"),
        (("resolve", "--all", "--sent", "--reason", "two\nlines"), "on one line"),
        (("resolve", "--all", "--sent", "--state", "pending", *REASON), "only be said of what is uncertain"),
        (("resolve", "--all", "--give-up", "--state", "failed", *REASON), "what is uncertain or pending"),
        (("cancel", *REASON), "which ones?"),
        (("cancel", "abcd"), "--reason: say why"),
        (("cancel", "abcd", *REASON), "no id begins with abcd"),
        (("cancel", "f" * 32, *REASON), "nothing is known of a notification"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_done(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    ended = notify(url, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert state(url, id) == "pending"

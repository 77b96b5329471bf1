"""`semel notify resend|cancel|resolve` after an outage: hundreds at once, interrupted and repeated."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.command import started
from tests.cli.notify.outboxes import (
    LEASE_MS,
    NUMBER,
    PROVIDER,
    REASON,
    add,
    at_a_terminal,
    carry,
    document,
    in_box,
    notification,
    notify,
    shown,
    state,
    url_of,
)
from tests.wording import lacks

from semel.cli import bulk_decision, notification_decisions
from semel.cli.ledger_place import Place
from semel.ports import StoredOutbox
from semel.testing import harness
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.notification import Guard
from semel.values.outbox import Crossed, DeliveryReport, Lane, NotificationQuery, Record
from semel.values.secret import Secret

CONTRACT = Contract(name=PROVIDER, channels=("sms",))
AGAIN = ("resend", "--provider", PROVIDER, "--yes", *REASON)
OUTAGE = Refused("503: the account is suspended", final=True)


def carry_all(url: str, keys: list[str], answer: Answer, **said: Any) -> list[str]:
    """Many at once, answered alike: their ids."""
    add(url, *(notification(key, **said) for key in keys))
    return relay(url, answer)


def relay(url: str, answer: Answer) -> list[str]:
    """Whatever is due goes out, and is answered so."""

    async def work(box: StoredOutbox) -> list[str]:
        taken = await box.take({PROVIDER: Lane(5_000, PROVIDER)}, LEASE_MS)
        gates = await box.cross([harness.crossing(one) for one in taken])
        assert all(isinstance(gate, Crossed) for gate in gates)
        afters = [
            states.answered(
                states.crossed(one.delivery_state, one.taken_ms), answer, CONTRACT, one.taken_ms, lambda: 0.5
            )
            for one in taken
        ]
        outcome: Any = {Accepted: "accepted", Refused: "refused", Unknown: "unknown"}[type(answer)]
        records = [Record(one, after, outcome, "said so") for one, after in zip(taken, afters, strict=True)]
        assert all(await box.record(records))
        return [one.id.hex() for one in taken]

    return in_box(url, work)


def generations(url: str) -> Counter[int]:
    return Counter(one["generation"] for one in document(url, "list", "--limit", "10000"))


# ----------------------------------------------------------------------------------------------------------- choosing


def test_a_resend_sends_exactly_what_its_dry_run_lists(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    meant = carry_all(url, ["a", "b"], OUTAGE, kind="promo")
    others = [
        *carry_all(url, ["number"], Refused("400: the number is not valid", final=True), kind="promo"),
        *carry_all(url, ["other"], OUTAGE),
        *carry_all(url, ["sent"], Accepted(), kind="promo"),
        *carry_all(url, ["doubt"], Unknown("reset"), kind="promo"),
    ]
    command = ("resend", "--provider", PROVIDER, "--kind", "promo", "--since", "1h", "--matching", "suspended")
    foreseen = notify(url, *command, "--dry-run")
    assert foreseen.code == 0
    assert [id for id in meant if f"{id[:12]}…" not in foreseen.out] == []
    assert [id for id in others if f"{id[:12]}…" in foreseen.out] == []
    assert {one["id"] for one in document(url, *command, "--dry-run")["notifications"]} == set(meant)
    assert NUMBER not in foreseen.out
    assert generations(url) == {1: 6}
    report = document(url, *command, "--yes", *REASON)
    assert (report["decision"], report["chosen"], report["decided"], report["refused"]) == ("resent", 2, 2, 0)
    assert {one["id"]: state(url, one["made"]) for one in report["notifications"]} == dict.fromkeys(meant, "pending")
    assert generations(url) == {1: 6, 2: 2}
    for one in report["notifications"]:
        assert lacks(shown(url, one["made"]).attempts[-1].evidence, "anna carrier") == []


def test_hundreds_are_sent_again_in_pages_and_counted(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    carry_all(url, [f"n-{number}" for number in range(600)], OUTAGE)
    ended = notify(url, *AGAIN)
    assert ended.code == 0
    assert [line.split("│")[2].strip() for line in ended.out.splitlines() if line.startswith("│")].count("600") == 1
    assert generations(url) == {1: 600, 2: 600}
    assert document(url, "resend", "--kind", "nobody's", "--yes", *REASON)["chosen"] == 0


def test_several_named_notifications_need_confirmation_and_are_refused_one_by_one(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    failed, doubtful = carry_all(url, ["a"], OUTAGE), carry_all(url, ["b"], Unknown("reset"))
    ended = notify(url, "resend", *failed, *doubtful, *REASON)
    assert ended.code == 2
    assert lacks(ended.err, "2 notifications --yes") == []
    foreseen = notify(url, "resend", *failed, *doubtful, "--dry-run")
    assert foreseen.code == 1
    report = notify(url, "resend", *failed, *doubtful, "--dry-run", "--json").json
    assert (report["chosen"], report["decided"], report["refused"]) == (2, 0, 1)
    assert f"{doubtful[0][:12]}…: " in foreseen.out
    assert generations(url) == {1: 2}
    ended = notify(url, "resend", *failed, *doubtful, "--yes", *REASON, "--json")
    assert ended.code == 1
    told = {one["id"]: (one["outcome"], one.get("why", "")) for one in ended.json["notifications"]}
    assert told[failed[0]] == ("sent again", "")
    outcome, why = told[doubtful[0]]
    assert (outcome, "resolve" in why) == ("refused", True)
    assert generations(url) == {1: 2, 2: 1}


@pytest.mark.parametrize(("typed", "made"), [(b"y\n", 2), (b"n\n", 0)])
def test_the_command_asks_and_warns_at_a_terminal(typed: bytes, made: int, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    carry_all(url, ["a", "b"], Accepted())
    err = at_a_terminal(typed, url, "resend", "--state", "accepted", *REASON)
    assert lacks(err, "twice 2 notifications") == []
    assert generations(url)[2] == made


def test_filters_cancel_by_provider_and_resolve_by_reason(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    resets = carry_all(url, ["r1", "r2"], Unknown("the connection was reset"))
    silent = carry_all(url, ["s"], Unknown("no answer within 15 s"))
    mine, theirs = add(url, notification("mine"), notification("theirs", provider="vonage"))
    assert document(url, "resolve", "--matching", "reset", "--sent", "--yes", *REASON)["decided"] == 2
    assert [state(url, id) for id in (*resets, *silent)] == ["accepted", "accepted", "uncertain"]
    assert document(url, "cancel", "--state", "pending", "--provider", "vonage", "--yes", *REASON)["decided"] == 1
    assert (state(url, mine), state(url, theirs)) == ("pending", "cancelled")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resend", *REASON), "--all"),
        (("resend", "abcd", "--all", *REASON), "--all"),
        (("resend", "abcd", "--matching", "503", *REASON), "--all"),
        (("resend", "--all"), "--reason"),
        (("resend", "--state", "uncertain", *REASON), "semel notify resolve --not-sent"),
        (("resend", "--state", "pending", *REASON), "--state pending"),
        (("resend", "--state", "sending", *REASON), "--state sending"),
        (("cancel", "--state", "failed", *REASON), "pending"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_done(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    add(url, notification())
    ended = notify(url, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert lacks(ended.err, words) == []
    assert generations(url) == {1: 1}


# ----------------------------------------------------------------------------------------------------- and once again


def test_the_same_command_again_makes_no_third_message(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    carry_all(url, ["a", "b", "c"], OUTAGE)
    assert document(url, *AGAIN)["decided"] == 3
    again = document(url, *AGAIN)
    assert (again["chosen"], again["decided"], again["already_decided"]) == (3, 0, 3)
    assert all(one["made"] for one in again["notifications"])
    assert lacks(notify(url, *AGAIN).out, "already generation 2 pending") == []
    foreseen = document(url, *AGAIN, "--dry-run")
    assert (foreseen["chosen"], foreseen["decided"], foreseen["already_decided"]) == (3, 0, 3)
    assert relay(url, Accepted()), "they arrive"
    assert document(url, *AGAIN)["decided"] == 0
    assert generations(url) == {1: 3, 2: 3}


def test_a_resend_that_failed_can_be_resent(tmp_path: Path) -> None:
    """Nobody has it. Of the two generations that failed, the newest makes the one new message."""
    url = url_of(tmp_path)
    carry_all(url, ["a", "b"], OUTAGE)
    assert document(url, *AGAIN)["decided"] == 2
    assert len(relay(url, OUTAGE)) == 2
    again = document(url, *AGAIN)
    assert (again["chosen"], again["decided"], again["already_decided"]) == (4, 2, 2)
    assert generations(url) == {1: 2, 2: 2, 3: 2}


def test_a_filter_does_not_resend_accepted_resends_again(tmp_path: Path) -> None:
    """Each time it is given, what it made before has arrived too: no customer gets a third message by that."""
    url = url_of(tmp_path)
    carry_all(url, ["a", "b"], Accepted())
    command = ("resend", "--state", "accepted", "--yes", *REASON)
    assert document(url, *command)["decided"] == 2
    first, _ = relay(url, Accepted())
    again = document(url, *command)
    assert (again["chosen"], again["decided"], again["already_decided"]) == (4, 0, 4)
    assert generations(url) == {1: 2, 2: 2}
    assert document(url, "resend", first, "--yes", *REASON)["generation"] == 3, "whoever names it means it"


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_an_interrupted_resend_continues_with_the_same_command(ends: signal.Signals, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    carry_all(url, [f"n-{number}" for number in range(12)], OUTAGE)
    command = ("notify", *AGAIN, "--rate", "2", "--ledger", url)
    process = started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(in_box(url, lambda box: box.find(NotificationQuery(state="pending")))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(ends)
    _, err = process.communicate(timeout=60)
    made = generations(url)[2]
    if made == 12:
        pytest.fail("inconclusive: it was through before it ended")
    assert process.returncode == (130 if ends == signal.SIGINT else -signal.SIGKILL)
    if ends == signal.SIGINT:
        assert lacks(err, f"{made} {12 - made}") == []
    assert len(relay(url, Accepted())) == made, "a relay was quicker than whoever gives the command again"
    again = document(url, *AGAIN)
    assert (again["chosen"], again["decided"], again["already_decided"]) == (12, 12 - made, made)
    assert generations(url) == {1: 12, 2: 12}


def test_two_operators_resend_each_message_once(tmp_path: Path) -> None:
    """Both have chosen all of them before anybody sends."""
    url = url_of(tmp_path)
    ids = carry_all(url, [f"n-{number}" for number in range(12)], OUTAGE)
    both_have_chosen = threading.Barrier(2, timeout=60)

    def confirm(question: str) -> bool:
        both_have_chosen.wait()
        return True

    def operate(by: str) -> notification_decisions.OutboxDecisionReport:
        query = NotificationQuery(state="failed")
        choice = notification_decisions.OutboxDecisionRequest(
            decision="resent", names=[], every=True, query=query, reason="the outage", by=by, rate=500
        )
        decision = notification_decisions.ResendDecision(Place(Secret(url)), choice)
        bulk_decision.run(decision, Console(stderr=True), confirm)
        return decision.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(operate, ("anna", "ben")))
    assert [len(report.chosen) for report in reports] == [12, 12]
    assert sorted(id for report in reports for id in report.decided) == sorted(ids)
    assert [len(report.decided) + len(report.already) for report in reports] == [12, 12]
    assert reports[0].made == reports[1].made
    assert generations(url) == {1: 12, 2: 12}


def test_resending_suppressed_notifications_prints_a_warning(tmp_path: Path) -> None:
    """Its customers have another one in its place: that is why it was held back."""
    url, guard = url_of(tmp_path), Guard(window_s=86_400.0)
    carry(url, notification("first", guard=guard), Accepted())
    held = carry(url, notification("second", guard=guard), None)
    carry_all(url, ["failed"], OUTAGE)
    assert "twice" not in notify(url, *AGAIN).err
    ended = notify(url, "resend", "--state", "suppressed", "--yes", *REASON)
    assert (ended.code, state(url, held)) == (0, "suppressed")
    assert "twice" in ended.err


def test_a_filter_does_not_resend_what_was_delivered_meanwhile(tmp_path: Path) -> None:
    """A callback comes between choosing and sending, which may be hours at a rate: this customer has it."""
    url = url_of(tmp_path)
    arrived, failed = carry_all(url, ["a", "b"], OUTAGE)

    def confirm(question: str) -> bool:
        word = DeliveryReport("delivered", bytes.fromhex(arrived), PROVIDER)
        assert in_box(url, lambda box: box.apply_reports([word])) == ["delivered"]
        return True

    choice = notification_decisions.OutboxDecisionRequest(
        decision="resent", names=[], every=True, query=NotificationQuery(state="failed"), reason="the outage", by="anna"
    )
    decision = notification_decisions.ResendDecision(Place(Secret(url)), choice)
    bulk_decision.run(decision, Console(stderr=True), confirm)
    report = decision.report
    assert list(report.made) == [failed]
    assert list(report.already) == [arrived]
    assert "delivered" in report.already[arrived]
    assert generations(url) == {1: 2, 2: 1}


def test_a_notification_given_up_in_doubt_is_resent_only_by_name(tmp_path: Path) -> None:
    """Its customer may have it: whoever filters what failed does not mean that."""
    url = url_of(tmp_path)
    (by_person,) = carry_all(url, ["p"], Unknown("reset"))
    assert notify(url, "resolve", by_person, "--give-up", *REASON).code == 0
    (never_left,) = add(url, notification("n"))
    assert notify(url, "resolve", "--give-up", "--state", "pending", "--yes", *REASON).code == 0
    (refused,) = carry_all(url, ["r"], OUTAGE)
    assert {state(url, id) for id in (by_person, never_left, refused)} == {"failed"}
    foreseen = notify(url, "resend", "--all", "--dry-run").out
    assert document(url, "resend", "--all", "--dry-run")["already_decided"] == 1, "the other two would be sent"
    assert any(not lacks(line, f"{by_person[:12]}… doubt") for line in foreseen.splitlines())
    report = document(url, "resend", "--all", "--yes", *REASON)
    assert {one["id"] for one in report["notifications"] if "made" in one} == {never_left, refused}
    assert document(url, "resend", by_person, "--yes", *REASON)["status"] == "added"


def test_a_filter_leaves_erased_notifications_alone(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    gone = carry(url, notification("gone", recipient="+49170999"), OUTAGE)
    (kept,) = carry_all(url, ["kept"], OUTAGE)
    assert notify(url, "erase", "--to", "+49170999", "--yes", *REASON).code == 0
    report = document(url, *AGAIN)
    assert {one["id"]: one["outcome"] for one in report["notifications"]} == {
        gone: "already decided",
        kept: "sent again",
    }

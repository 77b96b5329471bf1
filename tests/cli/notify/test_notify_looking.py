"""`semel notify list|show|status`: filters, masks, what happens next, and texts of strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.notify.outboxes import (
    EVIL,
    MAIL,
    NUMBER,
    PROVIDER,
    SECRET,
    add,
    apply_reports,
    carry,
    document,
    fill,
    in_box,
    notification,
    notify,
    shown,
    url_of,
)
from tests.wording import lacks

from semel.cli import describe
from semel.values.delivery_state import STATES, Accepted, DeliveryState, Key, Refused, Unknown
from semel.values.outbox import Lane, NotificationQuery


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """Looked at by all tests here, changed by none."""
    url = url_of(tmp_path_factory.mktemp("outbox"))
    return url, fill(url)


@pytest.fixture
def url(filled: tuple[str, dict[str, str]]) -> str:
    return filled[0]


@pytest.fixture
def ids(filled: tuple[str, dict[str, str]]) -> dict[str, str]:
    return filled[1]


# ------------------------------------------------------------------------------------------------------------- list


def test_notifications_are_listed_the_newest_first(url: str, ids: dict[str, str]) -> None:
    found = document(url, "list")
    assert {one["id"] for one in found} == set(ids.values())
    assert [one["added_ms"] for one in found] == sorted((one["added_ms"] for one in found), reverse=True)
    assert {one["state"] for one in found} == set(STATES), "all of them are here"


@pytest.mark.parametrize(
    ("filters", "keys"),
    [
        (("--state", "uncertain"), {"uncertain"}),
        (("--state", "delivered"), {"delivered"}),
        (("--kind", "promo"), {"promo-1", "suppressed"}),
        (("--key", "failed"), {"failed"}),
        (("--to", MAIL), {"undelivered"}),
        (("--recipient", NUMBER, "--tenant", "acme"), {"sending"}),
        (("--tenant", "acme"), {"sending"}),
        (("--provider", "twilio", "--state", "failed"), {"failed"}),
        (("--provider", "nobody"), set()),
        (("--possible-duplicates",), set()),
        (("--until", "1h"), set()),
        (("--since", "1h", "--state", "pending"), {"pending"}),
        (("--limit", "1"), {"pending"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_notifications_are_filtered(filters: tuple[str, ...], keys: set[str], url: str) -> None:
    assert {one["key"] for one in document(url, "list", *filters)} == keys


def test_a_key_is_searched_without_a_tenant_and_the_output_states_it(url: str) -> None:
    assert document(url, "list", "--key", "sending") == []
    assert "--tenant" in notify(url, "list", "--key", "sending").out
    assert "--tenant" not in notify(url, "list", "--key", "sending", "--tenant", "").out


@pytest.mark.parametrize("options", [(), ("--wide",), ("--json",)])
def test_a_list_shows_recipients_and_contents_only_with_reveal(options: tuple[str, ...], url: str) -> None:
    masked = notify(url, "list", *options).out
    for hidden in (NUMBER, NUMBER[1:], MAIL, SECRET):
        assert hidden not in masked
    assert "…@example.com" in masked or "\\u2026@example.com" in masked
    revealed = notify(url, "list", "--reveal", *options).out
    assert NUMBER in revealed
    assert MAIL in revealed


def test_provider_texts_cannot_control_the_terminal(url: str, ids: dict[str, str]) -> None:
    for arguments in (("list",), ("list", "--wide"), ("show", ids["failed"]), ("show", ids["failed"], "--reveal")):
        told = notify(url, *arguments, "--tenant", "").out
        assert "\\x1b[31m" in told, "it is told, letter by letter"
        assert "\x1b" not in told
        assert "\u202e" not in told
    assert document(url, "show", ids["failed"], "--reveal")["reason"] == EVIL, "programs get it as it is"


def test_a_list_fits_a_terminal_of_100_columns(url: str) -> None:
    told = notify(url, "list", env={"COLUMNS": "100"}).out
    assert max(map(len, told.splitlines())) <= 100
    assert lacks(told, "1 uncertain semel notify show ID") == []


def test_an_empty_outbox_is_reported(tmp_path: Path) -> None:
    in_box(url_of(tmp_path), lambda box: box.find(NotificationQuery()))
    nothing, no_match = (notify(url_of(tmp_path), "list", *filters).out for filters in ((), ("--state", "failed")))
    assert (len(nothing.splitlines()), len(no_match.splitlines())) == (1, 1), "no table"
    assert nothing != no_match, "the second may come of the filter"
    assert document(url_of(tmp_path), "list") == []


def test_reading_creates_nothing(tmp_path: Path) -> None:
    ended = notify(url_of(tmp_path), "list")
    assert ended.code == 2
    assert "semel.db" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_notifications_of_several_pages_are_listed_once_each(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = add(url, *(notification(f"n-{number}") for number in range(700)))
    found = [one["id"] for one in document(url, "list", "--limit", "650")]
    assert len(found) == len(set(found)) == 650
    assert {one["id"] for one in document(url, "list", "--limit", "10000")} == set(ids)
    assert lacks(notify(url, "list", "--limit", "10").out.splitlines()[-1], "10 --limit") == []


# ------------------------------------------------------------------------------------------------------------- show


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pending", ["semel relay --once", "semel notify cancel"]),
        ("sending", ["+49…5678"]),
        ("accepted", ["attempt 1", "twilio", "SM1"]),
        ("delivered", ["callback: delivered"]),
        ("undelivered", ["bounced: a…@example.com is unknown", "semel notify resend"]),
        ("failed", ["attempt 1", "twilio", "refused", "semel notify resend"]),
        ("expired", ["not after"]),
        ("uncertain", ["no answer within 15 s", "--sent", "--not-sent", "--give-up"]),
        ("suppressed", ["guard", "24 hours"]),
        ("cancelled", ["anna", "the carrier says so"]),
    ],
)
def test_show_has_the_history_and_the_next_step(name: str, told: list[str], url: str, ids: dict[str, str]) -> None:
    out = notify(url, "show", ids[name][:12]).out
    assert ids[name] in out
    assert f"{name}: {describe.MEANING[name]}" in " ".join(out.split())
    assert [text for text in told if text not in out] == []
    assert SECRET not in out
    assert NUMBER not in out
    assert MAIL not in out


def test_a_suppressed_notification_names_the_message_that_suppressed_it(url: str, ids: dict[str, str]) -> None:
    assert document(url, "show", ids["suppressed"])["suppressed_by"] == ids["passed"]
    assert f"semel notify show {ids['passed'][:12]}" in notify(url, "show", ids["suppressed"]).out


def test_the_content_is_shown_with_reveal(url: str, ids: dict[str, str]) -> None:
    out = notify(url, "show", ids["pending"], "--reveal").out
    assert SECRET in out
    assert NUMBER in out
    whole = document(url, "show", ids["pending"], "--reveal")
    assert (whole["body"], whole["recipient"]) == (SECRET, NUMBER)
    assert "body" not in document(url, "show", ids["pending"])


def test_the_json_document_has_attempts_and_commands(url: str, ids: dict[str, str]) -> None:
    found = document(url, "show", ids["uncertain"])
    (attempt,) = found["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["evidence"]) == (1, "unknown", "no answer within 15 s")
    assert attempt["crossed"] <= attempt["ended"]
    assert found["due"] is None, "nobody but a person"
    assert any("--not-sent" in command for command in found["commands"])


def test_an_uncertain_notification_shows_when_a_relay_continues(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    by_policy = carry(url, notification("p", policy="presume_sent"), Unknown("reset"), policy_after_s=86_400.0)
    by_key = carry(url, notification("k"), Unknown("reset"), key=Key("Idempotency-Key"))
    out = " ".join(notify(url, "show", by_policy).out.split())
    assert lacks(out, "hours presume_sent") == []
    assert document(url, "show", by_policy)["due"] is not None
    told = " ".join(notify(url, "show", by_key).out.split())
    assert lacks(told, "relay key hours hold") == []
    next = document(url, "show", by_key)["next"]
    assert (next["exit"], next["policy"]) == ("replay", "hold")
    assert next["at"] < next["policy_at"]


def test_an_abandoned_notification_lists_the_possible_decisions(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    one = shown(url, carry(url, notification(), None))
    for now_ms, commands in ((one.due_ms - 1, 0), (one.due_ms, 3)):
        told, found = describe.next_for(one, [], now_ms)
        assert ("doubt" in told) == bool(commands)
        assert len(found) == commands


def test_the_json_document_has_the_next_step_and_its_time(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    terms: dict[str, Any] = {"looks_up": True, "settle_s": 3_600.0, "policy_after_s": 86_400.0}
    id = carry(url, notification("l", policy="give_up"), Unknown("reset"), **terms)
    found = document(url, "show", id)
    next = found["next"]
    assert (next["exit"], next["at"], next["policy"]) == ("look_up", found["due"], "give_up")
    assert next["at"] < next["policy_at"]
    assert next["says"] in " ".join(notify(url, "show", id).out.split())
    in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000))
    assert document(url, "show", id)["next"]["under_way"] is False, "it is not due"
    assert document(url, "show", carry(url, notification("a"), Accepted()))["next"]["exit"] is None


def test_a_notification_that_a_relay_is_resolving_has_no_time(tmp_path: Path) -> None:
    """Its `due` is the end of a lease, and no step is made then."""
    url = url_of(tmp_path)
    (id,) = add(url, notification())
    waiting = document(url, "show", id)["next"]
    in_box(url, lambda box: box.take({PROVIDER: Lane(10, PROVIDER)}, 3_600_000))
    taken = document(url, "show", id)["next"]
    assert [(one["exit"], one["under_way"]) for one in (waiting, taken)] == [("send", False), ("send", True)]
    assert taken["at"] is None
    assert " UTC" not in taken["says"]


def test_a_key_shows_its_newest_generation(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    first = carry(url, notification(), Accepted())
    assert notify(url, "resend", first, "--reason", "it was lost", "--yes").code == 0
    shown = document(url, "show", "--key", "order-1")
    assert shown["generation"] == 2
    assert shown["generations"] == [{"generation": 1, "id": first, "state": "accepted"}]
    assert f"semel notify resend {first[:12]}" not in notify(url, "show", first).out, "that was done"


def test_a_key_of_several_messages_is_refused(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = add(url, notification(), notification(recipient="+4930111222"))
    ended = notify(url, "show", "--key", "order-1")
    assert ended.code == 2
    assert [id for id in ids if id not in ended.err] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show",), "id --key"),
        (("show", "abcd", "--key", "x"), "id --key"),
        (("show", "xyz"), "32 hexadecimal"),
        (("show", "ab"), "32 hexadecimal 4"),
        (("show", "f" * 32), "notification"),
        (("show", "--key", "nix"), "key 'nix' --tenant"),
        (("status",), "--key"),
        (("status", "--key", "a", "--to", "b"), "--key"),
        (("list", "--since", "1h", "--until", "2h"), "--since --until"),
        (("list", "--since", "yesterday"), "--since 'yesterday'"),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[str, ...], words: str, url: str) -> None:
    ended = notify(url, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert lacks(ended.err, words) == []


def test_a_beginning_of_several_ids_is_refused_with_their_names(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    ids = add(url, *(notification(f"n-{number}") for number in range(1_200)))
    by_four: dict[str, list[str]] = {}
    for id in ids:
        by_four.setdefault(id[:4], []).append(id)
    shared = next((many for many in by_four.values() if len(many) > 1), None)
    assert shared is not None, "ids are digests of the keys above: always the same"
    ended = notify(url, "show", shared[0][:4])
    assert ended.code == 2
    assert [id for id in shared if id not in ended.err] == []
    assert document(url, "show", f"{shared[0][:12]}…")["id"] == shared[0], "as it stands in the list"


def test_a_long_body_is_cut_in_the_text_and_whole_in_json(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    body = "Grüße 😀\n" + "x" * 50_000
    (id,) = add(url, notification(body=body))
    out = notify(url, "show", id, "--reveal").out
    assert "Grüße 😀" in out
    assert "--json" in out
    assert len(out) < 30_000
    assert document(url, "show", id, "--reveal")["body"] == body


# ----------------------------------------------------------------------------------------------------------- status


def test_status_has_one_answer(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    add(url, notification("other", recipient="+4930111222"))

    def told(*arguments: str) -> Any:
        found = document(url, "status", *arguments)
        assert notify(url, "status", *arguments).out.startswith(f"{found['status']}: ")
        return found["status"]

    assert told("--to", NUMBER) == "never"
    add(url, notification("a"))
    assert told("--to", NUMBER) == "pending"
    carry(url, notification("b"), Unknown("reset"))
    assert told("--to", NUMBER) == "unknown"
    id = carry(url, notification("c", kind="promo"), Accepted("SM9", "201"))
    assert (told("--to", NUMBER), told("--to", NUMBER, "--kind", "shipping")) == ("sent", "unknown")
    assert (told("--key", "c"), told("--key", "c", "--tenant", "acme")) == ("sent", "never")
    apply_reports(url, "delivered", id, "callback")
    found = document(url, "status", "--key", "c")
    assert (found["id"], found["state"], found["provider"], found["reference"]) == (id, "delivered", "twilio", "SM9")
    assert found["evidence"] == "callback"


def test_status_reports_a_suppressed_notification_by_its_key(url: str, ids: dict[str, str]) -> None:
    found = document(url, "status", "--key", "suppressed")
    assert found["status"] == "suppressed"
    assert ids["passed"] in found["evidence"]


def test_the_evidence_of_a_status_is_masked(url: str) -> None:
    for options in ((), ("--json",)):
        out = notify(url, "status", "--key", "undelivered", *options).out
        assert "bounced" in out
        assert MAIL not in out


def test_content_that_a_provider_repeats_is_masked(tmp_path: Path) -> None:
    url, said = url_of(tmp_path), notification("echo-1", body=f"{SECRET}, and a few words more")
    id = carry(url, said, Unknown(f"500: text={said.body} to={NUMBER}"))
    sent = carry(url, notification("echo-2"), Accepted(f"ref{NUMBER}", f"202 {NUMBER}"))
    looks = (("list",), ("list", "--wide"), ("show", id), ("show", sent), ("status", "--key", "echo-1"))
    for look in (*looks, ("status", "--key", "echo-2")):
        for how in ((), ("--json",)):
            told = notify(url, *look, *how)
            assert told.code == 0, told
            assert SECRET not in told.out
            assert NUMBER[1:] not in told.out
    assert SECRET in notify(url, "show", id, "--reveal").out


@pytest.mark.parametrize(
    ("said", "needed"),
    [
        ({"provider": "sms-uk"}, "sms-uk"),
        ({"provider": ""}, "sms"),
        ({"provider": "", "recipient": MAIL, "channel": "email"}, "email"),
    ],
)
def test_a_pending_notification_names_the_provider_that_a_relay_needs(
    tmp_path: Path, said: dict[str, Any], needed: str
) -> None:
    """The outbox does not know the settings of any relay: whether one that runs has it, nobody can say here."""
    url = url_of(tmp_path)
    (id,) = add(url, notification(**said))
    assert lacks(document(url, "show", id)["next"]["says"], f"{needed} semel relay --once") == []


def test_a_pending_notification_with_an_attempt_waits_for_the_same_provider(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (id,) = add(url, notification(provider=""))
    one = shown(url, id)
    attempt_log = replace(one, delivery_state=DeliveryState(provider="second"))
    told, _ = describe.next_for(attempt_log, [], one.due_ms - 1)
    assert lacks(told, "relay second UTC") == []


def test_a_pending_notification_with_an_order_key_mentions_earlier_ones(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    first, second = add(url, notification("a", order=NUMBER), notification("b", order=NUMBER))
    for id in (first, second):
        says = document(url, "show", id)["next"]["says"]
        assert "order key" in says
        assert NUMBER not in says, "an order key may be a customer"


def test_status_names_the_failed_notification_and_its_reason(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    id = carry(url, notification("a"), Refused("no such number", final=True))
    found = document(url, "status", "--to", NUMBER)
    assert (found["status"], found["unsent"], found["id"]) == ("not_sent", 1, id)
    out = notify(url, "status", "--to", NUMBER).out
    assert lacks(out, f"1 failed {id[:12]}") == []
    assert "no such number" in out


def test_status_finds_a_number_in_another_spelling_or_adds_a_note(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    add(url, notification("a"))
    assert document(url, "status", "--to", f"00{NUMBER[1:3]} {NUMBER[3:]}")["status"] == "pending"
    national = notify(url, "status", "--to", f"0{NUMBER[3:]}")
    assert national.out.startswith("never: ")
    assert "country code" in national.out

"""`semel notify send`: one fact is one notification, however often it is said; and what cannot be said is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cli.command import semel, started
from tests.cli.notify.outboxes import (
    NUMBER,
    SECRET,
    add,
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

from semel.cli import notification_add
from semel.ledgers.sqlite.outbox import SqliteOutbox
from semel.values.delivery_state import Accepted
from semel.values.notification import CONTENT_MAX_BYTES, Notification
from semel.values.outbox import NotificationQuery, NotificationView

FACT = ("send", "--key", "o-1", "--kind", "shipping", "--to", NUMBER, "--channel", "sms")
SAID = (*FACT, "--body", SECRET)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An outbox with nothing in it."""
    in_box(url_of(tmp_path), lambda box: box.find(NotificationQuery()))
    return url_of(tmp_path)


def test_send_adds_a_notification_and_mentions_the_relay(url: str) -> None:
    ended = notify(url, *SAID)
    assert ended.code == 0
    assert ended.out.startswith("added")
    assert "semel relay --once" in ended.out
    assert NUMBER not in ended.out
    assert SECRET not in ended.out
    (one,) = document(url, "list", "--reveal")
    assert one["id"] in ended.out
    assert (one["key"], one["kind"], one["recipient"], one["channel"]) == ("o-1", "shipping", NUMBER, "sms")
    assert (one["body"], one["state"], one["generation"]) == (SECRET, "pending", 1)


def test_the_same_call_again_is_known(url: str) -> None:
    first = document(url, *SAID)
    again = document(url, *SAID)
    assert (first["status"], again["status"], again["id"]) == ("added", "known", first["id"])
    assert len(document(url, "list")) == 1
    assert lacks(notify(url, *SAID).out, "known: pending") == []


def test_options_of_a_second_call_are_ignored_and_reported(url: str) -> None:
    notify(url, *SAID)
    ended = notify(url, *SAID, "--priority", "0", "--not-after", "2h")
    assert ended.code == 0
    assert lacks(ended.out, "not after priority") == []
    assert document(url, *SAID, "--priority", "0", "--not-after", "2h")["not_changed"]
    assert shown(url, document(url, *SAID)["id"]).notification.priority == 5


def test_another_content_is_a_conflict_that_names_the_fields(url: str) -> None:
    document(url, *SAID)
    ended = notify(url, *FACT, "--body", "something else", "--subject", "x")
    assert ended.code == 1
    assert "conflict: " in ended.out
    assert "(body, subject)" in ended.out
    conflict = notify(url, *FACT, "--body", "something else", "--json")
    assert (conflict.code, conflict.json["status"], conflict.json["differs"]) == (1, "conflict", ["body"])
    (one,) = document(url, "list", "--reveal")
    assert one["body"] == SECRET, "the first one is untouched"


@pytest.mark.parametrize("known", ["nothing", "the same", "another"])
def test_a_dry_run_shows_the_result_and_changes_nothing(known: str, url: str) -> None:
    if known != "nothing":
        add(url, notification("o-1", provider="", body=SECRET if known == "the same" else "before"))
    before = document(url, "list")
    ended = notify(url, *SAID, "--dry-run", "--guard", "24h", "--order", "c-1")
    told = notify(url, *SAID, "--dry-run", "--guard", "24h", "--order", "c-1", "--json")
    assert ended.code == told.code == (1 if known == "another" else 0)
    assert told.json["status"] == {"nothing": "added", "the same": "known", "another": "conflict"}[known]
    assert told.json["dry_run"]
    assert "24 hours" in ended.out
    assert document(url, "list") == before


def test_every_option_of_send_is_stored(url: str) -> None:
    asked = (
        *("--subject", "S", "--sender", "+49111", "--template", "t-1", "--data", '{"name": "Zoë", "n": 2}'),
        *("--provider", "twilio", "--priority", "1", "--order", "cust-1", "--not-after", "2126-01-01T10:00"),
        *("--guard", "7d", "--guard-key", "promo-x", "--policy", "presume_sent", "--tenant", "acme"),
    )
    said = shown(url, document(url, *SAID, *asked)["id"]).notification
    assert (said.subject, said.sender, said.template, said.data) == ("S", "+49111", "t-1", {"name": "Zoë", "n": 2})
    assert (said.provider, said.priority, said.order, said.policy, said.tenant) == (
        *("twilio", 1, "cust-1", "presume_sent"),
        "acme",
    )
    assert said.guard is not None
    assert (said.guard.window_s, said.guard.key) == (7 * 86_400, "promo-x")
    assert said.not_after is not None
    assert said.not_after.isoformat() == "2126-01-01T10:00:00+00:00"


def test_a_body_comes_from_a_file_or_a_pipe_without_the_last_line_feed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "body.txt"
    file.write_text("Grüße 😀\nzweite Zeile\n", "utf-8")
    first = document(url, *FACT, "--body-file", str(file))
    assert shown(url, first["id"]).notification.body == "Grüße 😀\nzweite Zeile"
    process = started(
        *("notify", *FACT, "--body-file", "-", "--ledger", url, "--json"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate("Grüße 😀\nzweite Zeile\n", timeout=60)
    assert process.returncode == 0, err
    assert '"status": "known"' in out, "the same bytes, by another way"


def test_the_body_of_an_event_is_a_document(url: str) -> None:
    said = ("send", "--key", "e", "--kind", "e", "--to", "flow", "--channel", "event", "--body", '{"a": [1, "é"]}')
    assert shown(url, document(url, *said)["id"]).notification.body == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (FACT, "body template"),
        ((*SAID, "--body-file", "x"), "--body --body-file"),
        ((*FACT, "--body", " \n"), "body empty"),
        ((*FACT, "--body-file", "/nowhere/at/all"), "No such file"),
        ((*SAID, "--data", "[1]"), "--data JSON object"),
        ((*SAID, "--data", '{"a": 1, "a": 2}'), "--data"),
        ((*SAID, "--guard", "soon"), "--guard 'soon'"),
        ((*SAID, "--guard", "0s"), "--guard '0s'"),
        ((*SAID, "--guard", "999w"), "guard.window_s"),
        ((*SAID, "--guard-key", "x"), "--guard-key --guard"),
        ((*SAID, "--not-after", "tomorrow"), "--not-after 'tomorrow'"),
        ((*SAID, "--not-after", "2020-01-01"), "--not-after 2020-01-01"),
        ((*SAID, "--channel", "event"), "--body JSON"),
        ((*FACT, "--body", "x" * (CONTENT_MAX_BYTES + 1)), f"{CONTENT_MAX_BYTES:,}"),
        ((*SAID, "--key", " o-1"), "key space"),
        ((*SAID, "--to", "+49\x1b[31m"), "recipient"),
        ((*SAID, "--priority", "10"), "--priority"),
        ((*SAID, "--channel", "pigeon"), "--channel"),
        ((*SAID, "--policy", "hope"), "--policy"),
        (("send", "--kind", "a", "--to", "b", "--channel", "sms", "--body", "x"), "--key"),
    ],
)
def test_a_notification_that_cannot_be_sent_is_refused(arguments: tuple[str, ...], words: str, url: str) -> None:
    ended = notify(url, *arguments)
    assert ended.code == 2
    assert lacks(ended.err, words) == []
    assert document(url, "list") == []


def test_a_file_that_is_no_text_or_too_large_is_refused(url: str, tmp_path: Path) -> None:
    file = tmp_path / "body"
    for raw, words in ((b"ab\xff", "UTF-8 byte 2"), (b"x" * (CONTENT_MAX_BYTES + 1), f"{CONTENT_MAX_BYTES:,} bytes")):
        file.write_bytes(raw)
        ended = notify(url, *FACT, "--body-file", str(file))
        assert (ended.code, lacks(ended.err, words)) == (2, [])
    assert document(url, "list") == []


def test_a_finished_or_erased_notification_is_known_too(url: str) -> None:
    """Whatever became of it: the same call sends nothing."""
    id = carry(url, notification("o-1", provider="twilio"), Accepted())
    assert document(url, *SAID)["status"] == "known"
    assert notify(url, "erase", "--to", NUMBER, "--reason", "asked for", "--yes").code == 0
    again = document(url, *FACT, "--body", "nobody can tell any more whether this is the same")
    assert (again["status"], again["id"]) == ("known", id)
    assert state(url, id) == "accepted"


def test_a_missing_provider_is_reported(tmp_path: Path) -> None:
    in_box(url_of(tmp_path), lambda box: box.find(NotificationQuery()))
    settings = tmp_path / "semel.toml"
    settings.write_text(f'ledger = "{url_of(tmp_path)}"\n', "utf-8")
    access = notification_add.access_by_settings(settings)
    assert "no provider" in notification_add.missing_provider(access, "", "sms")
    assert "no provider 'x'" in notification_add.missing_provider(access, "x", "sms")
    mail = '[providers.mail]\nkind = "smtp"\nhost = "mail.example.com"\nsender = "a@example.com"\n'
    settings.write_text(f'ledger = "{url_of(tmp_path)}"\n{mail}', "utf-8")
    access = notification_add.access_by_settings(settings)
    assert lacks(notification_add.missing_provider(access, "", "sms"), "no provider sms") == []
    assert (
        notification_add.missing_provider(access, "", "email")
        == notification_add.missing_provider(access, "mail", "email")
        == ""
    )


def test_a_provider_of_another_tenant_is_refused_and_nothing_is_added(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    in_box(url, lambda box: box.find(NotificationQuery()))
    mail = '[providers.mail]\nkind = "smtp"\nhost = "mail.example.com"\nsender = "a@example.com"\ntenants = ["acme"]\n'
    settings = tmp_path / "semel.toml"
    settings.write_text(f'ledger = "{url}"\n{mail}', "utf-8")
    said = (
        "--key",
        "o-1",
        "--kind",
        "k",
        "--to",
        "m@example.com",
        "--channel",
        "email",
        "--subject",
        "s",
        "--body",
        "b",
    )
    refused = semel("notify", "send", *said, "--tenant", "globex", "-c", str(settings))
    assert (refused.code, "globex" in refused.err) == (2, True)
    assert document(url, "list") == []
    assert semel("notify", "send", *said, "--tenant", "acme", "-c", str(settings)).code == 0


def test_a_faster_caller_makes_the_notification_known(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the adding another process adds it, with another content: the outbox decides."""
    first = Notification(key="o-1", kind="shipping", recipient=NUMBER, channel="sms", body="first")
    look = SqliteOutbox.show

    async def show(outbox: SqliteOutbox, id: bytes) -> NotificationView | None:
        found = await look(outbox, id)
        if found is None:
            await outbox.add([first])
        return found

    monkeypatch.setattr(SqliteOutbox, "show", show)
    ended = notify(url, *SAID, "--json")
    assert (ended.code, ended.json["status"], ended.json["differs"]) == (1, "conflict", ["body"])

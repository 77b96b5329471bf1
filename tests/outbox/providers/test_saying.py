"""Rendering of notifications: documents with placeholders, and mails as bytes."""

from __future__ import annotations

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as mail_policy
from typing import Any

import pytest
from tests.outbox.providers.kits import text

from semel.providers.callbacks import parse_id, to_milliseconds
from semel.providers.rendering import (
    Mail,
    MailAddress,
    check_template,
    fill_template,
    insert_key,
    mail_bytes,
    parse_address,
)
from semel.testing.provider_laws import dispatch_of
from semel.values.errors import ConfigError


def test_placeholders_are_filled_from_the_message() -> None:
    template = {
        "to": "{recipient}",
        "doc": "{body}",
        "note": "for {kind}: {data.count} of {{all}}",
        "list": ["{data.tags}", 5, None, True],
        "id": "{id}",
        "from": "{sender}",
    }
    check_template(template, "body")
    said = text("n", body={"a": [1]}, data={"count": 3, "tags": ["x"]})
    filled = fill_template(template, dispatch_of(said), "+490")
    assert filled == {
        "to": said.recipient,
        "doc": {"a": [1]},
        "note": "for k: 3 of {all}",
        "list": [["x"], 5, None, True],
        "id": said.id.hex(),
        "from": "+490",
    }


def test_text_of_a_customer_is_not_a_placeholder() -> None:
    said = text("n", body="{id} {data.secret}")
    assert fill_template("Text: {body}", dispatch_of(said), "") == "Text: {id} {data.secret}"


@pytest.mark.parametrize("template", ["{nothing}", "{data.}", "{", "}", "{a b}", {"x": ["{"]}, {1: "x"}, object()])
def test_an_unknown_placeholder_is_reported_at_start_up(template: Any) -> None:
    with pytest.raises(ConfigError):
        check_template(template, "body")


def test_a_message_without_a_value_for_a_placeholder_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="'note'"):
        fill_template({"a": "{data.note}"}, dispatch_of(text("n")), "")
    with pytest.raises(ConfigError, match="body"):
        fill_template("x {body}", dispatch_of(text("n", body={"a": 1})), "")


def test_a_key_is_inserted_at_its_path_and_replaces_nothing() -> None:
    document = {"meta": {"a": 1}}
    assert insert_key(document, "meta.key", "k") == {"meta": {"a": 1, "key": "k"}}
    assert document == {"meta": {"a": 1}}, "what the caller gave is the caller's"
    assert insert_key({}, "a.b.c", "k") == {"a": {"b": {"c": "k"}}}
    for path in ("meta", "meta.a", "meta.a.b"):
        with pytest.raises(ConfigError):
            insert_key(document, path, "k")


MAILS = [
    Mail("to@example.test", MailAddress("me@example.test"), "Plain", "Hello\n.\n.. dots\n"),
    Mail("to@example.test", MailAddress("me@example.test", "Grüße, GmbH"), "Ü" * 300, "x" * 10_000, "<p>é</p>"),
    Mail("to@example.test", MailAddress("me@example.test", "A (b) c"), "=?utf-8?q?not?=", "", "<b>only</b>"),
    Mail("to@example.test", MailAddress("me@example.test"), "a" * 998, "\r\n\r\n.\r\nQUIT\r\n"),
]


@pytest.mark.parametrize("mail", MAILS)
def test_a_mail_is_read_as_it_was_written(mail: Mail) -> None:
    raw = mail_bytes(mail, "id@example.test", "semel-b", 1_750_000_000_000)
    assert raw == mail_bytes(mail, "id@example.test", "semel-b", 1_750_000_000_000)
    assert raw.isascii()
    assert max(len(line) for line in raw.split("\r\n")) <= 78
    assert "\n" not in raw.replace("\r\n", "")
    read = message_from_bytes(raw.encode(), _class=EmailMessage, policy=mail_policy)
    assert (str(read["Subject"]), str(read["Message-ID"])) == (mail.subject, "<id@example.test>")
    (sender,) = read["From"].addresses
    assert (sender.display_name, sender.addr_spec) == (mail.sender.name, mail.sender.email)
    assert str(read["Date"]) == "Sun, 15 Jun 2025 15:06:40 -0000"
    parts = {part.get_content_type(): part.get_payload(decode=True) for part in read.walk() if not part.is_multipart()}
    expected = {"text/plain": mail.text.encode(), "text/html": mail.html.encode()}
    assert parts == {kind: value for kind, value in expected.items() if value}


@pytest.mark.parametrize(
    "written",
    ["", "a", "a@b@c", "a b@c.d", "<a@b.c", "x <a@b.c> y", "a@b.c\r\nBcc: d@e.f", "A <a@b.c>, B <d@e.f>", "@b"],
)
def test_a_malformed_address_is_not_a_sender(written: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(written, "x")


def test_an_address_may_have_a_name() -> None:
    assert parse_address("Grüße GmbH <a@b.c>", "x") == MailAddress("a@b.c", "Grüße GmbH")
    assert parse_address("<a@b.c>", "x") == parse_address("a@b.c", "x") == MailAddress("a@b.c")


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1_750_000_000, 1_750_000_000_000),
        ("2025-06-15T15:06:40Z", 1_750_000_000_000),
        ("2025-06-15T15:06:40", 1_750_000_000_000),
        (True, 0),
        (-1, 0),
        (float("nan"), 0),
        (float("inf"), 0),
        ("yesterday", 0),
        ("0001-01-01T00:00:00+23:59", 0),
        (None, 0),
    ],
)
def test_times_of_callbacks_are_parsed_or_ignored(value: Any, ms: int) -> None:
    assert to_milliseconds(value) == ms


def test_a_notification_id_is_recognised_by_its_form() -> None:
    assert parse_id("0a" * 16) == b"\x0a" * 16
    for other in ("0A" * 16, "0a" * 15, "0a" * 17, "", None, 5, "٠" * 32):
        assert parse_id(other) is None


@pytest.mark.parametrize("name", ["A\r\nfoo", "A\nBcc x", "A\x00b", "A\x0bb"])
def test_a_name_that_is_more_than_one_line_is_no_sender(name: str) -> None:
    """Who writes rows by hand is not asked by anybody before."""
    with pytest.raises(ConfigError, match="sender"):
        parse_address(f"{name} <a@b.example>", "smtp")

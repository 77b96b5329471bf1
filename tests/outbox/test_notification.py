"""What makes two calls the same notification."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values.errors import ConfigError
from semel.values.notification import CONTENT_MAX_BYTES, Guard, Notification, notification_id, read_content


def notification(**changes: Any) -> Notification:
    said: dict[str, Any] = {
        "key": "order-1",
        "kind": "shipping",
        "recipient": "+4912345",
        "channel": "sms",
        "body": "On its way",
        **changes,
    }
    return Notification(**said)


IDENTITY = {
    "key": "order-2",
    "kind": "reminder",
    "recipient": "+4954321",
    "channel": "email",
    "tenant": "acme",
    "generation": 2,
}


@pytest.mark.parametrize("name", IDENTITY)
def test_each_part_of_the_identity_makes_another_notification(name: str) -> None:
    assert notification().id != notification(**{name: IDENTITY[name]}).id


@pytest.mark.parametrize(
    "changes",
    [{"body": "other"}, {"priority": 1}, {"order": "c-1"}, {"guard": Guard(window_s=60)}, {"policy": "resend"}],
)
def test_nothing_else_does(changes: dict[str, Any]) -> None:
    assert notification().id == notification(**changes).id


@given(st.lists(st.text(max_size=4), min_size=10, max_size=10))
def test_no_two_identities_share_an_id(parts: list[str]) -> None:
    texts = [part.encode("utf-8", "replace").decode() for part in parts]
    a, b, c, d, e, *other = texts
    same = notification_id(a, b, c, d, e, 1) == notification_id(*other, generation=1)  # type: ignore[misc, arg-type]
    assert same == ([a, b, c, d, e] == other)


def test_content_has_one_spelling() -> None:
    one = notification(channel="event", body={"b": 1, "a": [1, 2]}, data={"y": "é", "x": None})
    other = notification(channel="event", body={"a": [1, 2], "b": 1}, data={"x": None, "y": "é"})
    assert one.content == other.content
    assert read_content(one.content).body == {"a": [1, 2], "b": 1}


def test_a_guard_watches_a_recipient_and_a_kind_or_what_the_caller_chose() -> None:
    window = Guard(window_s=3600)
    assert notification().guarded_by is None
    assert notification(guard=window).guarded_by == notification(guard=window, key="another order").guarded_by
    assert notification(guard=window).guarded_by != notification(guard=window, recipient="+49").guarded_by
    assert notification(guard=window).guarded_by != notification(guard=window, tenant="acme").guarded_by
    chosen = Guard(window_s=3600, key="household-7")
    assert notification(guard=chosen).guarded_by == notification(guard=chosen, recipient="+49", kind="x").guarded_by


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": ""}, "key"),
        ({"key": " order"}, "key"),
        ({"recipient": "+49\n"}, "recipient"),
        ({"recipient": "x" * 301}, "recipient"),
        ({"kind": "a\ud800"}, "kind"),
        ({"channel": "fax"}, "sms, email"),
        ({"body": None}, "body.*template"),
        ({"policy": "hope"}, "hold"),
        ({"priority": 10}, "priority"),
        ({"priority": True}, "priority"),
        ({"generation": 0}, "generation"),
        ({"not_after": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the mistake
        ({"guard": Guard(window_s=0)}, "window"),
    ],
)
def test_what_is_wrong_is_told_when_it_is_made(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        notification(**changes)


@pytest.mark.parametrize("body", [object(), {1: object()}, "x" * CONTENT_MAX_BYTES, "\ud800"])
def test_a_content_that_cannot_be_kept_is_refused(body: object) -> None:
    with pytest.raises(ConfigError):
        _ = notification(channel="event", body=body).content


def test_a_template_needs_no_body() -> None:
    asked = notification(body=None, template="t-1", data={"name": "Ada"}, not_after=datetime(2026, 1, 1, tzinfo=UTC))
    assert read_content(asked.content).template == "t-1"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"body": b"Hello"}, "body: expected a text or a document, got bytes"),
        ({"body": 7}, "body: expected a text or a document, got int"),
        ({"body": "  "}, "body: the text is empty"),
        ({"subject": 5}, "subject: expected a text"),
        ({"template": "t", "data": [1]}, "data: expected the fields of the template"),
        ({"data": {1: 2}}, "data: expected the fields of the template"),
        ({"guard": 3600}, "guard: expected a Guard"),
        ({"guard": Guard(window_s="1d")}, "guard.window_s='1d': expected seconds"),  # type: ignore[arg-type]
        ({"not_after": "2026-01-01"}, "not_after: expected a datetime with its zone"),
        ({"not_after": 3600}, "not_after: expected a datetime with its zone"),
    ],
)
def test_what_python_lets_through_is_refused_where_it_is_said(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        notification(**wrong)


@pytest.mark.parametrize(
    "said", [{"body": None, "template": "hello", "data": {"name": "Anna"}}, {"body": {"name": "Anna"}}]
)
def test_whoever_writes_on_in_the_same_document_does_not_change_what_was_said(said: dict[str, Any]) -> None:
    """In a loop over customers, each would get what the last one is told."""
    one = notification(channel="event", **said)
    before = one.content
    (said.get("data") or said["body"])["name"] = "Bert"
    assert one.content == before

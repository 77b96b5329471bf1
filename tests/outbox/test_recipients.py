"""One customer has one recipient text, however the number or the address is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values import notification as recipients
from semel.values.notification import Guard, Notification, notification_id
from semel.values.notification_codec import guard_of, notification_of

E164 = "+491701234567"
SPELLINGS = [
    E164,
    "+49 170 1234567",
    "+49-170-123-4567",
    "+49 (170) 123.4567",
    "+49 (0)170 1234567",
    "0049 170 1234567",
    "00491701234567",
    "tel:+491701234567",
    "+49/170/1234567",
]
NOT_INTERNATIONAL = [
    "0170 1234567",
    "01701234567",
    "12345",
    "joe",
    "+0170123456",
    "+49",
    "+4917012345678901234",
    "49170 12",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_an_international_number_has_one_spelling(text: str) -> None:
    assert recipients.e164(text) == E164
    assert recipients.normal("sms", text) == recipients.normal("voice", text) == E164
    assert recipients.matching_note(text) == ""


@pytest.mark.parametrize("text", NOT_INTERNATIONAL)
def test_what_is_no_international_number_stays_as_it_is(text: str) -> None:
    assert recipients.e164(text) is None
    assert recipients.normal("sms", text) == text
    assert recipients.matching_note(text)


def test_a_number_without_its_country_says_that_it_cannot_be_matched() -> None:
    assert "country" in recipients.matching_note("0170 1234567")
    assert "country" not in recipients.matching_note("joe")


def test_the_domain_of_an_address_is_compared_without_case_and_its_name_is_not() -> None:
    assert recipients.normal("email", "Maria@Example.COM") == "Maria@example.com"
    assert recipients.normal("email", "maria@example.com") != recipients.normal("email", "Maria@example.com")


@pytest.mark.parametrize("channel", ["message", "event"])
def test_ids_of_platforms_stay_as_they_are(channel: str) -> None:
    for id in ("0049170123456", "ID@Platform", "+49 170 1234567"):
        assert recipients.normal(channel, id) == id


def test_two_spellings_are_one_notification_with_one_guard() -> None:
    guard = Guard(window_s=3600.0)
    made = [Notification(key="k", kind="s", recipient=one, channel="sms", body="b", guard=guard) for one in SPELLINGS]
    assert {one.id for one in made} == {made[0].id}
    assert {one.guarded_by for one in made} == {made[0].guarded_by}
    assert {one.recipient for one in made} == {E164}


def test_what_was_stored_in_another_spelling_keeps_it_with_its_id_and_its_guard() -> None:
    options, older = b'{"guard":{"window_s":3600.0,"key":""}}', "+49 170 1234567"
    stored = notification_of("t", "k", "s", older, "sms", 1, b'{"body":"b"}', options)
    assert stored.recipient == older
    assert stored.id == notification_id("t", "k", "s", older, "sms", 1)
    assert stored.guarded_by == guard_of("t", older, "s", options)


@given(st.text(max_size=40))
def test_a_normal_form_is_its_own_normal_form(text: str) -> None:
    for channel in ("sms", "email", "message"):
        once = recipients.normal(channel, text)
        assert recipients.normal(channel, once) == once

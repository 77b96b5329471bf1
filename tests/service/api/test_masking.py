"""What is shown of a customer: enough to recognise, too little to write to."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values.notification import Notification
from semel.values.redaction import (
    ERASED,
    HIDDEN_LEAST,
    NAMED_LEAST,
    REPEATED_LEAST,
    _common_grams,
    hidden,
    masked_content,
    masked_recipient,
    without,
)


@pytest.mark.parametrize(
    ("recipient", "shown"),
    [
        ("+4917012345678", "+49…5678"),
        ("004917012345678", "00…5678"),
        ("maria@example.com", "m…@example.com"),
        ("ada@example.com", "…@example.com"),
        ("2f1c9a0e-77aa-4b1f-9c3d-00aa9f3c", "…9f3c"),
        ("+49170", "+4…"),
        ("112", "…"),
        ("", ""),
        (ERASED, ERASED),
    ],
)
def test_a_recipient_is_shown_by_its_ends(recipient: str, shown: str) -> None:
    assert masked_recipient(recipient) == shown


@given(st.text("+0123456789abc@.-", min_size=1, max_size=40))
def test_enough_is_always_hidden(recipient: str) -> None:
    name, at, domain = recipient.rpartition("@")
    shown = masked_recipient(recipient)
    hidden = len(name) if at and name and domain else len(recipient)
    visible = len(shown) - 1 - (1 + len(domain) if at and name and domain else 0)
    assert hidden - visible >= min(HIDDEN_LEAST, hidden)


def test_a_text_that_names_the_recipient_does_not_any_more() -> None:
    assert without("order for +4917012345678", "+4917012345678") == "order for +49…5678"
    assert without("order-1", "1") == "order-1"
    assert without("order-1", "") == "order-1"


def test_a_content_is_shown_by_its_kind_and_length() -> None:
    def one(**said: object) -> str:
        asked = {"key": "k", "kind": "k", "recipient": "r", "channel": "event", **said}
        return masked_content(Notification(**asked))  # type: ignore[arg-type]

    assert re.fullmatch(r"text \D*6\D*", one(body="secret"))
    assert re.fullmatch(r"template \D*1\D*", one(template="t", data={"name": "Ada"}))
    assert "Ada" not in one(template="t", data={"name": "Ada"})
    assert re.fullmatch(r"document \D*\d+\D*", one(body={"name": "Ada"}))
    assert "Ada" not in one(body={"name": "Ada"})
    assert re.fullmatch(r"text \D*1\D*subject \D*4\D*", one(body="x", subject="hush"))
    assert "hush" not in one(body="x", subject="hush")


@pytest.mark.parametrize(
    "spelled",
    ["+491701234567", "491701234567", "%2B491701234567", "+49 170 1234567", "+49 (170) 123-4567", "01701234567"],
)
def test_a_number_is_hidden_however_it_is_spelled(spelled: str) -> None:
    told = without(f"400: 'To' {spelled} is not valid (21211)", "+491701234567")
    assert "1234567" not in told.replace("-", "")
    assert told.startswith("400: 'To' ")
    assert told.endswith("4567 is not valid (21211)")


def test_the_end_of_a_number_is_hidden_with_the_digits_before_it() -> None:
    recipient = "+4917012345678"
    shown = masked_recipient(recipient)
    assert without("0 12345678, +12345678 and 912345678.", recipient) == f"0 {shown}, {shown} and {shown}."
    assert without("12345678" * 3, recipient) == shown * 3


@pytest.mark.parametrize(
    "spelled", ["Anna.Muster@example.com", "anna.muster%40example.com", "anna.muster\\u0040example.com"]
)
def test_an_address_is_hidden_however_it_is_spelled(spelled: str) -> None:
    assert without(f"550 <{spelled}> unknown", "anna.muster@example.com") == "550 <a…@example.com> unknown"


def to_anna(**said: Any) -> Notification:
    return Notification(key="k", kind="k", recipient="+491701234567", **said)


TEXT = "Grüße! Your code is 998877, it is good for 5 minutes."


@pytest.mark.parametrize(
    "echo",
    [
        TEXT,
        TEXT[:-20],
        "Gr%C3%BC%C3%9Fe%21%20Your%20code%20is%20998877%2C%20it%20is",
        "Gr%C3%BC%C3%9Fe%21+Your+code+is+998877",
        r"Gr\u00fc\u00dfe! Your code is 998877, it is good",
        "YOUR CODE IS 998877, IT",
    ],
)
def test_a_response_does_not_contain_the_message(echo: str) -> None:
    said = to_anna(channel="sms", body=TEXT)
    told = hidden(f'400: {{"text": "{echo}", "error": "it is too long"}}', said)
    assert "998877" not in told
    assert told.startswith('400: {"text": "')
    assert told.endswith('"error": "it is too long"}')


def test_the_content_of_a_template_or_document_is_masked_too() -> None:
    templated = to_anna(channel="email", template="t", data={"code": "998877", "n": 123456, "ok": True})
    assert hidden("code 998877 and 123456: True", templated) == "code … and …: True"
    nested = to_anna(channel="event", body={"a": [{"b": "a diagnosis of theirs"}]})
    assert hidden("no a diagnosis of theirs here", nested) == "no … here"
    cyrillic = to_anna(channel="sms", body="Ваш код 998877, никому не говорите")
    assert hidden("400: Ваш код 998877, ник", cyrillic) == "400: …"


def test_ordinary_words_of_an_answer_stay() -> None:
    said = to_anna(channel="sms", body="Call this phone number.")
    told = "400: the phone number is not valid; request 0b1d4a77"
    assert hidden(told, said) == told


@given(st.text(max_size=60), st.text("abcäß 0123.-\n", min_size=24, max_size=60), st.text(max_size=60))
def test_a_whole_content_never_stays(before: str, body: str, after: str) -> None:
    told = hidden(f"{before} {body} {after}", to_anna(channel="event", body=body))
    assert body not in told or sum(char.isalnum() for char in body) < NAMED_LEAST


def test_escapes_that_could_be_read_in_many_ways_are_read_once() -> None:
    """Tried one way after the other, this would take longer than the earth is old."""
    recipient = "41" * 40 + "9"
    assert without("%41" * 80, recipient) == "%41" * 80
    assert without("to 41%2041" + "41" * 38 + "9", recipient) == f"to {masked_recipient(recipient)}"


def test_of_contents_that_overlap_in_a_text_nothing_is_left() -> None:
    asked = {
        "key": "k",
        "kind": "k",
        "recipient": "r",
        "channel": "event",
        "body": ["Your code is 4711-0815", "0815-77"],
    }
    said = Notification(**asked)  # type: ignore[arg-type]
    assert hidden("400: Your code is 4711-0815-77", said) == "400: …"
    assert hidden("400: 0815-77 your code", said) == "400: … your code"


def test_the_content_of_a_large_document_is_masked_too() -> None:
    words = [f"value{number:05d}" for number in range(10_000)]
    asked = {"key": "k", "kind": "k", "recipient": "r", "channel": "event", "body": {"all": words}}
    said = Notification(**asked)  # type: ignore[arg-type]
    assert hidden("400: value09999 and value 00001 are wrong", said) == "400: … and … are wrong"


@given(st.text("ab\n", max_size=60), st.text("ab", max_size=40))
def test_the_quick_comparison_finds_what_a_plain_one_finds(long: str, words: str) -> None:
    pieces = {words[at : at + REPEATED_LEAST] for at in range(len(words) - REPEATED_LEAST + 1)}
    assert _common_grams(words, long) == {piece for piece in pieces if piece in long}

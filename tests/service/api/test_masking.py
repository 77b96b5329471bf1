"""What is shown of a customer: enough to recognise, too little to write to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values.masking import ERASED, HIDDEN_LEAST, masked_content, masked_recipient, without
from semel.values.notification import Notification


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

    assert one(body="secret") == "text of 6 characters"
    assert one(template="t", data={"name": "Ada"}) == "template with 1 field"
    assert one(body={"name": "Ada"}).startswith("document of ")
    assert one(body="x", subject="hush") == "text of 1 character, subject of 4 characters"

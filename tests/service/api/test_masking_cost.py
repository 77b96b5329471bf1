"""Masking is linear: four times as much text, content or rows costs about four times as much time and memory.

A sender chooses the recipient and the content, a provider the text about both. So each case is one that a sender or a
provider could craft to make a search start again at every character.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest

from semel.service.api.notifications import line, page_response
from semel.values.notification import TEXT_MAX, Notification
from semel.values.outbox import NotificationQuery, NotificationView
from semel.values.redaction import hidden, without

pytestmark = pytest.mark.long  # each takes a second of processor time

TIMES_LARGER = 4
GROWTH_MAX = 2.5**2  # twice as large costs at most 2.5 times as much; a quadratic search costs 16 times as much here
ROUNDS = 3  # the least of them counts: another process can only add to it
SMALL = 4_000  # characters: many times the longest recipient
ROWS = 20

RECIPIENTS = {
    "a number": "+4917012345678",
    "one digit": "1" * TEXT_MAX,
    "one digit and another": "1" * (TEXT_MAX - 1) + "2",
    "one letter and another": "a" * (TEXT_MAX - 1) + "b",
}
TEXTS: dict[str, Callable[[str], str]] = {
    "its first character": lambda recipient: recipient[0],
    "all but its last character": lambda recipient: recipient[:-1] + "!",
    "the recipient itself": lambda recipient: f"{recipient} ",
    "digits": lambda recipient: "1",
    "other digits": lambda recipient: "9",
    "digits with escapes between": lambda recipient: "1%20",
    "digits with gaps": lambda recipient: "1   ",
}


def cost_s(act: Callable[[], object]) -> float:
    """Processor time of this thread, so that other load on the machine hardly counts."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        act()
        rounds.append(time.thread_time() - began)
    return min(rounds)


def peak_bytes(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def repeated(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("recipient", RECIPIENTS)
def test_hiding_a_recipient_is_linear_in_the_text(recipient: str, text: str) -> None:
    whom = RECIPIENTS[recipient]
    piece = TEXTS[text](whom)
    small, large = (partial(without, repeated(piece, size), whom) for size in (SMALL, SMALL * TIMES_LARGER))
    assert cost_s(large) <= cost_s(small) * GROWTH_MAX


CONTENTS: dict[str, str] = {
    "one letter": "a",
    "words": "an appointment tomorrow ",
    "pieces of the text": "aaaaaaaaaaab",
}


def notification(content: str, size: int, recipient: str = "1" * TEXT_MAX) -> Notification:
    return Notification(key="k", kind="k", recipient=recipient, channel="event", body=repeated(content, size))


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("text", ["a", "appointment tomorrow ", "aaaaaaaaaaac"])
def test_hiding_a_content_is_linear_in_the_text_and_in_the_content(content: str, text: str) -> None:
    def hide(text_size: int, content_size: int) -> Callable[[], str]:
        return partial(hidden, repeated(text, text_size), notification(CONTENTS[content], content_size))

    small, large = SMALL, SMALL * TIMES_LARGER
    base_s = cost_s(hide(small, small))
    assert cost_s(hide(large, small)) <= base_s * GROWTH_MAX
    assert cost_s(hide(small, large)) <= base_s * GROWTH_MAX
    assert cost_s(hide(large, large)) <= base_s * GROWTH_MAX


def page(rows: int, size: int) -> Callable[[], object]:
    """Writes a page of failed notifications whose reasons repeat a crafted recipient and a crafted content."""
    reason = "400: " + "1" * 500 + " " + "a" * 500
    shown = [
        NotificationView(
            id=f"{number:032x}",
            state="failed",
            notification=notification("a", size, recipient="1" * (TEXT_MAX - 1) + "2"),
            provider="p",
            reason=reason,
            added_ms=1,
            changed_ms=1,
            due_ms=0,
        )
        for number in range(rows)
    ]
    return partial(page_response, shown, NotificationQuery(tenant="", limit=rows), partial(line, revealed=False))


@pytest.mark.parametrize(("rows", "size"), [(ROWS * TIMES_LARGER, SMALL), (ROWS, SMALL * TIMES_LARGER)])
def test_a_page_is_linear_in_its_rows_and_in_its_contents(rows: int, size: int) -> None:
    small, large = page(ROWS, SMALL), page(rows, size)
    assert cost_s(large) <= cost_s(small) * GROWTH_MAX
    assert peak_bytes(large) <= peak_bytes(small) * GROWTH_MAX

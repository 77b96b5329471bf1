"""The header Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.values.retry import AFTER_MAX_S, seconds

NOW = datetime(1994, 11, 6, 8, 49, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("120", 120),
        (" 7\t", 7),
        ("007", 7),
        ("86401", AFTER_MAX_S),
        ("9" * 40, AFTER_MAX_S),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 30),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 30),
        ("Sun Nov  6 08:49:37 1994", 30),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0),  # in the past
        ("Fri, 01 Jan 2100 00:00:00 GMT", AFTER_MAX_S),
    ],
)
def test_both_forms_are_read_and_bounded(value: str, expected: float) -> None:
    assert seconds(value, NOW) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "-1", "+1", "1.5", "1e3", "1_000", "0x10", "soon", "12 s", "１２", "٣", "NaN", "inf", "9" * 41),
        *("Sun, 06 Nov 1994", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 25:61:61 GMT", "Sun, 08:49:37"),
        *("Sun, 06 Foo 1994 08:49:37 GMT", "08:49:37", "Sun, 06 Nov 1994 08:49:37 GMT" + " " * 40 + "x"),
    ],
)
def test_garbage_is_nothing(value: str) -> None:
    assert seconds(value, NOW) is None


@given(st.text(max_size=50) | st.from_regex(r"(Sun|Mon)[a-z]*,? .{0,20}[0-9]{2}:[0-9]{2}:[0-9]{2}.{0,8}"))
def test_no_text_makes_it_raise_or_go_out_of_bounds(value: str) -> None:
    found = seconds(value, NOW)
    assert found is None or 0 <= found <= AFTER_MAX_S


@given(st.integers(0, int(AFTER_MAX_S)))
def test_a_date_and_the_equal_number_of_seconds_give_the_same_delay(distance: int) -> None:
    date = format_datetime(NOW + timedelta(seconds=distance), usegmt=True)
    assert seconds(date, NOW) == seconds(str(distance), NOW) == distance

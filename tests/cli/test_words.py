"""Times, ages, keys and foreign texts, as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cli.words import age, instant_ms, iso, moment, plain, plain_lines, short

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 seconds"),
        (0, "0 seconds"),
        (1, "1 second"),
        (59.9, "59 seconds"),
        (60, "1 minute"),
        (3_599, "59 minutes"),
        (3_600, "1 hour"),
        (47 * 3_600, "47 hours"),
        (48 * 3_600, "2 days"),
        (13 * 86_400, "13 days"),
        (14 * 86_400, "2 weeks"),
    ],
)
def test_an_age_is_told_in_words(seconds: float, words: str) -> None:
    assert age(NOW - int(seconds * 1000), NOW) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW - 90_000),
        ("5m", NOW - 300_000),
        ("2h", NOW - 7_200_000),
        ("3d", NOW - 3 * 86_400_000),
        ("1w", NOW - 7 * 86_400_000),
        ("2026-03-19", int(datetime(2026, 3, 19, tzinfo=UTC).timestamp() * 1000)),
        ("2026-03-19T22:00", int(datetime(2026, 3, 19, 22, tzinfo=UTC).timestamp() * 1000)),
        ("2026-03-19T22:00:00.123Z", int(datetime(2026, 3, 19, 22, tzinfo=UTC).timestamp() * 1000) + 123),
        (
            "2026-03-19T22:00+02:00",
            int(datetime(2026, 3, 19, 22, tzinfo=timezone(timedelta(hours=2))).timestamp() * 1000),
        ),
    ],
)
def test_a_time_is_read_as_utc_or_as_an_age(text: str, expected: int) -> None:
    assert instant_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2h ago", "-2h", "2026-13-01", "9999999d", "h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        instant_ms(text, NOW)


def test_times_are_told_in_utc() -> None:
    assert moment(NOW) == "2023-11-14 22:13:20 UTC"
    assert iso(NOW + 7) == "2023-11-14T22:13:20.007Z"


@given(st.integers())
def test_any_number_can_be_told_as_a_time(at_ms: int) -> None:
    assert moment(at_ms).endswith(" UTC")


def test_a_long_key_is_shortened() -> None:
    assert short("a" * 32) == "aaaaaaaaaaaa…"
    assert short("abc") == "abc"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert plain(text).isprintable()
    assert plain_lines(text).replace("\n", "").isprintable()
    assert plain_lines(text).count("\n") == text.count("\n")


def test_what_is_harmless_is_left_as_it_is() -> None:
    assert plain("naïve – 客户 🙂") == "naïve – 客户 🙂"
    assert plain("\x1b]0;title\x07\u202e") == "\\x1b]0;title\\x07\\u202e"

"""Times, ages, keys and foreign texts, as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cli.describe import age, brief_ids, cut, instant_ms, iso, moment, plain, plain_lines, short, size

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
def test_an_age_is_written_in_words(seconds: float, words: str) -> None:
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
def test_a_time_is_parsed_as_utc_or_as_an_age(text: str, expected: int) -> None:
    assert instant_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2h ago", "-2h", "2026-13-01", "9999999d", "h"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        instant_ms(text, NOW)


def test_times_are_written_in_utc() -> None:
    assert moment(NOW) == "2023-11-14 22:13:20 UTC"
    assert iso(NOW + 7) == "2023-11-14T22:13:20.007Z"


@given(st.integers())
def test_any_number_can_be_written_as_a_time(at_ms: int) -> None:
    assert moment(at_ms).endswith(" UTC")


def test_a_long_key_is_shortened() -> None:
    assert short("a" * 32) == "aaaaaaaaaaaa…"
    assert short("abc") == "abc"


@given(st.text())
def test_control_characters_are_escaped(text: str) -> None:
    assert plain(text).isprintable()
    assert plain_lines(text).replace("\n", "").isprintable()
    assert plain_lines(text).count("\n") == text.count("\n")


def test_printable_text_is_not_changed() -> None:
    assert plain("naïve – 客户 🙂") == "naïve – 客户 🙂"
    assert plain("\x1b]0;title\x07\u202e") == "\\x1b]0;title\\x07\\u202e"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_960, "10 kB"),
        (999_499, "999 kB"),
        (999_700, "1.0 MB"),
        (80_767_057_920, "81 GB"),
        (10**15, "1,000 TB"),
    ],
)
def test_a_size_is_rounded_to_two_digits(count: int, words: str) -> None:
    assert size(count) == words


def test_long_texts_are_cut_and_uuids_are_shortened() -> None:
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")
    assert brief_ids("AE2ab026-0b53-4e7c-aa65-f0407a6e75f5|v2.7d5b5d19-ff12-4b10-a1ed-1cef3a50a74a.end") == (
        "AE2ab026…|v2.7d5b5d19….end"
    )
    assert brief_ids("order-12345678-1") == "order-12345678-1"

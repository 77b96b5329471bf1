"""Sizes, homonyms, retired words, gerund modules and `getattr` probes of the source tree may only fall."""

from __future__ import annotations

import pytest
from tools import ratchet

LIMITS = ratchet.limits()
README_MAX_LINES = 180


@pytest.fixture(scope="module")
def figures() -> dict[str, int]:
    return ratchet.measure()


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_does_not_rise(name: str, figures: dict[str, int]) -> None:
    assert figures[name] <= LIMITS[name], f"{name} rose: see tools/ratchet.py"


def test_every_figure_has_a_limit(figures: dict[str, int]) -> None:
    assert set(figures) == set(LIMITS)
    assert LIMITS["readme_lines"] <= README_MAX_LINES


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a dead letter", 0),
        ("DeadLetter, dead_letters", 0),
        ("a letter", 1),
        ("LetterBox letterbox", 2),
        ("is_told", 1),
    ],
)
def test_retired_words_are_counted_in_prose_and_in_names(text: str, count: int) -> None:
    assert ratchet.retired_words(text) == count

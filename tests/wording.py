"""The texts for people may be improved at any time; the names and values in them are asserted."""

from __future__ import annotations


def lacks(text: str, words: str) -> list[str]:
    """Return those of the words, separated by white space, that the text does not contain."""
    return [word for word in words.split() if word not in text]

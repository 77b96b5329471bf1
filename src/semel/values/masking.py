"""Customers in listings and logs: enough to recognise one's own, too little to write to a stranger's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from semel.values.errors import ConfigError
from semel.values.notification import Notification

ERASED = "(erased)"
TAIL = 4  # characters at the end: what people compare when they read a number to each other
HIDDEN_LEAST = 4  # characters that stay hidden, however short the whole is
NAMED_LEAST = 5  # a shorter one may stand in a text by chance

REPEATED_LEAST = 12  # letters and digits in a row that a text has in common with a content: less may be chance
OWN_DIGITS = 7  # at the end of a number: what stays of it when somebody writes it without its country

_NUMBER = re.compile(r"\+?[0-9][0-9 ()./-]*")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[a-z]")
_BETWEEN = r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|[\W_]){0,3}+"  # taken as a whole: trying again could take for ever
_NO_LETTER, _NO_ASCII_LETTER = re.compile(r"[^\w\n]|_"), re.compile(r"[^A-Za-z0-9\n]")


def masked_recipient(text: str) -> str:
    """`+49…1234`, `m…@example.com`, `…9f3c`."""
    if text in ("", ERASED):
        return text
    name, at, domain = text.rpartition("@")
    if at and name and domain:
        return f"{name[0] if len(name) > HIDDEN_LEAST else ''}…@{domain}"
    if _NUMBER.fullmatch(text):
        return _ends(text, 3 if text.startswith("+") else 2)
    return _ends(text, 0)


def masked_content(notification: Notification) -> str:
    """What sort of content it is and how long, and nothing of what it says."""
    if notification.body == ERASED:
        return ERASED
    parts = [f"template with {_counted(len(notification.data), 'field')}"] if notification.template else []
    match notification.body:
        case None:
            pass
        case str() as text:
            parts.append(f"text of {_counted(len(text), 'character')}")
        case _:
            parts.append(f"document of {_size(notification):,} bytes")
    if notification.subject:
        parts.append(f"subject of {_counted(len(notification.subject), 'character')}")
    return ", ".join(parts)


def hidden(text: str, said: Notification) -> str:
    """What providers and people say of a notification: they may name whom it is for, and repeat what it says."""
    if not text:
        return text
    contents = {*_texts((said.body, said.subject, said.data))} - {ERASED}
    for ascii_only in (False, True):  # an answer may spell out what is not ASCII, and every provider otherwise
        text = _not_repeating(text, contents, ascii_only)
    return without(text, said.recipient)


def without(text: str, recipient: str) -> str:
    """A text that may name the recipient, however it spells it: `+49 170 …`, `%2B49170…`, `0170…`."""
    letters = [char for char in recipient if char.isalnum()]
    if len(letters) < NAMED_LEAST or recipient == ERASED:
        return text
    shown = masked_recipient(recipient)
    for spelling in _spellings(recipient, letters):
        text = re.sub(spelling, lambda _: shown, text, flags=re.IGNORECASE)
    return text


def _spellings(recipient: str, letters: list[str]) -> Iterator[str]:
    yield r"(?:\+|%2B|\\u002B)?" + _BETWEEN.join(map(re.escape, letters))
    if _NUMBER.fullmatch(recipient) and len(letters) > OWN_DIGITS:
        yield r"\+?[0-9]*" + _BETWEEN.join(letters[-OWN_DIGITS:])


def _texts(value: Any) -> Iterator[str]:
    """All that is said, wherever it stands in a document."""
    match value:
        case bool() | None:
            return
        case str() | int():
            yield str(value)
        case dict():
            yield from _texts(tuple(value.values()))
        case list() | tuple():
            for one in value:
                yield from _texts(one)


def _not_repeating(text: str, contents: Collection[str], ascii_only: bool) -> str:
    """The text without what it has in common with a content; only letters and digits are compared. There may be ten
    thousands of contents, in one document, so that they are looked through together."""
    told, said = _letters(text, ascii_only), _bare(contents, ascii_only)
    words, long = "".join(char for char, _ in told), "\n".join(one for one in said if len(one) >= REPEATED_LEAST)
    short = {one for one in said if NAMED_LEAST <= len(one) < REPEATED_LEAST}
    parts: list[str] = []
    end, until = 0, 0  # a place in the text, and one among its letters: so far it is hidden
    for first in range(len(told)):
        if not (length := _repeated(words[first : first + REPEATED_LEAST], long, short)):
            continue
        if first > until or not parts:
            parts += [text[end : told[first][1]], "…"]
        until = max(until, first + length)
        end = told[until - 1][1] + 1
    return "".join((*parts, text[end:]))


def _repeated(words: str, long: str, short: Collection[str]) -> int:
    """How many letters at the beginning are said in a content, too."""
    if len(words) == REPEATED_LEAST and words in long:
        return REPEATED_LEAST
    return max((least for least in range(NAMED_LEAST, len(words) + 1) if words[:least] in short), default=0)


def _bare(contents: Collection[str], ascii_only: bool) -> list[str]:
    """The letters and digits of each."""
    together = _ESCAPE.sub(" ", "\n".join(one.replace("\n", " ") for one in contents))
    bare = (_NO_ASCII_LETTER if ascii_only else _NO_LETTER).sub("", together)
    return bare.replace("İ", "i").lower().split("\n")  # a letter for a letter


def _letters(text: str, ascii_only: bool) -> list[tuple[str, int]]:
    """With their places. What is spelled out (`%C3%BC`, `\\u00fc`) is none."""
    plain = _ESCAPE.sub(lambda found: " " * len(found[0]), text)
    return [
        (char.lower()[0], at) for at, char in enumerate(plain) if char.isalnum() and (char.isascii() or not ascii_only)
    ]


def _counted(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _ends(text: str, head: int) -> str:
    """The beginning and the end, as far as enough is hidden between them."""
    tail = min(TAIL, max(0, len(text) - head - HIDDEN_LEAST))
    head = min(head, max(0, len(text) - tail - HIDDEN_LEAST))
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _size(notification: Notification) -> int:
    try:
        return len(notification.content)
    except ConfigError:  # it was judged when it was added, by another version
        return 0

"""Customers in listings and logs: enough to recognise one's own, too little to write to a stranger's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from semel.values.errors import ConfigError
from semel.values.notification import Notification

ERASED = "(erased)"
TAIL = 4  # characters at the end: what people compare when they read a number to each other
HIDDEN_LEAST = 4  # characters that stay hidden, however short the whole is
NAMED_LEAST = 5  # a shorter one may stand in a text by chance

REPEATED_LEAST = 12  # letters and digits in a row that a text has in common with a content: less may be chance
PROBE = 6  # letters of a first, quick comparison
OWN_DIGITS = 7  # at the end of a number: what stays of it when somebody writes it without its country

_DIGITS = frozenset("0123456789")
_NUMBER = re.compile(r"\+?[0-9][0-9 ()./-]*")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[a-z]")
_BETWEEN = r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|[\W_]){0,3}+"  # taken as a whole: trying again could take for ever
_NO_LETTER, _NO_ASCII_LETTER = re.compile(r"(?:[^\w\n]|_)+"), re.compile(r"[^A-Za-z0-9\n]+")


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
    return Hider(said).hidden(text)


class Hider:
    """Takes one notification's recipient and content out of texts about it. The content is prepared once, when a text
    needs it, in time that is linear in its size."""

    def __init__(self, said: Notification) -> None:
        self._said = said
        self._bare: dict[bool, tuple[str, frozenset[str]]] = {}  # by whether only ASCII counts
        self._together: str | None = None

    def hidden(self, text: str) -> str:
        if not text:
            return text
        for ascii_only in (False, True):  # an answer may spell out what is not ASCII, and every provider otherwise
            text = self._not_repeating(text, ascii_only)
        return without(text, self._said.recipient)

    def _not_repeating(self, text: str, ascii_only: bool) -> str:
        """The text without what it has in common with a content; only letters and digits are compared."""
        told = _dead_letters(text, ascii_only)
        if len(told) < NAMED_LEAST:
            return text  # nothing so short is looked for
        long, short = self._contents(ascii_only)
        words = "".join(char for char, _ in told)
        grams = _common_grams(words, long)
        parts: list[str] = []
        end, until = 0, 0  # a place in the text, and one among its letters: so far it is hidden
        for first in range(len(told)):
            if not (length := _repeated(words[first : first + REPEATED_LEAST], grams, short)):
                continue
            if first > until or not parts:
                parts += [text[end : told[first][1]], "…"]
            until = max(until, first + length)
            end = told[until - 1][1] + 1
        return "".join((*parts, text[end:]))

    def _contents(self, ascii_only: bool) -> tuple[str, frozenset[str]]:
        """The letters and digits of all contents: the long ones as one text, with a line for each, and the short ones.
        There may be ten thousands of them in one document, so that they are prepared together."""
        if self._together is None:
            texts = {*_texts((self._said.body, self._said.subject, self._said.data))} - {ERASED}
            self._together = _ESCAPE.sub(" ", "\n".join(one.replace("\n", " ") for one in texts))
        ascii_only = ascii_only and not self._together.isascii()  # else both are the same
        if ascii_only not in self._bare:
            bare = (_NO_ASCII_LETTER if ascii_only else _NO_LETTER).sub("", self._together)
            lines = bare.replace("İ", "i").lower().split("\n")  # a letter for a letter
            short = frozenset(one for one in lines if NAMED_LEAST <= len(one) < REPEATED_LEAST)
            self._bare[ascii_only] = "\n".join(one for one in lines if len(one) >= REPEATED_LEAST), short
        return self._bare[ascii_only]


def without(text: str, recipient: str) -> str:
    """A text that may name the recipient, however it spells it: `+49 170 …`, `%2B49170…`, `0170…`."""
    dead_letters = [char for char in recipient if char.isalnum()]
    if len(dead_letters) < NAMED_LEAST or recipient == ERASED:
        return text
    shown = masked_recipient(recipient)
    whole = r"(?:\+|%2B|\\u002B)?" + _BETWEEN.join(map(re.escape, dead_letters))
    text = re.sub(whole, lambda _: shown, text, flags=re.IGNORECASE)
    if _NUMBER.fullmatch(recipient) and len(dead_letters) > OWN_DIGITS:
        text = _without_end(text, _BETWEEN.join(dead_letters[-OWN_DIGITS:]), shown)
    return text


def _without_end(text: str, end: str, shown: str) -> str:
    """Hides the end of a number and the digits before it.

    The digits before it are found backwards from each match. A pattern that begins with them would search every run of
    digits once for each of its digits."""
    parts: list[str] = []
    done = 0
    for found in re.finditer(end, text):
        first = found.start()
        while first > done and text[first - 1] in _DIGITS:
            first -= 1
        if first > done and text[first - 1] == "+":
            first -= 1
        parts += [text[done:first], shown]
        done = found.end()
    return "".join((*parts, text[done:]))


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


def _common_grams(words: str, long: str) -> set[str]:
    """Those pieces of REPEATED_LEAST letters that both texts hold.

    Any window of 12 letters holds one of 6 that begins at a multiple of 7: only these are looked at, and the windows
    around them where one is found. That is one walk through the content, whatever both texts are."""
    step, size = REPEATED_LEAST - PROBE + 1, REPEATED_LEAST
    grams = {words[at : at + size] for at in range(len(words) - size + 1)}
    probes = {words[at : at + PROBE] for at in range(len(words) - PROBE + 1)}
    found: set[str] = set()
    seen: set[str] = set()  # surroundings that were looked at: a content may repeat one letter for ever
    if not grams:
        return found
    for at in range(0, len(long) - PROBE + 1, step):
        if long[at : at + PROBE] in probes and (around := long[max(0, at - step + 1) : at + size]) not in seen:
            seen.add(around)
            for first in range(max(0, at - step + 1), at + 1):
                if (gram := long[first : first + size]) in grams:
                    found.add(gram)
            if len(found) == len(grams):
                break
    return found


def _repeated(words: str, grams: Collection[str], short: Collection[str]) -> int:
    """How many letters at the beginning are said in a content, too."""
    if words in grams:
        return REPEATED_LEAST
    return max((least for least in range(NAMED_LEAST, len(words) + 1) if words[:least] in short), default=0)


def _dead_letters(text: str, ascii_only: bool) -> list[tuple[str, int]]:
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


# The URL of a ledger, as it may be shown: it can hold a password, and then no error, log or listing may.

HIDDEN = "…"
SHOWN_MAX_CHARS = 200
PORT_MAX_CHARS = 5
SECRET_MIN_CHARS = 4  # of what is looked for in a text: a shorter one is in any word

_SECRET = ("auth", "credential", "key", "pass", "pw", "secret", "token")  # in the name of an option
_OPTION = re.compile(r"([?&;])([^=&;]+)=([^&]*)")
_ENDS = re.compile(r"[/?#]")  # of what comes first in a URL: who, and where
_PIECES = re.compile(r"[/?#\[\]&;=@: ]")  # where others may take a password that was not encoded apart


def masked(url: str) -> str:
    """The URL without what is secret in it. A file's path has nothing of the kind."""
    if url.startswith("sqlite:"):
        return _short(url)
    scheme, separator, rest = url.partition("://")
    scheme, rest = (scheme, rest) if separator else ("", url)
    login, at, place = _parted(rest)
    user, colon, _ = login.partition(":")
    shown = f"{user}{colon}{HIDDEN if colon else ''}{at}{place}"
    return _short(f"{scheme}{separator}{_OPTION.sub(_masked_option, shown)}")


def has_password(url: str) -> bool:
    """Whether there is one in it, and not only the name of a file that has one."""
    _, _, rest = url.partition("://")
    options = parse_qsl(url.partition("?")[2])
    of_user = _parted(rest)[0].partition(":")[2]
    return not url.startswith("sqlite:") and bool(of_user or any(name.endswith("password") for name, _ in options))


def is_broken(url: str) -> bool:
    """Whether a password that was not encoded ends the URL's first part too early: everybody would take it apart
    elsewhere, and tell half of it."""
    _, _, rest = url.partition("://")
    first = _ENDS.split(rest, maxsplit=1)[0]
    return ":" in first and not _is_place(first) and "@" not in first and "@" in rest


def without_secrets(text: str, url: str) -> str:
    """A text that somebody else wrote about this URL, without what is secret in it."""
    text = text.replace(url, masked(url))
    for secret in _secrets_of(url):
        text = text.replace(secret, HIDDEN)
    return text


def _parted(rest: str) -> tuple[str, str, str]:
    """Who, "@", and where. The last "@" counts: whoever did not encode a password may have others in it. Only where a
    place and options come before all of them they are an option's."""
    place, _, options = rest.partition("?")
    is_options = "=" in options.partition("@")[0] and _is_place(_ENDS.split(place, maxsplit=1)[0])
    return ("", "", rest) if is_options and "@" not in place else rest.rpartition("@")


def _is_place(first: str) -> bool:
    """host, host:5432, [::1]:5432, several of them; else it may be the beginning of a password."""
    ports = [host.rpartition("]")[2].partition(":")[2] for host in first.split(",")]
    return all(not port or (port.isdecimal() and len(port) <= PORT_MAX_CHARS) for port in ports)


def _secrets_of(url: str) -> list[str]:
    """Longest first: one may be part of another."""
    _, _, rest = url.partition("://")
    password = _parted(rest)[0].partition(":")[2]
    _, _, query = url.partition("?")
    found = {password, unquote(password), *_PIECES.split(password)}
    found |= {value for name, value in parse_qsl(query) if _is_secret(name)}
    found |= {match[3] for match in _OPTION.finditer(url) if _is_secret(match[2])}
    long = [secret for secret in found if len(secret) >= SECRET_MIN_CHARS]
    return sorted(long, key=len, reverse=True) if not url.startswith("sqlite:") else []


def _masked_option(option: re.Match[str]) -> str:
    before, name, value = option.groups()
    return f"{before}{name}={HIDDEN if _is_secret(name) else value}"


def _is_secret(name: str) -> bool:
    return any(word in unquote(name).lower() for word in _SECRET)


def _short(url: str) -> str:
    return url if len(url) <= SHOWN_MAX_CHARS else url[:SHOWN_MAX_CHARS] + HIDDEN

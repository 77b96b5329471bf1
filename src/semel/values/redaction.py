"""Masks recipients, contents and secrets in listings, logs and errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from semel.values.errors import ConfigError
from semel.values.notification import Notification

ERASED = "(erased)"
TAIL = 4  # visible characters at the end, by which people compare numbers
HIDDEN_LEAST = 4  # characters that stay hidden, however short the whole is
NAMED_LEAST = 5  # a shorter one may occur in a text by chance

REPEATED_LEAST = 12  # consecutive characters that a text shares with a content: fewer may be chance
PROBE = 6  # characters of a first, quick comparison
OWN_DIGITS = 7  # at the end of a number: they remain when it is written without its country code

_DIGITS = frozenset("0123456789")
_NUMBER = re.compile(r"\+?[0-9][0-9 ()./-]*")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[a-z]")
_BETWEEN = r"(?:%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|[\W_]){0,3}+"  # possessive: backtracking could take forever
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
    """The type and the size of a content, without the content."""
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


def hidden(text: str, notification: Notification) -> str:
    """A text of a provider or an operator about a notification, without its recipient and its content."""
    return Hider(notification).hidden(text)


class Hider:
    """Removes one notification's recipient and content from texts about it. The content is prepared once, when it is
    first needed, in linear time."""

    def __init__(self, notification: Notification) -> None:
        self._notification = notification
        self._bare: dict[bool, tuple[str, frozenset[str]]] = {}  # by whether only ASCII counts
        self._joined: str | None = None

    def hidden(self, text: str) -> str:
        if not text:
            return text
        for ascii_only in (False, True):  # providers escape other characters than ASCII in different ways
            text = self._not_repeating(text, ascii_only)
        return without(text, self._notification.recipient)

    def _not_repeating(self, text: str, ascii_only: bool) -> str:
        """The text without the passages that it shares with a content; only letters and digits are compared."""
        characters = _alphanumerics(text, ascii_only)
        if len(characters) < NAMED_LEAST:
            return text  # shorter passages are not compared
        long, short = self._contents(ascii_only)
        words = "".join(char for char, _ in characters)
        grams = _common_grams(words, long)
        parts: list[str] = []
        end, until = 0, 0  # hidden up to this index of the text, and of its characters
        for first in range(len(characters)):
            if not (length := _repeated(words[first : first + REPEATED_LEAST], grams, short)):
                continue
            if first > until or not parts:
                parts += [text[end : characters[first][1]], "…"]
            until = max(until, first + length)
            end = characters[until - 1][1] + 1
        return "".join((*parts, text[end:]))

    def _contents(self, ascii_only: bool) -> tuple[str, frozenset[str]]:
        """The letters and digits of all contents: the long ones as lines of one text, and the short ones as a set. One
        document may have tens of thousands of them, so they are prepared in one pass."""
        if self._joined is None:
            texts = {*_texts((self._notification.body, self._notification.subject, self._notification.data))} - {ERASED}
            self._joined = _ESCAPE.sub(" ", "\n".join(one.replace("\n", " ") for one in texts))
        ascii_only = ascii_only and not self._joined.isascii()  # else both are the same
        if ascii_only not in self._bare:
            bare = (_NO_ASCII_LETTER if ascii_only else _NO_LETTER).sub("", self._joined)
            lines = bare.replace("İ", "i").lower().split("\n")  # keeps the number of characters
            short = frozenset(one for one in lines if NAMED_LEAST <= len(one) < REPEATED_LEAST)
            self._bare[ascii_only] = "\n".join(one for one in lines if len(one) >= REPEATED_LEAST), short
        return self._bare[ascii_only]


def without(text: str, recipient: str) -> str:
    """The text with the recipient masked, in any spelling: `+49 170 …`, `%2B49170…`, `0170…`."""
    characters = [char for char in recipient if char.isalnum()]
    if len(characters) < NAMED_LEAST or recipient == ERASED:
        return text
    shown = masked_recipient(recipient)
    whole = r"(?:\+|%2B|\\u002B)?" + _BETWEEN.join(map(re.escape, characters))
    text = re.sub(whole, lambda _: shown, text, flags=re.IGNORECASE)
    if _NUMBER.fullmatch(recipient) and len(characters) > OWN_DIGITS:
        text = _without_end(text, _BETWEEN.join(characters[-OWN_DIGITS:]), shown)
    return text


def _without_end(text: str, end: str, shown: str) -> str:
    """Mask the end of a number and the digits before it.

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
    """All texts and numbers in a document."""
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
    """The pieces of REPEATED_LEAST characters that both texts contain.

    Every window of 12 characters contains one of 6 that begins at a multiple of 7. Only these are compared, and the
    windows around a match. That is one pass through the content."""
    step, size = REPEATED_LEAST - PROBE + 1, REPEATED_LEAST
    grams = {words[at : at + size] for at in range(len(words) - size + 1)}
    probes = {words[at : at + PROBE] for at in range(len(words) - PROBE + 1)}
    found: set[str] = set()
    seen: set[str] = set()  # surroundings that were compared: a content may repeat one character many times
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
    """The number of characters at the beginning that a content contains too."""
    if words in grams:
        return REPEATED_LEAST
    return max((least for least in range(NAMED_LEAST, len(words) + 1) if words[:least] in short), default=0)


def _alphanumerics(text: str, ascii_only: bool) -> list[tuple[str, int]]:
    """The letters and digits with their indexes. Escapes (`%C3%BC`, `\\u00fc`) do not count."""
    plain = _ESCAPE.sub(lambda found: " " * len(found[0]), text)
    return [
        (char.lower()[0], at) for at, char in enumerate(plain) if char.isalnum() and (char.isascii() or not ascii_only)
    ]


def _counted(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _ends(text: str, head: int) -> str:
    """The beginning and the end, shortened so that enough is hidden between them."""
    tail = min(TAIL, max(0, len(text) - head - HIDDEN_LEAST))
    head = min(head, max(0, len(text) - tail - HIDDEN_LEAST))
    return f"{text[:head]}…{text[len(text) - tail :]}"


def _size(notification: Notification) -> int:
    try:
        return len(notification.content)
    except ConfigError:  # another version checked it when it was added
        return 0


# URLs of ledgers may contain a password, which no error, log or listing may show.

HIDDEN = "…"
SHOWN_MAX_CHARS = 200
PORT_MAX_CHARS = 5
SECRET_MIN_CHARS = 4  # a shorter one would match in any word

_SECRET = ("auth", "credential", "key", "pass", "pw", "secret", "token")  # in the name of an option
_OPTION = re.compile(r"([?&;])([^=&;]+)=([^&]*)")
_ENDS = re.compile(r"[/?#]")  # end of the user and host part of a URL
_PIECES = re.compile(r"[/?#\[\]&;=@: ]")  # where a parser may split a password that was not encoded


def masked(url: str) -> str:
    """The URL without its secrets. The path of a file has none."""
    if url.startswith("sqlite:"):
        return _short(url)
    scheme, separator, rest = url.partition("://")
    scheme, rest = (scheme, rest) if separator else ("", url)
    login, at, place = _parted(rest)
    user, colon, _ = login.partition(":")
    shown = f"{user}{colon}{HIDDEN if colon else ''}{at}{place}"
    return _short(f"{scheme}{separator}{_OPTION.sub(_masked_option, shown)}")


def has_password(url: str) -> bool:
    """Whether the URL contains a password."""
    _, _, rest = url.partition("://")
    options = parse_qsl(url.partition("?")[2])
    of_user = _parted(rest)[0].partition(":")[2]
    return not url.startswith("sqlite:") and bool(of_user or any(name.endswith("password") for name, _ in options))


def is_broken(url: str) -> bool:
    """Whether a password that was not encoded ends the host part too early: a parser would show half of it as the
    host."""
    _, _, rest = url.partition("://")
    first = _ENDS.split(rest, maxsplit=1)[0]
    return ":" in first and not _is_place(first) and "@" not in first and "@" in rest


def without_secrets(text: str, url: str) -> str:
    """A text of another component about this URL, without the secrets of the URL."""
    text = text.replace(url, masked(url))
    for secret in _secrets_of(url):
        text = text.replace(secret, HIDDEN)
    return text


def _parted(rest: str) -> tuple[str, str, str]:
    """Split the rest of a URL into login, "@" and place. The last "@" counts, because a password that was not encoded
    may contain others. If a place and options come before it, it belongs to an option."""
    place, _, options = rest.partition("?")
    is_options = "=" in options.partition("@")[0] and _is_place(_ENDS.split(place, maxsplit=1)[0])
    return ("", "", rest) if is_options and "@" not in place else rest.rpartition("@")


def _is_place(first: str) -> bool:
    """Whether it is a list of host, host:5432 or [::1]:5432; otherwise it may be the beginning of a password."""
    ports = [host.rpartition("]")[2].partition(":")[2] for host in first.split(",")]
    return all(not port or (port.isdecimal() and len(port) <= PORT_MAX_CHARS) for port in ports)


def _secrets_of(url: str) -> list[str]:
    """The secrets of a URL, longest first: one may be part of another."""
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

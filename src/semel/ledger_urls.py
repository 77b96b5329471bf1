"""The URL of a ledger, as it may be shown: it can hold a password, and then no error, log or listing may."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

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

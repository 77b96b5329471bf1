"""The URL of a ledger, as it may be shown: it can hold a password, and then no error, log or listing may."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

HIDDEN = "…"
SHOWN_MAX_CHARS = 200
SECRET_MIN_CHARS = 4  # of what is looked for in a text: a shorter one is in any word

_SECRET = ("auth", "credential", "key", "pass", "pw", "secret", "token")  # in the name of an option
_OPTION = re.compile(r"([?&;])([^=&;]+)=([^&;]*)")


def masked(url: str) -> str:
    """The URL without what is secret in it. A file's path has nothing of the kind."""
    if url.startswith("sqlite:"):
        return _short(url)
    scheme, separator, rest = url.partition("://")
    scheme, rest = (scheme, rest) if separator else ("", url)
    login, at, place = rest.rpartition("@")  # the last one: whoever did not encode a password may have others in it
    user, colon, _ = login.partition(":")
    shown = f"{user}{colon}{HIDDEN if colon else ''}{at}{place}"
    return _short(f"{scheme}{separator}{_OPTION.sub(_masked_option, shown)}")


def without_secrets(text: str, url: str) -> str:
    """A text that somebody else wrote about this URL, without what is secret in it."""
    text = text.replace(url, masked(url))
    for secret in _secrets_of(url):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets_of(url: str) -> list[str]:
    """Longest first: one may be part of another."""
    _, _, rest = url.partition("://")
    password = rest.rpartition("@")[0].partition(":")[2]
    _, _, query = url.partition("?")
    found = {password, unquote(password)}
    found |= {value for name, value in parse_qsl(query) if _is_secret(name)}
    found |= {match[3] for match in _OPTION.finditer(url) if _is_secret(match[2])}
    long = [secret for secret in found if len(secret) >= SECRET_MIN_CHARS]
    return sorted(long, key=len, reverse=True) if not url.startswith("sqlite:") else []


def _masked_option(option: re.Match[str]) -> str:
    before, name, value = option.groups()
    return f"{before}{name}={HIDDEN if _is_secret(name) else value}"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET)


def _short(url: str) -> str:
    return url if len(url) <= SHOWN_MAX_CHARS else url[:SHOWN_MAX_CHARS] + HIDDEN

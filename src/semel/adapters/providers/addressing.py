"""Our id in the URL that a provider is told to call, for those that bring nothing else of ours back."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from semel.adapters.providers.reading import ours
from semel.values.errors import ConfigError

NAME = "id"


def check(callback: str, provider: str) -> None:
    """Raises ConfigError for what no provider would call, and for a URL that has another id already."""
    if not callback:
        return
    try:
        parts = urlsplit(callback)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("https", "http") or not parts.hostname or " " in callback:
        raise ConfigError(f"provider {provider!r}: callback: expected a URL: https://semel.example.com/callbacks/…")
    if NAME in parse_qs(parts.query, keep_blank_values=True):
        raise ConfigError(f"provider {provider!r}: callback: ?{NAME}= is where our id goes: call yours otherwise")


def with_id(callback: str, id: str) -> str:
    url, hash, rest = callback.partition("#")  # behind it Twilio is told how often to come again
    return f"{url}{'&' if '?' in url else '?'}{NAME}={id}{hash}{rest}"


def id_in(url: str) -> bytes | None:
    """Of a URL that was called, where the provider says which."""
    try:
        values = parse_qs(urlsplit(url).query, max_num_fields=100).get(NAME, [])
    except ValueError:
        return None
    return ours(values[0]) if len(values) == 1 else None

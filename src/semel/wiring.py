"""Puts adapters together: the only module that names them. Drivers are imported when their URL is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.adapters.envelopes import decode
from semel.ports import Catalog, Ledger
from semel.values.errors import ConfigError

__all__ = ["decode", "open_ledger"]

SCHEMES = ("sqlite:///file.db", "memory://")


class StoredLedger(Ledger, Catalog, Protocol):
    """A ledger that can also be read by people."""


def open_ledger(url: str, observe: Callable[[str], None] | None = None) -> StoredLedger:
    """The ledger that a URL names."""
    if not isinstance(url, str):
        raise ConfigError(f"ledger {url!r}: expected a URL, one of {', '.join(SCHEMES)}")
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory" and url.partition("?")[0] == "memory://":
        from semel.adapters.ledgers.memory import MemoryLedger

        _check_options(url, options, ())
        return MemoryLedger()
    if parts.scheme == "sqlite":
        from semel.adapters.ledgers.sqlite import SqliteLedger

        _check_options(url, options, ("synchronous",))
        path = _sqlite_path(url, parts.netloc, parts.path)
        return SqliteLedger(path, synchronous=options.get("synchronous", "full"), observe=observe)
    raise ConfigError(f"ledger {url!r}: expected one of {', '.join(SCHEMES)}")


def _sqlite_path(url: str, host: str, path: str) -> str:
    if path == "/:memory:":
        raise ConfigError(f"ledger {url!r}: for a ledger in memory use memory://")
    if host or not url.startswith("sqlite:///") or len(path) < 2 or path.endswith("/"):
        raise ConfigError(f"ledger {url!r}: expected sqlite:///relative.db or sqlite:////absolute/path.db")
    return unquote(path[1:])


def _check_options(url: str, options: dict[str, str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise ConfigError(f"ledger {url!r}: unknown option {name!r}; known are: {', '.join(known) or 'none'}")

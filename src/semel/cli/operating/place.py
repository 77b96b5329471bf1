"""Which ledger an operator means, and opening it: looking never makes one, and never shows its password."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from semel.cli.operating import sqlite_mark
from semel.ledger_urls import masked, without_secrets
from semel.ports import Migrates
from semel.settings.secret import Secret
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.wiring import StoredLedger, open_ledger


class Place(Struct, frozen=True):
    """A ledger, and the store of its letters where that is another one."""

    ledger: Secret
    dead_letters: Secret | None = None

    def __str__(self) -> str:
        way = "on" if self.tells_a_bus else "in"
        letters = f", letters {way} {masked(self.dead_letters.reveal())}" if self.dead_letters is not None else ""
        return masked(self.ledger.reveal()) + letters

    @property
    def tells_a_bus(self) -> bool:
        """Letters are put on a bus too, where nobody can look at them."""
        return self.dead_letters is not None and self.dead_letters.reveal().startswith("eventbridge:")

    @property
    def letters_alone(self) -> Place | None:
        """Where letters can be looked at without the ledger; None where there is no such store, or not yet."""
        if self.dead_letters is None or self.tells_a_bus:
            return None
        return Place(self.dead_letters) if _letters(self) else None


def place(ledger: str | None, config: Path | None) -> Place:
    """What the command line or the settings name."""
    if ledger is not None and config is not None:
        raise ConfigError("--ledger and -c both name a ledger: leave one of them out")
    if ledger is not None:
        return Place(Secret(ledger))
    from semel.settings.loading import load

    try:
        settings = load(config, os.environ)
    except ConfigError as error:
        raise ConfigError(f"{error}\nTo look at a ledger without settings: --ledger sqlite:///semel.db") from None
    return Place(settings.ledger, settings.dead_letters)


@asynccontextmanager
async def opened(where: Place, *, reads: bool = False) -> AsyncIterator[StoredLedger]:
    """The ledger. `reads`: nothing is created, brought forward or written."""
    url, letters = where.ledger.reveal(), _letters(where)
    if not letters or not url.startswith("memory:"):
        check_there("ledger", url)
    ledger = open_ledger(url, dead_letters=letters)
    if reads:
        make_read_only(ledger)
    try:
        await refuse_unready(ledger, where)
        if where.dead_letters is not None and not letters:
            await _refuse_lost_letters(ledger, where.dead_letters.reveal())
        yield ledger
    finally:
        await ledger.close()


def make_read_only(ledger: object) -> None:
    """Where a store could create or change itself, it does not any more."""
    read_only: Callable[[], None] | None = getattr(ledger, "read_only", None)
    if read_only is not None:
        read_only()


async def refuse_unready(ledger: object, where: Place) -> None:
    """A store that has to be made ready first says so, once and in words, instead of failing at every step."""
    letterbox, letters = getattr(ledger, "letterbox", None), where.dead_letters
    stores = [("dead_letters", letters, letterbox)] if letters is not None and letterbox is not None else []
    for role, url, store in [*stores, ("ledger", where.ledger, ledger)]:  # the ledger tells of its letters' store too
        shown = f"{role} {masked(url.reveal())}"
        if not isinstance(store, Migrates):
            continue
        try:
            steps = await store.pending()
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{shown}: {without_secrets(str(error), url.reveal())}") from None
        if steps:
            raise ConfigError(f"{shown}: the store is not ready ({'; '.join(steps)}): run `semel migrate`")


async def _refuse_lost_letters(ledger: StoredLedger, url: str) -> None:
    """The ledger knows of letters, and there is no file that has them: whoever looks in the wrong folder must not hear
    that all is well, or replay what nobody can bring."""
    for state in ("dead", "uncertain"):
        if await ledger.entries(state, 1):
            raise ConfigError(
                f"dead_letters {url}: there is no file {_file(url).absolute()}, and the ledger knows of letters. Run "
                "this in the folder of the service, or write the whole path, sqlite:////…; letters from before "
                "dead_letters was set are found by --ledger"
            )


def _letters(where: Place) -> str:
    """Nothing, as long as nothing was given up on: a file for letters is made with the first one."""
    if where.dead_letters is None:
        return ""
    url = where.dead_letters.reveal()
    if url.startswith("sqlite:") and not _file(url).exists():
        return ""
    check_there("dead_letters", url)
    return url


def check_there(what: str, url: str) -> None:
    """Opening a ledger makes one where there is none: so this looks first, at the bytes."""
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise ConfigError(
            f"{what} {masked(url)!r}: it lives inside of the process that uses it; there is nothing to look at"
        )
    if scheme != "sqlite":
        return
    file = _file(url)
    try:
        ours = sqlite_mark.is_ours(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{what} {masked(url)}: there is no file {file}; nothing was made. Run this where the service runs, or "
            "name its settings (-c semel.toml) or the ledger (--ledger URL)"
        ) from None
    except OSError as error:
        raise ConfigError(f"{what} {masked(url)}: {file} cannot be read: {error.strerror}") from None
    if not ours:
        raise ConfigError(f"{what} {masked(url)}: {file} is no ledger of Semel; it was left as it is")


def _file(url: str) -> Path:
    return Path(unquote(urlsplit(url).path[1:]))

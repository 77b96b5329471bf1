"""Finds and opens the ledger of a command. Reading creates no ledger, and no command shows its password."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from semel.ports import EntryQuery, Migrates, ReadOnly, SeparateDeadLetters
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.redaction import masked, without_secrets
from semel.values.secret import Secret
from semel.wiring import StoredLedger, open_ledger


class Place(Struct, frozen=True):
    """A ledger, and its separate dead-letter store if it has one."""

    ledger: Secret
    dead_letters: Secret | None = None

    def __str__(self) -> str:
        way = "on" if self.publishes_to_bus else "in"
        dead_letters = (
            f", dead letters {way} {masked(self.dead_letters.reveal())}" if self.dead_letters is not None else ""
        )
        return masked(self.ledger.reveal()) + dead_letters

    @property
    def publishes_to_bus(self) -> bool:
        """Dead letters are also published to a bus, from which they cannot be read back."""
        return self.dead_letters is not None and self.dead_letters.reveal().startswith("eventbridge:")

    @property
    def dead_letter_place(self) -> Place | None:
        """The dead-letter store as a ledger of its own; None if there is none, or not yet."""
        if self.dead_letters is None or self.publishes_to_bus:
            return None
        return Place(self.dead_letters) if _dead_letters(self) else None


def place(ledger: str | None, config: Path | None) -> Place:
    """The ledger of --ledger or of the settings."""
    if ledger is not None and config is not None:
        raise ConfigError("--ledger and -c exclude each other: pass one of them")
    if ledger is not None:
        return Place(Secret(ledger))
    from semel.settings.loading import load

    try:
        settings = load(config, os.environ)
    except ConfigError as error:
        raise ConfigError(f"{error}\nWithout settings, pass --ledger sqlite:///semel.db") from None
    return Place(settings.ledger, settings.dead_letters)


@asynccontextmanager
async def opened(where: Place, *, reads: bool = False) -> AsyncIterator[StoredLedger]:
    """Open the ledger. `reads`: nothing is created, migrated or written."""
    url, dead_letters = where.ledger.reveal(), _dead_letters(where)
    if not dead_letters or not url.startswith("memory:"):
        check_there("ledger", url)
    ledger = open_ledger(url, dead_letters=dead_letters)
    if reads:
        make_read_only(ledger)
    try:
        await refuse_unready(ledger, where)
        if where.dead_letters is not None and not dead_letters:
            await _refuse_missing_store(ledger, where.dead_letters.reveal())
        yield ledger
    finally:
        await ledger.close()


def make_read_only(ledger: object) -> None:
    """Keep a store from creating or migrating its tables."""
    if isinstance(ledger, ReadOnly):
        ledger.read_only()


async def refuse_unready(ledger: object, where: Place) -> None:
    """Refuse a store that needs `semel migrate` first, with one clear error."""
    stores: list[tuple[str, Secret, object]] = [("ledger", where.ledger, ledger)]
    if where.dead_letters is not None and isinstance(ledger, SeparateDeadLetters):
        # First, because the ledger reports the steps of its dead-letter store too.
        stores.insert(0, ("dead_letters", where.dead_letters, ledger.dead_letter_store))
    for role, url, store in stores:
        if not isinstance(store, Migrates):
            continue
        shown = f"{role} {masked(url.reveal())}"
        try:
            steps = await store.pending()
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{shown}: {without_secrets(str(error), url.reveal())}") from None
        if steps:
            raise ConfigError(f"{shown}: the store is not ready ({'; '.join(steps)}): run `semel migrate`")


async def _refuse_missing_store(ledger: StoredLedger, url: str) -> None:
    """Refuse a missing dead-letter file if the ledger has dead keys: in the wrong folder a command must not report that
    all is well, nor replay events that it cannot read."""
    for state in ("dead", "uncertain"):
        if await ledger.entries(EntryQuery(state, 1)):
            raise ConfigError(
                f"dead_letters {url}: there is no file {_file(url).absolute()}, but the ledger has dead letters. Run "
                "this in the folder of the service, or use the whole path, sqlite:////…; dead letters from before "
                "dead_letters was set are found with --ledger"
            )


def _dead_letters(where: Place) -> str:
    """The URL of the dead-letter store; empty until the first dead letter creates its file."""
    if where.dead_letters is None:
        return ""
    url = where.dead_letters.reveal()
    if url.startswith("sqlite:") and not _file(url).exists():
        return ""
    check_there("dead_letters", url)
    return url


def check_there(what: str, url: str) -> None:
    """Check that the ledger exists, by its bytes: opening it would create it."""
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise ConfigError(
            f"{what} {masked(url)!r}: it exists only in the process that uses it; there is nothing to open"
        )
    if scheme != "sqlite":
        return
    file = _file(url)
    try:
        ours = is_ours(file)
    except FileNotFoundError:
        raise ConfigError(
            f"{what} {masked(url)}: there is no file {file}; nothing was created. Run this where the service runs, or "
            "pass its settings (-c semel.toml) or the ledger (--ledger URL)"
        ) from None
    except OSError as error:
        raise ConfigError(f"{what} {masked(url)}: {file} cannot be read: {error.strerror}") from None
    if not ours:
        raise ConfigError(f"{what} {masked(url)}: {file} is no ledger of Semel; it was not changed")


def _file(url: str) -> Path:
    return Path(unquote(urlsplit(url).path[1:]))


MAGIC = b"SQLite format 3\0"
MARK = b"SEML"
MARK_AT = 68  # in the first page

LOG_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
LOG_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24  # it begins with the number of the page that follows
PAGE_MIN_BYTES, PAGE_MAX_BYTES = 512, 65_536


def is_ours(file: Path) -> bool:
    """Whether this file is a ledger, without opening it as a database: that would turn any file into a ledger.

    SQLite keeps the mark of the application, "SEML", on the first page of the file. A new ledger in use has that page
    in its write-ahead log alone: https://www.sqlite.org/fileformat2.html#the_write_ahead_log

    Raises OSError when the file cannot be read.
    """
    with file.open("rb") as opened:
        header = opened.read(MARK_AT + len(MARK))
    if header and not header.startswith(MAGIC):
        return False
    return header.endswith(MARK) or _is_marked_in_log(file.with_name(f"{file.name}-wal"))


def _is_marked_in_log(file: Path) -> bool:
    try:
        with file.open("rb") as log:
            header = log.read(LOG_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            sound = header[:4] in LOG_MAGICS and PAGE_MIN_BYTES <= page_bytes <= PAGE_MAX_BYTES
            return sound and _any_marked_frame(log, page_bytes)
    except FileNotFoundError:
        return False


def _any_marked_frame(log: BinaryIO, page_bytes: int) -> bool:
    at = LOG_HEADER_BYTES
    while len(frame := _read(log, at, FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
        at += FRAME_HEADER_BYTES
        if frame[:4] == b"\0\0\0\1" and _read(log, at + MARK_AT, len(MARK)) == MARK:
            return True
        at += page_bytes
    return False


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)

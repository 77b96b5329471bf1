"""Adds notifications on the caller's own connection to the ledger's file, inside the caller's transaction.

This module yields the statements and interprets their rows; the caller runs them. Nothing here begins or ends a
transaction. The connection may belong to another SQLite library than the ledger's (Python's own `sqlite3`). Such a
library can corrupt the file in two ways; both are checked before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import apsw

from semel.ledgers.sqlite.database import IN_USE, file_identity, this_boot, wall_clock
from semel.ledgers.sqlite.outbox import ID, detect_repeats, new_row
from semel.ledgers.sqlite.statements import named_statements, with_rows
from semel.values.delivery_state import State
from semel.values.errors import ConfigError
from semel.values.notification import Notification
from semel.values.outbox import Added

Conversation: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Added]]

BATCH = 500  # notifications in a statement: SQLite takes 32,766 values
SOUND = (3, 51, 3)  # in earlier versions a checkpoint beside the commit of another connection can corrupt a WAL file
WIDTH = 16  # columns of a new row
STORE_TIME = 0  # placeholder: the statement fills in the time of the store

_NO_TABLE = re.compile(r"no such (table|view): (main\.)?semel_|has no column named")


def adding(notifications: Sequence[Notification], library: str) -> Conversation:
    """Yield statements with their values, receive their rows by `send`, and return the results.

    `library` is the version of SQLite behind the connection. An empty text means apsw, like the ledger's own
    connection. All notifications are encoded before the first statement: an invalid one writes nothing."""
    rows = [new_row(item, STORE_TIME) for item in notifications]
    first = {row[ID]: row for row in reversed(rows)}  # of equal ids the first is added
    ids = list(dict.fromkeys([row[ID] for row in rows]))
    known: dict[bytes, tuple[bytes, State]] = {}
    with _explained():
        if library and rows:
            yield from _check(library)
        for piece in [ids[at : at + BATCH] for at in range(0, len(ids), BATCH)]:
            values = [value for id in piece for value in first[id]]
            added = yield with_rows(_SQL["add"], WIDTH, len(piece)), (*values, *this_boot(), wall_clock())
            new = {id for (id,) in added}
            repeated = [id for id in piece if id not in new]
            if repeated:
                placeholders = ",".join("?" * len(repeated))
                found = yield _SQL["known"].format(keys=placeholders), tuple(repeated)
                known |= {id: (fingerprint, _text(state)) for id, fingerprint, state in found}
    return detect_repeats(rows, known)[0]


def _text(value: str | bytes) -> Any:
    """Decode a text value: the caller's `text_factory` may return bytes."""
    return value.decode() if isinstance(value, bytes) else value


# ----------------------------------------------------------------------------------------------- another library


def _check(library: str) -> Generator[tuple[str, tuple[Any, ...]], Sequence[Any], None]:
    """Refuse a connection of another library that could corrupt the file. Neither pragma reads a table."""
    same_library = not apsw.using_amalgamation and library == apsw.sqlite_lib_version()  # apsw uses the system's
    if not same_library and (opened := _open_here()):
        for _, name, path in (yield "pragma database_list", ()):
            if _text(name) == "main" and path and file_identity(_text(path)) in opened:
                raise ConfigError(
                    "SQLite: this process has the same file open through another library (apsw, as a ledger does): "
                    "neither sees the locks of the other, and the file can be corrupted. Use an apsw.Connection, "
                    "the app's own ledger, or another process"
                )
    if tuple(int(part) for part in re.findall(r"\d+", library)) < SOUND:
        ((pages,),) = yield "pragma wal_autocheckpoint", ()
        if pages > 0:
            raise ConfigError(
                f"SQLite {library} of this connection can corrupt the ledger's file when it runs a checkpoint beside "
                f"another connection's commit (fixed in {'.'.join(map(str, SOUND))}). Leave checkpoints to the ledger: "
                "run `pragma wal_autocheckpoint = 0` on every such connection at opening, or use an apsw.Connection"
            )


def _open_here() -> set[tuple[int, int] | None]:
    """Return the files that this process has open through apsw.

    A connection that is busy in another thread does not return its file name. Ledgers, whose writer threads are busy,
    have registered theirs in IN_USE."""
    opened = set(IN_USE.values())
    for connection in apsw.connections():
        with suppress(apsw.ThreadingViolationError, apsw.ConnectionClosedError):
            opened.add(file_identity(connection.filename))
    return opened - {None}


@contextmanager
def _explained() -> Iterator[None]:
    """Explain a missing outbox as a ConfigError. Every other error of the driver is left to the caller."""
    try:
        yield
    except Exception as error:
        if _NO_TABLE.search(str(getattr(error, "orig", None) or error)):
            raise ConfigError(
                "SQLite: this connection's main file holds no outbox, or one of another version. A message commits "
                "with your own writes only if both are in the ledger's file: connect to that file. Its tables are "
                "created when `semel run` or `semel relay` first uses it"
            ) from error
        raise


_SQL = named_statements("caller_transaction.sql")

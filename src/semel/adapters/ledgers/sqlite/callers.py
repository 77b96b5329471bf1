"""Adding notifications on somebody else's connection to the ledger's file, inside a transaction of theirs.

This module says what is to be asked and reads the answers; whoever has the connection runs it. Nothing here begins or
ends a transaction. The connection may be one of another SQLite library than the ledger's (Python's own `sqlite3`), and
such a library can harm the file in two ways, which are looked for before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import apsw

from semel.adapters.ledgers.sqlite.opening import IN_USE, file_identity, this_boot, wall_clock
from semel.adapters.ledgers.sqlite.outbox.adding import ERASED_FP, _row_of
from semel.adapters.ledgers.sqlite.statements import Row
from semel.values.errors import ConfigError
from semel.values.notification import Notification
from semel.values.outbox import Added
from semel.values.sending import State

Conversation: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Added]]

BATCH = 500  # notifications in a statement: SQLite takes 32,766 values
SOUND = (3, 51, 3)  # before, a checkpoint beside somebody else's commit can corrupt a file in WAL mode
WIDTH, ID, FP = 16, 0, 9  # of a row that is added
TOLD_BY_THE_STORE = 0  # the time

_NO_TABLE = re.compile(r"no such (table|view): (main\.)?semel_|has no column named")


def adding(notifications: Sequence[Notification], library: str) -> Conversation:
    """Yields statements with their values, is sent their rows, and returns the answers.

    `library` is the version of SQLite behind the connection; empty: it is one of apsw, like the ledger's. All
    notifications are written out before anything is asked: a mistake in one of them writes nothing."""
    rows = [_row_of(one.id, one.content, one, TOLD_BY_THE_STORE) for one in notifications]
    first = {row[ID]: row for row in reversed(rows)}  # of the same twice, the first is added
    ids = list(dict.fromkeys([row[ID] for row in rows]))
    known: dict[bytes, tuple[bytes, State]] = {}
    with _explained():
        if library and rows:
            yield from _check(library)
        for piece in [ids[at : at + BATCH] for at in range(0, len(ids), BATCH)]:
            values = [value for id in piece for value in first[id]]
            added = yield _adding(len(piece)), (*values, *this_boot(), wall_clock())
            new = {id for (id,) in added}
            others = [id for id in piece if id not in new]
            if others:
                found = yield _knowing(len(others)), tuple(others)
                known |= {id: (fp, _text(state)) for id, fp, state in found}
    return list(_answers(rows, known))


def _answers(rows: Sequence[Row], known: dict[bytes, tuple[bytes, State]]) -> Iterator[Added]:
    for row in rows:
        id, said = row[ID], row[FP]
        if id not in known:
            known[id] = said, "pending"
            yield Added(id.hex(), "added")
        else:
            fp, state = known[id]
            yield Added(id.hex(), "known" if fp in (said, ERASED_FP) else "conflict", state)


def _text(told: str | bytes) -> Any:
    """The caller may want texts as bytes."""
    return told.decode() if isinstance(told, bytes) else told


@cache  # at most BATCH
def _adding(count: int) -> str:
    row = f"({','.join('?' * WIDTH)})"
    return _SQL["add"].replace("{rows}", ",".join([row] * count))


@cache
def _knowing(count: int) -> str:
    return _SQL["known"].replace("{keys}", ",".join("?" * count))


# ----------------------------------------------------------------------------------------------- another library


def _check(library: str) -> Generator[tuple[str, tuple[Any, ...]], Sequence[Any], None]:
    """That another library does no harm, by the connection's own settings: both questions read no table."""
    if not _is_ours(library) and (opened := _open_here()):
        for _, name, path in (yield "pragma database_list", ()):
            if _text(name) == "main" and path and file_identity(_text(path)) in opened:
                raise ConfigError(
                    "SQLite: this process has the same file open through another library (apsw, as a ledger does): "
                    "neither sees the locks of the other, and the file can be corrupted. Add with an apsw.Connection, "
                    "with the app's own ledger, or from another process"
                )
    if _version(library) < SOUND:
        ((pages,),) = yield "pragma wal_autocheckpoint", ()
        if pages > 0:
            raise ConfigError(
                f"SQLite {library} of this connection can corrupt the ledger's file when it makes a checkpoint beside "
                f"somebody else's commit (mended in {'.'.join(map(str, SOUND))}). Leave checkpoints to the ledger: run "
                "`pragma wal_autocheckpoint = 0` on every such connection when it is opened, or use an apsw.Connection"
            )


def _open_here() -> set[tuple[int, int] | None]:
    """The files that this process has open through apsw. A connection that is busy in another thread does not tell its
    file; ledgers, whose writers are, have told theirs."""
    opened = set(IN_USE.values())
    for connection in apsw.connections():
        with suppress(apsw.ThreadingViolationError, apsw.ConnectionClosedError):
            opened.add(file_identity(connection.filename))
    return opened - {None}


def _is_ours(library: str) -> bool:
    """Where apsw was built to use the system's library, both are one."""
    return not apsw.using_amalgamation and library == apsw.sqlite_lib_version()


def _version(library: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", library))


@contextmanager
def _explained() -> Iterator[None]:
    """What somebody has to set up is told. All else is the driver's own error, and the caller's to handle."""
    try:
        yield
    except Exception as error:
        if _NO_TABLE.search(str(getattr(error, "orig", None) or error)):
            raise ConfigError(
                "SQLite: this connection's main file holds no outbox, or that of another version. A message commits "
                "with your own writes only where both are in the ledger's file: connect to that one. Its tables are "
                "made when `semel run` or `semel relay` first uses it"
            ) from error
        raise


def _named(text: str) -> dict[str, str]:
    """The statements, by the name above each, and without their comments: a driver may look at the first word."""
    parts = text.split("-- name: ")[1:]
    return {
        name: re.sub(r"^--.*\n", "", sql, flags=re.MULTILINE).strip()
        for name, _, sql in (part.partition("\n") for part in parts)
    }


_SQL = _named(files(__package__).joinpath("callers.sql").read_text())

"""A schema version after the present one, for tests of migrations."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from semel.ledgers.sqlite import database, doctor, ledger

LATER_VERSION = database.SCHEMA_VERSION + 1
LATER_STEP = """
alter table semel_lease add column later text;
create table semel_later (x);
create index semel_later_x on semel_later (x);
"""


def add_later_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process a Semel with one more schema step."""
    step = folder / "later.sql"
    step.write_text(LATER_STEP)
    monkeypatch.setattr(database, "SCHEMA_STEPS", (*database.SCHEMA_STEPS, str(step)))
    for module in (database, doctor, ledger):
        monkeypatch.setattr(module, "SCHEMA_VERSION", LATER_VERSION)


def write_unreleased(path: str, version: int) -> None:
    """A file with the marks of an unreleased version."""
    connection = apsw.Connection(path)
    connection.pragma("journal_mode", "wal")
    connection.execute("create table semel_meta (name text primary key, value any) without rowid, strict")
    connection.pragma("application_id", database.APPLICATION_ID)
    connection.pragma("user_version", version)
    connection.close()

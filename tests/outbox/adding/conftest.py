"""A server and a database for each module of tests, as the ledger's own tests have them; and a ledger's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.ledgers.postgres.conftest import empty_database, fresh_url, postgres, url

from semel.ledgers.sqlite import SqliteLedger

__all__ = ["empty_database", "file", "fresh_url", "postgres", "url"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A ledger's file, which nobody has open."""
    path = str(tmp_path / "semel.db")

    async def make() -> None:
        ledger = SqliteLedger(path)
        await ledger.purge(1)
        await ledger.close()

    asyncio.run(make())
    return path

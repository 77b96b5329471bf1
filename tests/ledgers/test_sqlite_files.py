"""The files beside a SQLite database are deleted while it is open."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.ledgers.sqlite.writer import FILES_S
from semel.values.claim import Claim, Granted, Settled, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import NOTHING


def claim(name: str) -> Claim:
    return Claim(name.encode().ljust(16, b"-"), "h", name, 60_000, 60_000)


async def do(ledger: SqliteLedger, name: str) -> None:
    (granted,) = await ledger.claim([claim(name)])
    assert isinstance(granted, Granted)
    assert await ledger.settle([Settlement(granted.lease, NOTHING)]) == [True]


def after_a_crash(path: Path, name: str) -> Verdict:
    """Return what another process reads that opens the present files."""
    folder = path.parent / "after-a-crash"
    folder.mkdir(exist_ok=True)
    for suffix in ("", "-wal"):
        if (file := path.with_name(path.name + suffix)).exists():
            shutil.copy(file, folder)

    async def look() -> Verdict:
        ledger = SqliteLedger(str(folder / path.name))
        (verdict,) = await ledger.claim([claim(name)])
        await ledger.close()
        return verdict

    return asyncio.run(look())


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def test_a_commit_into_a_deleted_wal_is_not_acknowledged_and_earlier_commits_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger = SqliteLedger(str(path))
        await do(ledger, "acknowledged")
        wal_of(path).unlink()
        with pytest.raises(LedgerUnavailable, match="-wal"):
            await ledger.claim([claim("later")])
        assert isinstance(await asyncio.to_thread(after_a_crash, path, "acknowledged"), Settled)
        for ask in (lambda: ledger.claim([claim("later")]), ledger.counts, ledger.depths):
            with pytest.raises(LedgerUnavailable, match="database file"):
                await ask()
        assert not wal_of(path).exists(), "no connection made a new one"
        await ledger.close()

    asyncio.run(story())


def test_the_wal_of_a_database_behind_a_symbolic_link_is_checked_beside_the_real_file(tmp_path: Path) -> None:
    path, link = tmp_path / "volume" / "ledger.db", tmp_path / "ledger.db"
    path.parent.mkdir()
    link.symlink_to(path)

    async def story() -> None:
        ledger = SqliteLedger(str(link))
        await do(ledger, "acknowledged")
        wal_of(path).unlink()
        with pytest.raises(LedgerUnavailable, match="-wal"):
            await ledger.claim([claim("later")])
        await ledger.close()

    asyncio.run(story())


def test_an_idle_ledger_saves_the_acknowledged_commits_of_a_deleted_wal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger = SqliteLedger(str(path))
        await do(ledger, "acknowledged")
        wal_of(path).unlink()
        ends = time.monotonic() + 20 * FILES_S
        while not isinstance(await asyncio.to_thread(after_a_crash, path, "acknowledged"), Settled):
            assert time.monotonic() < ends, "it was not noticed"
            await asyncio.sleep(0.05)
        await ledger.close()

    asyncio.run(story())


def test_a_deleted_wal_is_not_copied_if_another_process_created_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger = SqliteLedger(str(path))
        await do(ledger, "acknowledged")
        before = path.read_bytes()
        wal = wal_of(path)
        wal.rename(tmp_path / "away")
        wal.write_bytes(b"")
        with pytest.raises(LedgerUnavailable, match="-wal"):
            await ledger.claim([claim("later")])
        await asyncio.sleep(3 * FILES_S)
        assert path.read_bytes() == before
        (tmp_path / "away").rename(wal)
        assert isinstance((await ledger.claim([claim("acknowledged")]))[0], Settled), "it is back"
        await ledger.close()

    asyncio.run(story())


def test_a_reopened_ledger_uses_the_present_files(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger = SqliteLedger(str(path))
        await do(ledger, "acknowledged")
        wal_of(path).unlink()
        with pytest.raises(LedgerUnavailable):
            await ledger.claim([claim("later")])
        await ledger.close()
        await do(ledger, "again")
        assert isinstance((await ledger.claim([claim("acknowledged")]))[0], Settled)
        await ledger.close()

    asyncio.run(story())

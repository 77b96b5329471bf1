"""A claim holds the write lock from its first read, and writes only to the file that other processes use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger, claims
from semel.values import claim_rules
from semel.values.claim import Claim, Granted
from semel.values.errors import LedgerUnavailable


def test_a_claim_has_the_write_lock_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger.db")
    intruders: list[str] = []
    real_judge = claim_rules.judge

    def judge_while_another_tries_to_write(*args: Any) -> Any:
        other = apsw.Connection(path)
        try:
            other.execute("begin immediate")
            intruders.append("got in between reading and writing")
        except apsw.BusyError:
            intruders.append("kept out")
        finally:
            other.close()
        return real_judge(*args)

    async def story() -> None:
        ledger = SqliteLedger(path)
        monkeypatch.setattr(claims, "judge", judge_while_another_tries_to_write)
        (verdict,) = await ledger.claim([Claim(b"k" * 16, "h", "k", 1000, 1000)])
        assert isinstance(verdict, Granted)
        await ledger.close()

    asyncio.run(story())
    assert intruders == ["kept out"]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_removed_or_replaced_file_is_not_written(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger = SqliteLedger(str(path))
        await ledger.claim([Claim(b"k" * 16, "h", "k", 1000, 1000)])
        path.rename(tmp_path / "elsewhere.db")
        if how == "replaced":
            path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=r"ledger\.db"):
                await ledger.claim([Claim(b"l" * 16, "h", "l", 1000, 1000)])
        await ledger.close()
        (verdict,) = await ledger.claim([Claim(b"l" * 16, "h", "l", 1000, 1000)])
        assert isinstance(verdict, Granted)
        await ledger.close()

    asyncio.run(story())

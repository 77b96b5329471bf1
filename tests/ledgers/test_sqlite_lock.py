"""What a claim reads cannot change before it writes: the write lock comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.adapters.ledgers.sqlite import SqliteLedger, store
from semel.values import decision
from semel.values.claim import Claim, Granted


def test_a_claim_has_the_write_lock_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger.db")
    intruders: list[str] = []
    real_judge = decision.judge

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
        monkeypatch.setattr(store, "judge", judge_while_another_tries_to_write)
        (verdict,) = await ledger.claim([Claim(b"k" * 16, "h", "k", 1000, 1000)])
        assert isinstance(verdict, Granted)
        await ledger.close()

    asyncio.run(story())
    assert intruders == ["kept out"]

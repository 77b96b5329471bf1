"""Random histories: the SQLite inbox against the model, and proof that the machine would notice."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.ledgers.test_machines import RARELY

from semel.ledgers.sqlite import SqliteLedger
from semel.ledgers.sqlite.statements import SQL
from semel.testing.harness import FakeClock, Harness
from semel.testing.inbox_machine import inbox_machine
from semel.values.errors import LedgerUnavailable

MEMORY = Path("/dev/shm")  # hundreds of stores, none of which has to outlive the machine


def sqlite() -> Harness:
    folder, clock = tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None), FakeClock()
    path = str(Path(folder, "ledger.db"))
    return Harness(
        open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
        clock=clock,
        dispose=lambda: shutil.rmtree(folder),
    )


def run(examples: int, steps: int = 50) -> None:
    run_state_machine_as_test(
        inbox_machine(sqlite),
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=RARELY),
    )


def test_the_inbox_behaves_like_the_model() -> None:
    run(30)


@pytest.mark.long
def test_the_inbox_behaves_like_the_model_over_long_histories() -> None:
    run(500, steps=100)


# ------------------------------------------------------------------------------------- would the machine notice?

BROKEN = {  # a statement, and what is wrong with it
    "finish_inbox_items": ("and i.token = v.column2", "and i.token >= 0 * v.column2"),
    "postpone_inbox_items": ("and state = 2", ""),
    "give_up_inbox_item": ("and state = 2", ""),
    "take_inbox_items": ("expired_leases + (state = 2)", "expired_leases"),
    "due_inbox_items": ("and i.due_ms <= ?", "and i.due_ms <= ? + 1"),
    "inbox_keys": ("iif(i.id is null, ifnull(r.result, x''), null)", "null"),
    "known_keys": ("where d.digest in", "where d.expires_ms > 0 and r.outcome = 1 and d.digest in"),
    "undecided_dead_letter": ("and r.decided_ms is null", ""),
    "inbox_depths": ("state = 1 or due_ms <= ?1", "state = 1 or due_ms < ?1"),
}


@pytest.mark.long
@pytest.mark.parametrize("statement", BROKEN)
def test_the_state_machine_detects_a_broken_inbox(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = BROKEN[statement]
    assert SQL[statement].count(right) == 1
    monkeypatch.setitem(SQL, statement, SQL[statement].replace(right, wrong))
    quick = settings(
        max_examples=1_000,
        stateful_step_count=50,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=RARELY,
    )
    with pytest.raises((AssertionError, ValueError, LedgerUnavailable)):
        run_state_machine_as_test(inbox_machine(sqlite), settings=quick)

"""A worker that gives an event up, and is killed at one of the steps: `python dying_worker.py LEDGER LETTERS STEP`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.stores.dead_letter_store.broken import LEDGERS

from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.testing.harness import Harness
from semel.values.claim import DeadLetter, Granted, Settlement
from semel.values.outcome import Reject

NAMESPACE = "dying"
LEASE_MS = 500


def harness() -> Harness:
    """The same keys in every process."""
    return Harness(open=lambda: None, namespace=NAMESPACE)  # type: ignore[arg-type,return-value]


async def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, dead_letters: str, where: str) -> None:
    ledger, dead_letter_store = LEDGERS["redis"].from_url(url), LEDGERS["sqlite"](dead_letters)
    step, _, name = where.partition(" in ")
    (ledger if name == "ledger" else dead_letter_store).interrupt(step, killed)
    both = LedgerWithDeadLetterStore(ledger, dead_letter_store)
    (verdict,) = await both.claim([harness().claim("a", lease_ms=LEASE_MS, retention_ms=600_000)])
    assert isinstance(verdict, Granted)
    await both.settle([Settlement(verdict.lease, Reject("first"), DeadLetter(b"{}", verdict.attempt))])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Callbacks of providers, into an outbox in PostgreSQL."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from tests.ledgers.postgres.opening import opened
from tests.outbox.callbacks.hearing_here import all_of_it

from semel.core.resend import needed_outbox


def test_all_operations_work_in_one_run(url: str) -> None:
    async def story() -> None:
        async with opened(url) as ledger:
            await all_of_it(needed_outbox(ledger), f"one {uuid4()}")

    asyncio.run(story())

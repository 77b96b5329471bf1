"""The PostgreSQL ledger keeps the laws of a dead-letter store of another ledger."""

from __future__ import annotations

import pytest

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.laws.dead_letter_store import DeadLetterStoreLaws


class TestPostgresLetterbox(DeadLetterStoreLaws):
    @pytest.fixture
    def harness(self, url: str) -> Harness:
        clock = FakeClock()
        return Harness(open=lambda: PostgresLedger.from_url(url, clock=clock), clock=clock)

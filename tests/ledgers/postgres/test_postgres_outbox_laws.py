"""The PostgreSQL ledger's outbox keeps the laws."""

from __future__ import annotations

import pytest

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.outbox_laws import OutboxLaws, RealTimeOutboxLaws


class TestPostgresOutbox(OutboxLaws):
    @pytest.fixture
    def harness(self, url: str) -> Harness:
        clock = FakeClock()
        return Harness(open=lambda: PostgresLedger.from_url(url, clock=clock), clock=clock)


@pytest.mark.long
class TestPostgresOutboxOnItsOwnClock(RealTimeOutboxLaws):
    """The same laws in real time, on the server's clock."""

    @pytest.fixture
    def harness(self, url: str) -> Harness:
        return Harness(open=lambda: PostgresLedger.from_url(url), unit_ms=250)

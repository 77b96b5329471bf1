"""The inbox and the dead letters of the PostgreSQL ledger keep the laws."""

from __future__ import annotations

from functools import partial

import pytest

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.inbox_laws import InboxLaws


class TestPostgresInbox(InboxLaws):
    @pytest.fixture
    def harness(self, url: str) -> Harness:
        clock = FakeClock()
        return Harness(
            open=lambda: PostgresLedger.from_url(url, clock=clock),
            clock=clock,
            remote=partial(PostgresLedger.from_url, url),
        )


@pytest.mark.long
class TestPostgresInboxOnItsOwnClock(InboxLaws):
    """The same laws in real time, on the server's clock."""

    @pytest.fixture
    def harness(self, url: str) -> Harness:
        remote = partial(PostgresLedger.from_url, url)
        return Harness(open=remote, remote=remote, unit_ms=200)

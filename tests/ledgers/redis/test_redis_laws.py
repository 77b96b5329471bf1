"""The contract of a ledger, bound to one Valkey server."""

from __future__ import annotations

import pytest
from tests.ledgers.redis.stores import harness_on

from semel.testing.harness import Harness
from semel.testing.ledger_laws import LedgerLaws


class TestRedisLedger(LedgerLaws):
    @pytest.fixture
    def harness(self, redis_url: str) -> Harness:
        return harness_on(redis_url)


@pytest.mark.long
class TestRedisLedgerOnItsOwnClock(LedgerLaws):
    @pytest.fixture
    def harness(self, redis_url: str) -> Harness:
        return harness_on(redis_url, timed=False)

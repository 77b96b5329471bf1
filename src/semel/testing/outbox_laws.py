"""The contract of an outbox, as tests.

A store binds the suite in a few lines. No law can be switched off:

    class TestMyOutbox(OutboxLaws):
        @pytest.fixture
        def harness(self) -> Harness:
            return Harness(open=lambda: MyLedger("…"), clock=…, remote=…)

The opened ledger has its outbox as the attribute `outbox`.
"""

from __future__ import annotations

from semel.testing.laws.outbox import AddLaws, CrossLaws, DeliveryReportLaws, OutboxTakeLaws, RecordLaws, ReferenceLaws
from semel.testing.laws.outbox_order import BystanderLaws, InterplayLaws, MovedClockLaws, QueueOrderLaws, RateLaws
from semel.testing.laws.outbox_queries import BacklogLaws, DecideLaws, EraseLaws, ListLaws, PurgeLaws, StatusLaws

__all__ = ["OutboxLaws", "RealTimeOutboxLaws"]


class RealTimeOutboxLaws(
    AddLaws,
    OutboxTakeLaws,
    RateLaws,
    QueueOrderLaws,
    CrossLaws,
    RecordLaws,
    ReferenceLaws,
    DeliveryReportLaws,
    StatusLaws,
    ListLaws,
    DecideLaws,
    EraseLaws,
    BacklogLaws,
    PurgeLaws,
    InterplayLaws,
    BystanderLaws,
):
    """All laws except those that move the clock, for an outbox that uses the clock of its store."""


class OutboxLaws(RealTimeOutboxLaws, MovedClockLaws):
    """All laws that every outbox keeps."""

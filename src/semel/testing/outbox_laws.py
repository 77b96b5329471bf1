"""The contract of an outbox, as tests.

A store binds it in a few lines, and nothing of it can be switched off:

    class TestMyOutbox(OutboxLaws):
        @pytest.fixture
        def harness(self) -> Harness:
            return Harness(open=lambda: MyLedger("…"), clock=…, remote=…)

The opened ledger has its outbox as the attribute `outbox`.
"""

from __future__ import annotations

from semel.testing.laws.outbox import AddLaws, TakeLaws
from semel.testing.laws.outbox_bystanders import BystanderLaws
from semel.testing.laws.outbox_forgetting import BacklogLaws, PurgeLaws
from semel.testing.laws.outbox_interplay import InterplayLaws, MovedClockLaws
from semel.testing.laws.outbox_people import DecideLaws, EraseLaws, ListLaws, StatusLaws
from semel.testing.laws.outbox_queues import OrderLaws, RateLaws
from semel.testing.laws.outbox_references import ReferenceLaws
from semel.testing.laws.outbox_sending import CrossLaws, RecordLaws, WitnessLaws

__all__ = ["OutboxLaws", "RealTimeOutboxLaws"]


class RealTimeOutboxLaws(
    AddLaws,
    TakeLaws,
    RateLaws,
    OrderLaws,
    CrossLaws,
    RecordLaws,
    ReferenceLaws,
    WitnessLaws,
    StatusLaws,
    ListLaws,
    DecideLaws,
    EraseLaws,
    BacklogLaws,
    PurgeLaws,
    InterplayLaws,
    BystanderLaws,
):
    """All laws but those that move the clock: for an outbox whose clock is its store's."""


class OutboxLaws(RealTimeOutboxLaws, MovedClockLaws):
    """All laws that every outbox keeps."""

"""The contract of a source, as tests.

A source binds the suite in a few lines. No law can be switched off:

    class TestMySource(SourceLaws):
        @pytest.fixture
        def harness(self) -> SourceHarness:
            return SourceHarness(send=…, open=lambda: MySource("…"), app=…, left=…, dead_letters=…, consumer=…, …)

The laws use only the port of a source and the messages left at the transport, so they apply to sources that acknowledge
single messages and to sources that commit a position. Some sources bind further laws: `OrderedSourceLaws` for order
within groups, `WaitingSourceLaws` for a source that waits when it is empty, and `HoldingSourceLaws` for a source that
hides a received message from other consumers.
"""

from __future__ import annotations

from semel.testing.laws.source_harness import LANDED, LEASE_S, SAID, TOPIC, SourceDeadLetter, SourceHarness
from semel.testing.laws.sources import AGAIN, AnswerLaws, CrashLaws, EndLaws, HoldLaws, OrderedSourceLaws, WaitLaws

__all__ = [
    "AGAIN",
    "LANDED",
    "LEASE_S",
    "SAID",
    "TOPIC",
    "HoldingSourceLaws",
    "OrderedSourceLaws",
    "SourceDeadLetter",
    "SourceHarness",
    "SourceLaws",
    "WaitingSourceLaws",
]


class SourceLaws(AnswerLaws, EndLaws, CrashLaws):
    """All laws that every source keeps."""


class WaitingSourceLaws(WaitLaws):
    """Laws for a source that waits for more messages when it is empty (`ends` is False)."""


class HoldingSourceLaws(HoldLaws):
    """Laws for a source that hides a received message from other consumers for `hold_s`."""

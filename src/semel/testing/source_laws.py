"""The contract of a source: what every transport keeps to, as tests.

A source binds it in a few lines, and nothing of it can be switched off:

    class TestMySource(SourceLaws):
        @pytest.fixture
        def harness(self) -> SourceHarness:
            return SourceHarness(send=…, open=lambda: MySource("…"), app=…, left=…, letters=…, consumer=…, …)

The laws see a source only by its port and by what is left at the transport, so that it does not matter whether it
acknowledges message by message or by a position. A source that keeps order within groups binds `OrderedSourceLaws` too,
one that waits for more when it is empty `WaitingSourceLaws`, and one that hides a received message from other consumers
`HoldingSourceLaws`.
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
    """Of a source that waits for more when it is empty (`ends` is False)."""


class HoldingSourceLaws(HoldLaws):
    """Of a source that hides a received message from other consumers for `hold_s`."""

"""The contract of an inbox and its dead letters: every sentence in the docstrings of `semel.ports`, as tests.

A ledger that is also an Inbox and has DeadLetters binds it as it binds its own laws, with the same harness:

    class TestMyInbox(InboxLaws):
        @pytest.fixture
        def harness(self) -> Harness:
            clock = FakeClock()
            return Harness(open=lambda: MyLedger("…", clock=clock), clock=clock, remote=partial(MyLedger, "…"))
"""

from __future__ import annotations

from semel.testing.laws.dead_letters import DeadLetterLaws, ForceLaws
from semel.testing.laws.inbox import AcceptLaws, InboxTakeLaws
from semel.testing.laws.inbox_races import InboxRaceLaws

__all__ = ["InboxLaws"]


class InboxLaws(AcceptLaws, InboxTakeLaws, DeadLetterLaws, ForceLaws, InboxRaceLaws):
    """All laws that every inbox keeps."""

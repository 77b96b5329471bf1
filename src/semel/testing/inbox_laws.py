"""The contract of an inbox and its letters: every sentence in the docstrings of `semel.ports`, as tests.

A ledger that is also an Inbox and has Letters binds it as it binds its own laws, with the same harness:

    class TestMyInbox(InboxLaws):
        @pytest.fixture
        def harness(self) -> Harness:
            clock = FakeClock()
            return Harness(open=lambda: MyLedger("…", clock=clock), clock=clock, remote=partial(MyLedger, "…"))
"""

from __future__ import annotations

from semel.testing.laws.forcing import ForceLaws
from semel.testing.laws.inbox import AcceptLaws
from semel.testing.laws.inbox_racing import InboxRaceLaws
from semel.testing.laws.letters import LetterLaws
from semel.testing.laws.taking import TakeLaws

__all__ = ["InboxLaws"]


class InboxLaws(AcceptLaws, TakeLaws, LetterLaws, ForceLaws, InboxRaceLaws):
    """All laws that every inbox keeps."""

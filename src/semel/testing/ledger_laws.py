"""The contract of a ledger: every sentence in the docstrings of `semel.ports`, as tests.

A ledger binds the suite in a few lines. No law can be switched off:

    class TestMyLedger(LedgerLaws):
        @pytest.fixture
        def harness(self) -> Harness:
            clock = FakeClock()
            return Harness(open=lambda: MyLedger("…", clock=clock), clock=clock, remote=partial(MyLedger, "…"))

For a store with its own clock, omit `clock` and set `unit_ms=50`: the laws then wait in real time. A
TransactionalLedger also binds `TransactionLaws`, with a TransactionHarness.
"""

from __future__ import annotations

from semel.ports import TransactionalLedger
from semel.testing.harness import Caller
from semel.testing.laws.catalog import CatalogLaws, KeepLaws
from semel.testing.laws.claims import ClaimLaws, EventOrderLaws, RaceLaws
from semel.testing.laws.settlement import SettleLaws, TryLaws
from semel.testing.laws.transactions import TransactionLaws

__all__ = ["LedgerLaws", "TransactionLaws"]


class LedgerLaws(ClaimLaws, SettleLaws, EventOrderLaws, KeepLaws, RaceLaws, CatalogLaws, TryLaws):
    """All laws that every ledger keeps."""

    def test_its_traits_match_its_abilities_and_its_laws(self, ledger: Caller) -> None:
        traits = ledger.ledger.traits
        assert traits.name
        assert traits.transactional == isinstance(ledger.ledger, TransactionalLedger)
        assert traits.transactional == isinstance(self, TransactionLaws), "more abilities, more laws"
        assert traits.durable or traits.caveat
